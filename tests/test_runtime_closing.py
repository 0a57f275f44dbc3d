"""The runtime closes in any state, and what was acknowledged survives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from shadow_reader.errors import NotFoundError, ShutDownError
from shadow_reader.events import types as t
from shadow_reader.runtime import Runtime
from tests.fakes import GRID, FakeEngine, settle, steps
from tests.runtimes import (
    PATIENCE_S,
    REPOSITORY,
    entries,
    nothing_left_open,
    questions_wait,
    reopened,
    runtime,
    until,
    whole_turn,
)


async def nothing_is_known(shadow: Runtime, engine: FakeEngine) -> bool:
    return not engine.states and not await entries(shadow, kinds=["prompt"])


class Held:
    """Holds the engine inside a method until it is let go."""

    def __init__(self, engine: FakeEngine, method: str) -> None:
        self.method, self.inside, self.go_on = method, threading.Event(), threading.Event()
        engine.before = self

    def __call__(self, method: str, _session: str) -> None:
        if method == self.method:
            self.inside.set()
            assert self.go_on.wait(PATIENCE_S)

    async def is_inside(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, PATIENCE_S)


# -- erasing -----------------------------------------------------------------------------------


async def test_an_erasure_whose_caller_goes_away_drops_the_state_too(tmp_path: Path) -> None:
    for moment in range(6):
        engine = FakeEngine()
        (tmp_path / str(moment)).mkdir()
        async with runtime(tmp_path / str(moment), engine) as shadow:
            await whole_turn(shadow, "s", [1] * 40)
            await shadow.wait_fresh("s")
            erasing = asyncio.create_task(shadow.erase("s"))
            await steps(1 + moment)
            erasing.cancel()
            await settle(erasing)
            await until(partial(nothing_is_known, shadow, engine))


async def test_an_erasure_waits_for_what_runs_on_the_state(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with runtime(tmp_path, engine) as shadow:
        held = Held(engine, "read_chunk")
        await whole_turn(shadow, "s", [1] * 400)
        await held.is_inside()
        asking = asyncio.create_task(shadow.ask("s", "q", ["a", "b"]))
        await until(partial(questions_wait, shadow, 1))
        erasing = asyncio.create_task(shadow.erase("s"))
        (result,) = await settle(asking)
        assert isinstance(result, NotFoundError)
        assert not erasing.done()
        held.go_on.set()
        await erasing
        assert engine.states == {}


# -- faults and closing ------------------------------------------------------------------------


async def test_a_reader_that_dies_is_said_and_the_journal_goes_on(tmp_path: Path) -> None:
    engine = FakeEngine()

    def explode(method: str, _session: str) -> None:
        if method == "read_chunk":
            raise AssertionError("a bug of ours")

    engine.before = explode
    async with runtime(tmp_path, engine) as shadow:
        await shadow.prompt("s", [1] * 20, turn="t1")
        waiting = asyncio.create_task(shadow.wait_fresh("s"))
        asking = asyncio.create_task(shadow.ask("s", "q", ["a", "b"]))
        await until(partial(questions_wait, shadow, 1))
        await shadow.end("s", "t1")
        results = await settle(waiting, asking)
        assert all(isinstance(result, ShutDownError) for result in results), results
        status = await shadow.status()
        assert status.state == "failed"
        assert "a bug of ours" in status.reason
        for call in (
            shadow.ask("s", "q", ["a", "b"]),
            shadow.wait_fresh("s"),
            shadow.digest("s"),
        ):
            with pytest.raises(ShutDownError, match="a bug of ours"):
                await call
        assert (await shadow.prompt("s", [1] * 30, turn="t2")).known == 30
        await shadow.end("s", "t2")
        assert (await shadow.session_status("s")).open_questions == 0
    assert (await reopened(tmp_path))[-1] == t.EngineStopped("closed")


async def test_closing_ends_what_is_in_flight_and_journals_it_before_the_end(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    async with nothing_left_open():
        async with runtime(tmp_path, engine) as shadow:
            held = Held(engine, "read_chunk")
            await whole_turn(shadow, "s", [1] * 400)
            await held.is_inside()
            asking = [
                asyncio.create_task(shadow.ask("s", "q", ["a", "b"])),
                asyncio.create_task(shadow.ask("s", "q", ["a", "b"], wait="now")),
            ]
            waiting = asyncio.create_task(shadow.wait_fresh("s"))
            await until(partial(questions_wait, shadow, 2))
            last = asyncio.create_task(shadow.prompt("other", [1, 2], turn="t1"))
            await steps(1)
            asyncio.get_running_loop().call_later(0.05, held.go_on.set)
        results = await settle(*asking, waiting)
        assert all(isinstance(result, ShutDownError) for result in results), results
        assert (await last).known == 2
        for call in (shadow.prompt("s", [1]), shadow.ask("s", "q", ["a", "b"])):
            with pytest.raises(ShutDownError):
                await call
    found = await reopened(tmp_path)
    assert found[-1] == t.EngineStopped("closed")
    questions = [event.question for event in found if isinstance(event, t.Question)]
    ends = [event for event in found if isinstance(event, t.QuestionEnded)]
    assert sorted(end.question for end in ends) == sorted(questions)
    assert [end.reason for end in ends] == ["failed"] * 2


async def test_no_question_ends_after_the_service_did(tmp_path: Path) -> None:
    for moment in range(1, 30, 2):
        folder = tmp_path / str(moment)
        folder.mkdir()
        async with runtime(folder) as shadow:
            await whole_turn(shadow, "s", [1] * 100)
            asking = asyncio.create_task(shadow.ask("s", "q", ["a", "b"]))
            await steps(moment)
        await settle(asking)
        found = await reopened(folder)
        assert found[-1] == t.EngineStopped("closed")
        questions = sum(isinstance(event, t.Question) for event in found)
        assert questions == sum(isinstance(e, t.Answer | t.QuestionEnded) for e in found)


async def fail_inside(shadow: Runtime) -> None:
    async with shadow:
        await whole_turn(shadow, "s", [1] * 400)
        raise ZeroDivisionError


async def test_leaving_by_an_exception_or_before_anything_happened_closes_all(
    tmp_path: Path,
) -> None:
    async with nothing_left_open():
        with pytest.raises(ZeroDivisionError):
            await fail_inside(runtime(tmp_path))
        async with runtime(tmp_path):
            pass
        async with runtime(tmp_path) as shadow:
            pass
        assert shadow.state == "closing"
        await shadow.__aexit__(None, None, None)


async def test_a_cancelled_closing_closes_all_the_same(tmp_path: Path) -> None:
    for moment in (1, 2, 3, 4, 5, 8, 13, 21):
        engine = FakeEngine()
        async with nothing_left_open():
            shadow = await runtime(tmp_path, engine).__aenter__()
            await whole_turn(shadow, f"s{moment}", [1] * 4000)
            closing = asyncio.create_task(shadow.__aexit__(None, None, None))
            await steps(moment)
            closing.cancel()
            await settle(closing)
        assert engine.closed == 1
        with pytest.raises(ShutDownError):
            await shadow.prompt("s", [1])


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """The process dies in the middle of a turn, with a question open, without closing anything."""
    program = """
