"""Bad bodies, names, parameters and requests get a typed error, and change nothing."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.http_api.serving import BODY_BYTES, OUTPUT, Served


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_over_the_limit(fed: Served, chunked: bool) -> None:
    before = await fed.everything()
    raw = b'{"offset": 2, "ids": [9' + b" " * BODY_BYTES + b"]}"

    async def parts() -> Any:
        for start in range(0, len(raw), 1000):
            yield raw[start : start + 1000]

    async with fed.http.post(fed.address.url + OUTPUT, data=parts() if chunked else raw) as reply:
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (413, "too_large")
    assert error["details"]["field"] == "body"
    assert error["details"]["limit"] == BODY_BYTES
    assert error["details"]["found"] > BODY_BYTES
    assert await fed.everything() == before


async def test_body_at_the_limit_is_taken(fed: Served) -> None:
    head, tail = b'{"offset": 2, "ids": [9]', b"}"
    raw = head + b" " * (BODY_BYTES - len(head) - len(tail)) + tail
    assert (await fed.call("POST", OUTPUT, raw=raw))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_any_content_type_is_json(fed: Served, kind: str) -> None:
    headers = {"Content-Type": kind}
    status, _ = await fed.call("POST", OUTPUT, {"offset": 2, "ids": [9]}, headers=headers)
    assert status == 200


async def test_compressed_body_is_refused(fed: Served) -> None:
    before = await fed.everything()
    headers = {"Content-Encoding": "gzip"}
    status, body = await fed.call("POST", OUTPUT, {"offset": 2, "ids": [9]}, headers=headers)
    assert (status, body["error"]["code"]) == (415, "unsupported_encoding")
    assert body["error"]["details"] == {"field": "Content-Encoding", "found": "gzip"}
    assert await fed.everything() == before


@pytest.mark.parametrize(
    ("encoded", "status", "field"),
    [
        ("s" * 201, 422, "session"),
        ("a%0Ab", 422, "session"),
        ("%FF", 422, "session"),
        ("%ED%A0%80", 422, "session"),
        ("%00", 422, "session"),
    ],
)
async def test_bad_names_in_the_path(fed: Served, encoded: str, status: int, field: str) -> None:
    before = await fed.everything()
    found, body = await fed.call("POST", f"/v1/sessions/{encoded}/turns", {"ids": [1]})
    assert (found, body["error"]["code"]) == (status, "invalid_input")
    assert body["error"]["details"]["field"] == field
    assert await fed.everything() == before


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=x", "limit=1.5", f"limit={2**63}", "after=-1", "after=",
        f"after={2**63}", "after=1&after=2", "order=up", "ids=perhaps", "since=nan", "until=inf",
        "since=soon", "kind=nonsense", "kind=prompt,nonsense", "kind=", "session=", "unknown=1",
    ],
)  # fmt: skip
async def test_bad_journal_queries(fed: Served, query: str) -> None:
    status, body = await fed.call("GET", f"/v1/journal?{query}")
    assert (status, body["error"]["code"]) == (422, "invalid_input"), body
    assert body["error"]["details"]["field"] == query.partition("=")[0]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/sessions?limit=1001", "limit"),
        ("/v1/sessions?page=1", "page"),
        ("/v1/sessions/s1?ids=true", "ids"),
        ("/v1/conductor/shadow/status?x=1", "x"),
        ("/healthz?x=1", "x"),
        ("/v1/journal/stream?limit=1", "limit"),
    ],
)
async def test_unknown_or_bad_parameters(fed: Served, path: str, field: str) -> None:
    status, body = await fed.call("GET", path)
    assert (status, body["error"]["code"]) == (422, "invalid_input"), body
    assert body["error"]["details"]["field"] == field


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "", str(2**63), "²"])
async def test_bad_last_event_id(fed: Served, value: str) -> None:
    headers = {"Last-Event-ID": value}
    status, body = await fed.call("GET", "/v1/journal/stream", headers=headers)
    assert (status, body["error"]["code"]) == (422, "invalid_input")
    assert body["error"]["details"]["field"] == "Last-Event-ID"


LONG = b"y" * 9000


UNREADABLE = {
    "no request": b"nonsense\r\n\r\n",
    "no path": b"GET\r\n\r\n",
    "a version that there is not": b"GET /healthz HTTP/9.9\r\n\r\n",
    "no colon": b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
    "a long header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + LONG + b"\r\n\r\n",
    "a long path": b"GET /" + LONG + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n\r\n",
    "a length that is none": b"POST /v1/feed HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: x\r\n\r\n",
    "two lengths": b"POST /v1/feed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n",
    "a handshake of TLS": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
}


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_what_is_no_request_gets_the_one_error_body(
    served: Served, caplog: pytest.LogCaptureFixture, before: bytes, sent: bytes
) -> None:
    reader, writer = await served.connect()
    if before:
        writer.write(before)
        assert await reader.readuntil(b'{"ok":true}')
    writer.write(sent)
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.split()[1] == b"400"
    assert b"content-type: application/json" in head.lower()
    error = orjson.loads(content)["error"]
    assert (error["code"], error["details"]) == ("bad_request", {"field": "request"})
    assert error["message"].startswith("the request cannot be read: ")
    assert len(error["message"]) < 300
    assert not caplog.records, "anybody could fill the log"
    assert (await served.call("GET", "/healthz"))[0] == 200
