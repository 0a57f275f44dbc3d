"""Many at once: one order of things for everybody, and nobody's going away undoes anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fake_journal import FlakyJournal
from tests.http_api.fake_engine import GRID, FakeEngine
from tests.http_api.serving import PATIENCE_S, Served, lines, serving, until

ASK = "/v1/conductor/shadow/ask"
QUESTION = {"session": "s", "question_ids": [1, 2], "choices": ["yes", "no"]}


async def kinds(served: Served) -> list[str]:
    """The kinds of everything journaled of sessions, in order."""
    async with served.http.get(served.address.url + "/v1/journal") as reply:
        found = [part async for part in reply.content]
    return [line.decode().partition('"kind":"')[2].partition('"')[0] for line in found]


async def test_many_sessions_at_once(served: Served) -> None:
    async def one(name: str) -> int:
        turns = f"/v1/sessions/{name}/turns"
        await served.ok("POST", turns, {"turn": "t", "ids": [1, 2]})
        for k in range(5):
            await served.ok("POST", f"{turns}/t/output", {"offset": k, "ids": [k]})
        accepted = await served.ok("POST", f"{turns}/t/end", {"produced": 5})
        return int(accepted["known"])

    assert await asyncio.gather(*(one(f"s{n}") for n in range(60))) == [7] * 60
    status = await served.ok("GET", "/v1/conductor/shadow/status")
    assert status["totals"]["sessions"] == 60
    assert status["totals"]["running"] == 0
    assert status["journal"]["last_seq"] == 60 * 8


async def test_two_clients_of_one_session_one_order_wins(served: Served) -> None:
    """Both want to say what the next id is; exactly one of them may, every time."""
    await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1]})
    path = "/v1/sessions/s/turns/t/output"
    for offset in range(40):
        bodies = [{"offset": offset, "ids": [id_]} for id_ in (7, 8)]
        answers = await asyncio.gather(*(served.call("POST", path, body) for body in bodies))
        assert sorted(status for status, _ in answers) == [200, 409]
        lost = next(body["error"] for status, body in answers if status == 409)
        assert lost["details"]["expected"] in (7, 8)
        assert lost["details"]["known"] == offset + 1
    assert (await served.ok("GET", "/v1/sessions/s"))["output"] == 40


async def test_two_clients_begin_the_same_turn(served: Served) -> None:
    async def begin(ids: list[int]) -> tuple[int, Any]:
        return await served.call("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": ids})

    answers = await asyncio.gather(begin([1]), begin([2]), begin([1]), begin([2]))
    assert Counter(status for status, _ in answers) == {200: 2, 409: 2}
    assert await kinds(served) == ["session.opened", "prompt"]


async def test_repeated_messages_may_overlap(served: Served) -> None:
    await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1]})
    body = {"offset": 0, "ids": [1, 2, 3]}
    same = [served.ok("POST", "/v1/sessions/s/turns/t/output", body) for _ in range(20)]
    answers = await asyncio.gather(*same)
    assert sum(answer["seq"] is not None for answer in answers) == 1
    assert {answer["known"] for answer in answers} == {4}


async def test_a_session_is_erased_while_it_is_fed(served: Served) -> None:
    """Every message lands before the erasure or after it, and says which."""

    async def feed(n: int) -> tuple[int, Any]:
        return await served.call("POST", "/v1/sessions/s/turns", {"turn": f"t{n}", "ids": [n]})

    await feed(0)
    answers = await asyncio.gather(
        *(feed(n) for n in range(1, 20)), served.call("DELETE", "/v1/sessions/s"),
        *(feed(n) for n in range(20, 40)),
    )  # fmt: skip
    assert {status for status, _ in answers} == {200}
    found = await kinds(served)
    assert found[:2] == ["session.erased", "session.opened"] or found == ["session.erased"]


HALF_A_HEAD = [
    b"POST /v1/se",
    b"POST /v1/sessions/s/turns HTTP/1.1\r\nHost: local",
]
HALF_A_BODY = [
    b"POST /v1/sessions/s/turns HTTP/1.1\r\nHost: localhost\r\nContent-Length: 22\r\n\r\n",
    b'POST /v1/sessions/s/turns HTTP/1.1\r\nHost: localhost\r\nContent-Length: 22\r\n\r\n{"tur',
]
HALF_A_REPLY = [
    b"POST /v1/feed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    b'POST /v1/feed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"k',
    b"GET /v1/journal/stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/journal HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


@pytest.mark.parametrize("sent", [*HALF_A_HEAD, *HALF_A_BODY, *HALF_A_REPLY])
async def test_a_client_that_goes_halfway_changes_nothing(served: Served, sent: bytes) -> None:
    before, tasks = await served.everything(), len(asyncio.all_tasks())
    for _ in range(3):
        reader, writer = await served.connect()
        writer.write(sent)
        await writer.drain()
        if sent in HALF_A_HEAD:
            await until(lambda: len(asyncio.all_tasks()) > tasks, "the connection's task")
        elif sent in HALF_A_BODY:
            await until(lambda: served.used("requests"), "a handler that waits for the body")
        else:
            assert (await reader.readline()).split()[1] == b"200"
        writer.transport.abort()
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "the requests' tasks to end")
    assert await served.everything() == before


async def test_a_client_that_goes_after_sending_has_said_all_or_nothing(served: Served) -> None:
    tasks = len(asyncio.all_tasks())
    for n in range(30):
        _, writer = await served.connect()
        body = b'{"turn":"t","ids":[1]}'
        writer.write(
            b"POST /v1/sessions/s%d/turns HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"\r\n%s" % (n, len(body), body)
        )
        await writer.drain()
        for _ in range(n % 7):
            await asyncio.sleep(0)
        writer.transport.abort()
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "the requests' tasks to end")
    found = await kinds(served)
    assert found == ["session.opened", "prompt"] * (len(found) // 2)
    for n in range(30):
        await served.ok("POST", f"/v1/sessions/s{n}/turns", {"turn": "t", "ids": [1]})
    assert await kinds(served) == ["session.opened", "prompt"] * 30


async def test_a_question_is_answered(asking: Served) -> None:
    await asking.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1] * (GRID + 3)})
    await asking.ok("POST", "/v1/sessions/s/turns/t/end", {})
    reply = await asking.ok("POST", ASK, QUESTION)
    assert (reply["label"], reply["letter"], reply["session"]) == ("yes", "A", "s")
    assert reply["probabilities"] == {"yes": 0.5, "no": 0.5}
    assert (reply["position"], reply["behind"]) == (GRID + 3, 0)
    text = {"session": "s", "question": "Is it done?", "choices": ["a", "b"], "wait": "now"}
    assert (await asking.ok("POST", ASK, text))["label"] == "a"
    digest = await asking.ok("GET", "/v1/sessions/s/digest")
    assert (digest["session"], digest["position"]) == ("s", GRID)
    async with asking.http.get(asking.address.url + "/v1/sessions/s/state") as reply_:
        assert reply_.content_type == "application/octet-stream"
        assert await reply_.read() == b"state of s"


async def test_a_question_whose_client_leaves_is_taken_back(
    asking: Served, engine: FakeEngine
) -> None:
    await asking.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1, 2]})
    engine.gate.clear()
    leaving = asyncio.create_task(asking.call("POST", ASK, QUESTION))
    await until(engine.asked.is_set, "the question at the engine")
    leaving.cancel()
    await until_journaled(asking, "question.ended")
    engine.gate.set()
    assert (await asking.ok("POST", ASK, QUESTION))["label"] == "yes"
    found = await kinds(asking)
    assert found[-4:-1] == ["question", "question.ended", "question"]
    assert (await asking.ok("GET", "/v1/sessions/s"))["open_questions"] == 0


async def test_a_question_that_takes_too_long(asking: Served, engine: FakeEngine) -> None:
    await asking.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1, 2]})
    engine.gate.clear()
    status, body = await asking.call("POST", ASK, {**QUESTION, "timeout_s": 0.05})
    engine.gate.set()
    assert (status, body["error"]["code"]) == (504, "timeout")
    assert body["error"]["details"] == {"field": "timeout_s", "limit": 0.05}


async def test_an_erasure_goes_on_without_its_client(tmp_path: Path) -> None:
    journal = FlakyJournal()
    async with serving(tmp_path, journal=journal) as served:
        await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1, 2]})
        journal.gate.clear()
        for _ in range(3):
            leaving = asyncio.create_task(served.call("DELETE", "/v1/sessions/s"))
            await until(lambda: served.used("erasures"), "the erasure to begin")
            await until(lambda: served.used("requests"), "the request")
            leaving.cancel()
            await until(lambda: not served.used("requests"), "the request to end")
        assert served.used("erasures") == 1
        journal.gate.set()
        await until(lambda: not served.used("erasures"), "the erasure to end")
        assert (await served.call("GET", "/v1/sessions/s"))[0] == 404
        assert await kinds(served) == ["session.erased"]


async def test_the_loop_is_not_held_up_by_a_long_feed(served: Served) -> None:
    """Requests beside a feed wait for a few lines of it, not for all that has come."""
    head = {"session": "s", "turn": "t"}
    outputs = [{"kind": "output", **head, "offset": k, "ids": [k]} for k in range(6000)]
    body = lines({"kind": "prompt", **head, "ids": [1]}, *outputs)
    feeding = asyncio.create_task(served.feed(body))
    asked = 0
    while not feeding.done():
        await served.ok("GET", "/healthz")
        asked += 1
    await feeding
    assert asked > 20


async def until_journaled(served: Served, kind: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if kind in await kinds(served):
                return
            await asyncio.sleep(0.01)