import asyncio, os, sys
from pathlib import Path
from tests.test_runtime import runtime

async def main() -> None:
    shadow = await runtime(Path(sys.argv[1])).__aenter__()
    await shadow.prompt("s", list(range(100)), turn="t1")
    asyncio.create_task(shadow.ask("s", "q", ["a", "b"]))
    for offset in range(50):
        accepted = await shadow.output("s", "t1", offset=offset, ids=[offset])
    while not (await shadow.session_status("s")).open_questions:
        await asyncio.sleep(0)
    print(accepted.known, accepted.seq, flush=True)
    os._exit(9)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (9, "")
    known, _seq = map(int, done.stdout.split())

    async def look() -> None:
        async with runtime(tmp_path) as shadow:
            status = await shadow.session_status("s")
            assert (status.known, status.running, status.output) == (known, True, 50)
            again = await shadow.output("s", "t1", offset=49, ids=[49, 50])
            assert again.output == 51
            await shadow.end("s", "t1")
            assert (await shadow.wait_fresh("s")).committed == 151 // GRID * GRID
            (question,) = await entries(shadow, kinds=["question"])
            (ended,) = await entries(shadow, kinds=["question.ended"])
            assert isinstance(question.event, t.Question)
            assert ended.event == t.QuestionEnded(question.event.question, "restart")

    asyncio.run(look())
