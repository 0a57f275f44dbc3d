"""Paths, methods and names: what is served where, and what the rest gets."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from shadow_reader.shadow.reader import Reader
from tests.http_api.fake_engine import GRID, FakeEngine
from tests.http_api.serving import Served, until

NAMES = [
    "plain", "with space", "a/b", "a%2Fb", "%", "a?b#c", "ünïcödé", "会话", "🙂", "..", ".", "+",
    "{session}", "a;b=c", "a&b", "C:\\x", "'\"", "~", "s" * 200,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_any_printable_name_works_in_the_path(served: Served, name: str) -> None:
    path = f"/v1/sessions/{quote(name, safe='')}"
    turn = f"{path}/turns/{quote(name, safe='')}"
    if name in (".", ".."):
        path, turn = (part.replace(name, name.replace(".", "%2E")) for part in (path, turn))
    accepted = await served.ok("POST", f"{path}/turns", {"turn": name, "ids": [1]})
    assert (accepted["session"], accepted["turn"]) == (name, name)
    await served.ok("POST", f"{turn}/first_token")
    await served.ok("POST", f"{turn}/output", {"offset": 0, "ids": [2, 3]})
    await served.ok("POST", f"{turn}/end", {"produced": 2})
    assert (await served.ok("GET", path))["session"] == name
    page = await served.ok("GET", "/v1/sessions")
    assert [row["session"] for row in page["sessions"]] == [name]
    rows = await served.call("GET", f"/v1/sessions?after={quote(name, safe='')}")
    assert rows == (200, {"sessions": [], "next": None})
    assert (await served.ok("DELETE", path))["events"] == 5
    assert (await served.call("GET", path))[0] == 404


async def test_lower_case_percent_codes_are_the_same(served: Served) -> None:
    await served.ok("POST", "/v1/sessions/a%2fb/turns", {"turn": "t", "ids": [1]})
    assert (await served.ok("GET", "/v1/sessions/a%2Fb"))["session"] == "a/b"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/sessions/", "/v1/sessions//turns", "/v1/feed/", "/V1/feed", "/favicon.ico",
     "/v1/sessions/s/turns/t", "/v1/sessions/s/turns/t/output/x", "//healthz"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_nothing_is_served_elsewhere(served: Served, method: str, path: str) -> None:
    status, body = await served.call(method, path)
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert body["error"]["details"] == {"path": path}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/feed", "OPTIONS, POST"),
        ("POST", "/v1/sessions/s", "DELETE, GET, HEAD, OPTIONS"),
        ("PUT", "/healthz", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/sessions", "GET, HEAD, OPTIONS"),
        ("PATCH", "/v1/journal", "GET, HEAD, OPTIONS"),
    ],
)
async def test_other_methods(served: Served, method: str, path: str, allowed: str) -> None:
    async with served.http.request(method, served.address.url + path) as reply:
        body = await reply.json()
        assert (reply.status, body["error"]["code"]) == (405, "method_not_allowed")
        assert reply.headers["Allow"] == allowed
    assert body["error"]["details"] == {"method": method, "allowed": allowed.split(", ")}
    async with served.http.options(served.address.url + path) as reply:
        assert (reply.status, reply.headers["Allow"]) == (204, allowed)
        assert await reply.read() == b""


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/sessions", "/v1/sessions/s",
     "/v1/journal", "/v1/journal/stream", "/v1/conductor/shadow/status", "/nowhere"],
)  # fmt: skip
async def test_head_is_get_without_a_body(served: Served, path: str) -> None:
    await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1]})
    async with served.http.head(served.address.url + path) as head:
        assert await head.read() == b""
    async with served.http.get(served.address.url + path) as get:
        assert (head.status, head.content_type) == (get.status, get.content_type)
    assert await served.ok("GET", "/healthz") == {"ok": True}


async def test_expectations(served: Served) -> None:
    headers = {"Expect": "100-continue"}
    body: Any = {"turn": "t", "ids": [1]}
    status, _ = await served.call("POST", "/v1/sessions/s/turns", body, headers=headers)
    assert status == 200
    headers = {"Expect": "a-miracle"}
    status, body = await served.call("GET", "/healthz", headers=headers)
    assert (status, body["error"]["code"]) == (417, "expectation_failed")


async def test_an_empty_body_is_an_empty_object(served: Served) -> None:
    await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1]})
    await served.ok("POST", "/v1/sessions/s/turns/t/first_token")
    await served.ok("POST", "/v1/sessions/s/turns/t/first_token", {})
    ended = await served.ok("POST", "/v1/sessions/s/turns/t/end")
    assert ended["seq"] == 4
    assert (await served.ok("POST", "/v1/sessions/s/turns/t/end"))["seq"] is None


async def test_a_turn_is_named_by_the_server(served: Served) -> None:
    one = await served.ok("POST", "/v1/sessions/s/turns", {"ids": [1]})
    two = await served.ok("POST", "/v1/sessions/s/turns", {"ids": [1], "turn": None})
    assert one["turn"] != two["turn"]
    assert {len(one["turn"]), len(two["turn"])} == {32}


async def test_keep_and_router(served: Served) -> None:
    await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1, 2, 3]})
    body = {"turn": "u", "ids": [9], "keep": 2, "router": "code"}
    assert (await served.ok("POST", "/v1/sessions/s/turns", body))["known"] == 3
    entries = [entry async for entry in served.runtime.journal_entries(kinds=["prompt"])]
    event: Any = entries[-1].event
    assert (event.keep, list(event.ids), event.router) == (2, [9], "code")


async def test_sessions_are_paged_by_name(served: Served) -> None:
    for name in "cabde":
        await served.ok("POST", f"/v1/sessions/{name}/turns", {"ids": [1]})
    page = await served.ok("GET", "/v1/sessions?limit=2")
    assert [row["session"] for row in page["sessions"]] == ["a", "b"]
    assert page["next"] == "b"
    assert page["sessions"][0].keys() == {"session", "last_seq", "last_at", "events"}
    page = await served.ok("GET", "/v1/sessions?limit=2&after=b")
    assert [row["session"] for row in page["sessions"]] == ["c", "d"]
    page = await served.ok("GET", "/v1/sessions?limit=2&after=d")
    assert ([row["session"] for row in page["sessions"]], page["next"]) == (["e"], None)


async def test_without_a_model(served: Served) -> None:
    await served.ok("POST", "/v1/sessions/s/turns", {"ids": [1]})
    ready = await served.ok("GET", "/readyz")
    assert ready == {"state": "off", "reason": "no model is loaded (model is empty)"}
    for path in ("digest", "state"):
        status, body = await served.call("GET", f"/v1/sessions/s/{path}")
        assert (status, body["error"]["code"]) == (503, "bad_model")
    asked = {"session": "s", "question": "?", "choices": ["a", "b"]}
    status, body = await served.call("POST", "/v1/conductor/shadow/ask", asked)
    assert (status, body["error"]["code"]) == (503, "bad_model")
    status_body = await served.ok("GET", "/v1/conductor/shadow/status")
    assert status_body["model"] is None
    assert status_body["sessions"][0]["note"] == ready["reason"]


async def test_a_bug_of_ours_is_logged_and_not_told(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_session: str) -> None:
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(served.runtime, "session_status", broken)
    status, body = await served.call("GET", "/v1/sessions/s")
    assert (status, body["error"]["code"]) == (500, "internal")
    incident = body["error"]["details"]["incident"]
    assert "secret" not in str(body)
    assert incident in caplog.text
    assert "a secret of the house" in caplog.text


# -- waiting until a session is fresh ----------------------------------------------------------

FRESH = "/v1/sessions/s?wait=fresh"


async def test_a_wait_ends_when_the_session_is_fresh(asking: Served, engine: FakeEngine) -> None:
    await asking.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1] * (2 * GRID + 1)})
    engine.gate.clear()
    await asking.ok("POST", "/v1/sessions/s/turns/t/end", {})
    assert not (await asking.ok("GET", "/v1/sessions/s"))["fresh"]
    waiting = asyncio.create_task(asking.ok("GET", f"{FRESH}&timeout_s=20"))
    await until(lambda: asking.used("requests") == 1, "the wait")
    engine.gate.set()
    status = await waiting
    assert (status["fresh"], status["committed"], status["behind"]) == (True, 2 * GRID, 1)
    assert status == await asking.ok("GET", "/v1/sessions/s")


async def test_waits_that_do_not_end_well(asking: Served, engine: FakeEngine) -> None:
    await asking.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1] * (2 * GRID)})
    status, body = await asking.call("GET", f"{FRESH}&timeout_s=0.05")
    assert (status, body["error"]["code"]) == (504, "timeout")
    assert body["error"]["details"] == {"field": "timeout_s", "limit": 0.05}
    assert (await asking.call("GET", "/v1/sessions/none?wait=fresh"))[0] == 404
    waiting = asyncio.create_task(asking.call("GET", FRESH))
    await until(lambda: asking.used("requests") == 1, "the wait")
    await asking.ok("DELETE", "/v1/sessions/s")
    assert (await waiting)[0] == 404


async def test_a_wait_is_told_that_the_reader_stopped(asking: Served, engine: FakeEngine) -> None:
    await asking.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1] * (2 * GRID)})
    waiting = asyncio.create_task(asking.call("GET", FRESH))
    await until(lambda: asking.used("requests") == 1, "the wait")
    with mock.patch.object(Reader, "_next", side_effect=AssertionError("a bug of ours")):
        await asking.ok("POST", "/v1/sessions/s/turns/t/output", {"offset": 0, "ids": [1]})
        answers = [await waiting, await asking.call("GET", FRESH)]
    for status, body in answers:
        assert (status, body["error"]["code"]) == (503, "shut_down")
        assert "a bug of ours" in body["error"]["message"]
    assert (await asking.call("GET", "/v1/sessions/s"))[0] == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("wait=now", "wait"), ("wait=", "wait"), ("wait=fresh&timeout_s=0", "timeout_s"),
        ("wait=fresh&timeout_s=3601", "timeout_s"), ("wait=fresh&timeout_s=nan", "timeout_s"),
        ("wait=fresh&timeout_s=soon", "timeout_s"), ("timeout_s=1", "body"),
        ("wait=fresh&wait=fresh", "wait"),
    ],
)  # fmt: skip
async def test_bad_waits(served: Served, query: str, field: str) -> None:
    status, body = await served.call("GET", f"/v1/sessions/s?{query}")
    assert (status, body["error"]["code"]) == (422, "invalid_input")
    assert body["error"]["details"]["field"] == field


async def test_without_a_model_nothing_becomes_fresh(served: Served) -> None:
    await served.ok("POST", "/v1/sessions/s/turns", {"ids": [1]})
    status, body = await served.call("GET", FRESH)
    assert (status, body["error"]["code"]) == (503, "bad_model")
