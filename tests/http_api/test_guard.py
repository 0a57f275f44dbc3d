"""Only requests meant for this service get in, and only with its token where it has one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shadow_reader.bounds import Bound
from shadow_reader.config import Settings
from shadow_reader.http import guard
from tests.http_api.serving import Served, serving

ASKED = "GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n"


async def raw_status(served: Served, path: str, *headers: str) -> int:
    """The status of a request with exactly these headers."""
    reader, writer = await served.connect()
    writer.write((ASKED % (path, "".join(f"{header}\r\n" for header in headers))).encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8765", "127.8.9.10:1", "localhost", "LocalHost:80", "localhost.",
        "[::1]", "[::1]:8765",
    ],
)  # fmt: skip
async def test_loopback_names_are_ours(served: Served, host: str) -> None:
    assert await raw_status(served, "/healthz", f"Host: {host}") == 200


@pytest.mark.parametrize(
    "host",
    [
        "example.com", "localhost.example.com", "127.0.0.1.example.com", "10.0.0.1", "[::2]",
        "128.0.0.1:8765", "", "0.0.0.0", "2130706433",
    ],
)  # fmt: skip
async def test_other_names_are_not(served: Served, host: str) -> None:
    assert await raw_status(served, "/healthz", f"Host: {host}") == 403


async def test_no_host_at_all_is_refused(served: Served) -> None:
    assert await raw_status(served, "/healthz") in (400, 403)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:8765", 200),
        ("https://example.com", 403),
        ("http://localhost.example.com", 403),
        ("null", 403),
        ("file://", 403),
        ("", 403),
    ],
)
async def test_a_foreign_page_cannot_post(served: Served, origin: str, status: int) -> None:
    """A page elsewhere may send text/plain to a loopback address without asking first."""
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    body = {"turn": "t", "ids": [1]}
    found, answer = await served.call("POST", "/v1/sessions/s/turns", body, headers=headers)
    assert found == status, answer
    entries = [entry async for entry in served.runtime.journal_entries()]
    assert len(entries) == (2 if status == 200 else 0)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, token="sesame-ünd-öffne") as found:
        yield found


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer sesame-ünd-öffne", 200),
        ("bearer   sesame-ünd-öffne ", 200),
        ("Bearer sesame", 403),
        ("Bearer ", 403),
        ("Basic sesame-ünd-öffne", 403),
        ("sesame-ünd-öffne", 403),
        ("Bearer \udcff", 403),
        (None, 403),
    ],
)
async def test_the_token(guarded: Served, header: str | None, status: int) -> None:
    reader, writer = await guarded.connect()
    lines = [b"GET /v1/journal HTTP/1.1", b"Host: localhost", b"Connection: close"]
    if header is not None:
        lines.append(f"Authorization: {header}".encode("utf-8", "surrogateescape"))
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
    content = await reader.read()
    writer.close()
    assert int(content.split()[1]) == status, content
    assert b"sesame" not in content


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/healthz", 200),
        ("/readyz", 403),
        ("/openapi.json", 403),
        ("/nowhere", 403),
        ("/healthz/", 403),
        ("/v1/feed", 403),
    ],
)
async def test_only_the_health_needs_no_token(guarded: Served, path: str, status: int) -> None:
    found, body = await guarded.call("GET", path)
    assert found == status
    if status == 403:
        assert body["error"]["details"] == {"field": "Authorization", "found": "missing"}


async def test_a_wildcard_bind_is_reached_by_any_name_with_its_token(tmp_path: Path) -> None:
    async with serving(tmp_path, host="0.0.0.0", token="t") as served:
        host = "Host: gpu-box.example:8765"
        assert await raw_status(served, "/healthz", host) == 200
        assert await raw_status(served, "/v1/journal", host) == 403
        assert await raw_status(served, "/v1/journal", host, "Authorization: Bearer t") == 200


def test_a_named_host_is_ours() -> None:
    ours = guard.Guard(Settings(host="gpu-box", token="t"), Bound("requests", 1))
    assert ours._is_ours("gpu-box")
    assert ours._is_ours("127.0.0.1")
    assert not ours._is_ours("other-box")
