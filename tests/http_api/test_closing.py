"""The end: waits are told, what was submitted is committed and acknowledged, and it is soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.config import Settings
from shadow_reader.errors import ShutDownError
from shadow_reader.events import types as t
from shadow_reader.http.closing import Closing
from shadow_reader.http.serve import SHUTDOWN_S
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.vocabulary import load_vocabulary
from tests.http_api.bare import open_feed
from tests.http_api.fake_engine import FakeEngine
from tests.http_api.serving import Served, lines, serving, until

HEAD = {"session": "s", "turn": "t"}
PROMPT = {"kind": "prompt", **HEAD, "ids": [1]}


def output(offset: int) -> dict[str, Any]:
    return {"kind": "output", **HEAD, "offset": offset, "ids": [offset]}


@asynccontextmanager
async def closable(folder: Path, **more: Any) -> AsyncIterator[tuple[Served, asyncio.Event]]:
    """A service in a task of its own, which ends once the event is set."""
    ready: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(folder, **more) as served:
            ready.set_result(served)
            await stop.wait()
            await served.http.close()

    task = asyncio.create_task(serve())
    try:
        yield await ready, stop
    finally:
        stop.set()
        await task


async def journaled(folder: Path) -> list[t.Entry]:
    """What the journal holds, read by a new runtime."""
    async with Runtime(Settings(journal=folder / "shadow.db")) as runtime:
        return [entry async for entry in runtime.journal_entries()]


async def test_an_open_feed_ends_with_its_last_replies(tmp_path: Path) -> None:
    async with closable(tmp_path) as (served, stop), open_feed(served) as duplex:
        await duplex.send(lines(PROMPT, *(output(k) for k in range(100))))
        replies = [await duplex.reply() for _ in range(101)]
        began = time.monotonic()
        stop.set()
        last = await duplex.reply()
        assert (last["line"], last["error"]["code"]) == (102, "shut_down")
        assert await duplex.ended()
        assert time.monotonic() - began < SHUTDOWN_S
    assert all(reply["ok"] for reply in replies)
    entries = await journaled(tmp_path)
    assert entries[100].seq == replies[-1]["seq"] - 1


async def test_what_a_busy_feed_was_told_is_in_the_journal(tmp_path: Path) -> None:
    """The service closes while lines pour in: every ok is there, and nothing is half there."""
    async with closable(tmp_path) as (served, stop), open_feed(served) as duplex:

        async def pour() -> None:
            await duplex.send(lines(PROMPT))
            for k in range(0, 100_000, 50):
                await duplex.send(lines(*(output(i) for i in range(k, k + 50))))

        pouring = asyncio.create_task(pour())
        acknowledged = [await duplex.reply() for _ in range(500)]
        stop.set()
        while (reply := await duplex.reply())["ok"]:
            acknowledged.append(reply)
        assert reply["error"]["code"] == "shut_down"
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
    entries = await journaled(tmp_path)
    outputs = [entry for entry in entries if isinstance(entry.event, t.Output)]
    assert [entry.event.offset for entry in outputs if isinstance(entry.event, t.Output)] == list(
        range(len(outputs))
    )
    assert {reply["seq"] for reply in acknowledged} <= {entry.seq for entry in entries}


async def test_a_feed_whose_client_reads_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with (
        closable(tmp_path) as (served, stop),
        open_feed(served, read_buffer=4096) as duplex,
    ):
        body = lines(PROMPT, *(output(k) for k in range(20_000)))
        sending = asyncio.create_task(duplex.send(body))
        await until(lambda: served.runtime.journal.stats().last_seq > 100, "some lines")
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        began = time.monotonic()
        stop.set()
        await until(lambda: served.runtime.state == "closing", "the end")
        assert time.monotonic() - began < 3 * SHUTDOWN_S
    outputs = [e for e in await journaled(tmp_path) if isinstance(e.event, t.Output)]
    assert 0 < len(outputs) < 20_000


async def test_an_event_stream_ends_in_order(tmp_path: Path) -> None:
    async with closable(tmp_path) as (served, stop):
        reader, writer = await served.connect()
        writer.write(b"GET /v1/journal/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        began = time.monotonic()
        stop.set()
        rest = await reader.read()
        assert rest.endswith(b"0\r\n\r\n")
        assert time.monotonic() - began < SHUTDOWN_S
        writer.close()


async def test_a_waiting_question_is_told(tmp_path: Path) -> None:
    engine = FakeEngine()
    more = {"engine": engine, "vocabulary": load_vocabulary("random:tiny")}
    async with closable(tmp_path, **more) as (served, stop):
        await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1, 2]})
        engine.gate.clear()
        reader, writer = await served.connect()
        body = b'{"session":"s","question_ids":[1],"choices":["a","b"]}'
        writer.write(
            b"POST /v1/conductor/shadow/ask HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        await asyncio.to_thread(engine.asked.wait, 10)
        stop.set()
        answer = await reader.read()
        engine.gate.set()
        assert b" 503 " in answer.splitlines()[0]
        assert b'"code":"shut_down"' in answer
        writer.close()
    kinds = [type(entry.event).__name__ for entry in await journaled(tmp_path)]
    assert "QuestionEnded" in kinds


async def test_readiness_says_when_it_closes(tmp_path: Path) -> None:
    async with closable(tmp_path) as (served, stop):
        reader, writer = await served.connect()
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        stop.set()
        await reader.read()
        writer.close()
        await until(lambda: served.runtime.state == "closing", "the end")
        with pytest.raises(ConnectionRefusedError):
            await served.connect()


async def test_a_wait_begun_after_the_end_ends_at_once() -> None:
    closing = Closing()
    closing.close()
    closing.close()
    with pytest.raises(ShutDownError):
        async with closing.interruptible():
            await asyncio.sleep(60)


async def test_a_wait_is_interrupted_and_a_timeout_of_its_own_is_not_mistaken() -> None:
    closing = Closing()
    with pytest.raises(TimeoutError):
        async with closing.interruptible(), asyncio.timeout(0):
            await asyncio.sleep(60)

    async def wait() -> None:
        async with closing.interruptible():
            await asyncio.sleep(60)

    waits = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    closing.close()
    answers = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ShutDownError] * 3


async def test_a_cancelled_wait_stays_cancelled() -> None:
    closing = Closing()

    async def wait() -> None:
        async with closing.interruptible():
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
