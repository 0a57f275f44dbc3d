"""The composition root: starts whole or not at all, closes in any state, and can be embedded."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.config import Settings
from shadow_reader.errors import (
    AskTimeoutError,
    JournalFormatError,
    JournalFullError,
    JournalLockedError,
    ModelError,
    NotFoundError,
    ShadowError,
    ShutDownError,
    TooLargeError,
    VocabularyError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.sessions import LiveSession
from shadow_reader.shadow.status import SessionStatus, Totals, session_status
from shadow_reader.store.memory import MemoryJournal
from tests.fakes import GRID, FakeEngine, events_of, fake_vocabulary, settle, steps

REPOSITORY = Path(__file__).parents[1]
PATIENCE_S = 30.0


def settings(folder: Path, **changes: Any) -> Settings:
    return Settings(**{"journal": folder / "shadow.db", **changes})


def runtime(folder: Path, engine: Engine | None = None, **changes: Any) -> Runtime:
    """A runtime with its journal in ``folder`` and an engine that only counts."""
    return Runtime(
        settings(folder, **changes), engine=engine or FakeEngine(), vocabulary=fake_vocabulary()
    )


async def whole_turn(shadow: Runtime, session: str, ids: list[int], turn: str = "t1") -> None:
    await shadow.prompt(session, ids, turn=turn)
    await shadow.end(session, turn)


async def entries(shadow: Runtime, **filters: Any) -> list[t.Entry]:
    return [entry async for entry in shadow.journal_entries(**filters)]


async def reopened(folder: Path) -> list[object]:
    """The events of the journal that a closed service left."""
    async with Runtime(settings(folder)) as shadow:
        return events_of(await entries(shadow))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that is about to happen; fail if it does not."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.005)


async def turn_is_over(shadow: Runtime, session: str) -> bool:
    return not (await shadow.session_status(session)).running


async def nothing_is_known(shadow: Runtime, engine: FakeEngine) -> bool:
    return not engine.states and not await entries(shadow, kinds=["prompt"])


async def questions_wait(shadow: Runtime, count: int) -> bool:
    return (await shadow.status()).totals.open_questions == count


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


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # links that vanish as we look
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
        except OSError:
            continue
    return [name for name in found if name.startswith("/") and "shadow" in name]


def our_threads() -> list[str]:
    """Threads beside the loop's own pool, which asyncio keeps until the loop ends."""
    return sorted(
        thread.name
        for thread in threading.enumerate()
        if not thread.name.startswith(("asyncio_", "uvloop_", "MainThread"))
    )


@asynccontextmanager
async def nothing_left_open() -> AsyncIterator[None]:
    before = our_threads(), open_files()
    yield
    for _ in range(200):
        if (our_threads(), open_files()) == before:
            return
        await asyncio.sleep(0.01)  # a thread that was told to end takes a moment to be gone
    assert (our_threads(), open_files()) == before


# -- without a model ---------------------------------------------------------------------------


async def test_without_a_model_everything_is_journaled_and_nothing_is_read(tmp_path: Path) -> None:
    async with Runtime(settings(tmp_path)) as shadow:
        assert (shadow.state, bool(shadow.reason)) == ("off", True)
        accepted = await shadow.prompt("s", [1, 2, 3], turn="t1", router="small")
        assert (accepted.known, accepted.seq) == (3, 2)
        await shadow.first_token("s", "t1")
        await shadow.output("s", "t1", offset=0, ids=[4, 5])
        await shadow.end("s", "t1", produced=2)
        status = await shadow.session_status("s")
        assert (status.known, status.committed, status.behind, status.fresh) == (5, 0, 5, False)
        assert status.note == shadow.reason
        whole = await shadow.status()
        assert (whole.state, whole.model, whole.totals.known) == ("off", None, 5)
        for call in (
            shadow.ask("s", "q", ["a", "b"]),
            shadow.wait_fresh("s"),
            shadow.digest("s"),
            shadow.export("s"),
        ):
            with pytest.raises(ModelError):
                await call
        with pytest.raises(NotFoundError):
            await shadow.session_status("nobody")
    kinds = [type(event).__name__ for event in await reopened(tmp_path)]
    assert kinds == ["SessionOpened", "Prompt", "FirstToken", "Output", "TurnEnded"]


def test_without_a_model_torch_is_not_imported(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from shadow_reader.config import Settings
from shadow_reader.runtime import Runtime

async def main() -> None:
    async with Runtime(Settings(journal=Path(sys.argv[1]))) as shadow:
        await shadow.prompt("s", [1, 2, 3], turn="t1")
        await shadow.end("s", "t1")
        await shadow.status()

asyncio.run(main())
heavy = {"torch", "transformers", "tokenizers", "safetensors", "aiohttp"} & set(sys.modules)
print(sorted(heavy))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path / "shadow.db")],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("[]", "", 0)


async def test_without_a_reader_turns_without_news_end_too(tmp_path: Path) -> None:
    """Else every session whose client went away would stay in memory for ever."""
    async with Runtime(settings(tmp_path, turn_timeout_s=0.05, sessions=2)) as shadow:
        for number in range(4):
            await shadow.prompt(f"s{number}", [1], turn="t1")
            await until(partial(turn_is_over, shadow, f"s{number}"))


# -- starting ----------------------------------------------------------------------------------


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "empty model").mkdir()
    (tmp_path / "no journal").write_bytes(b"this is not a journal" * 100)
    engine = FakeEngine()
    full = MemoryJournal(limit_bytes=10)
    cases: list[tuple[type[ShadowError], Runtime]] = [
        (ModelError, Runtime(settings(tmp_path, model=str(tmp_path / "nowhere")))),
        (ModelError, Runtime(settings(tmp_path, model=str(tmp_path / "empty model")))),
        (JournalFormatError, Runtime(settings(tmp_path, journal=tmp_path / "no journal"))),
        (
            VocabularyError,
            Runtime(settings(tmp_path, model=str(tmp_path / "empty model")), engine=engine),
        ),
        (
            JournalFullError,
            Runtime(settings(tmp_path), engine=engine, journal=full, vocabulary=fake_vocabulary()),
        ),
    ]
    for error, shadow in cases:
        async with nothing_left_open():
            with pytest.raises(error):
                await shadow.__aenter__()
        for call in (shadow.prompt("s", [1]), shadow.status(), shadow.erase("s")):
            with pytest.raises(ShutDownError):
                await call
    assert engine.closed == 2
    with pytest.raises(ShutDownError):
        await full.room()


async def test_a_second_service_on_the_same_journal_is_refused_and_harms_nothing(
    tmp_path: Path,
) -> None:
    async with runtime(tmp_path) as shadow:
        await whole_turn(shadow, "s", [1])
        await shadow.wait_fresh("s")  # whatever opens late is open now
        async with nothing_left_open():
            with pytest.raises(JournalLockedError):
                await runtime(tmp_path).__aenter__()
        assert (await shadow.prompt("s", [1, 2], turn="t2")).known == 2
    async with runtime(tmp_path) as again:
        assert (await again.session_status("s")).known == 2


async def test_a_start_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    for moment in (0, 1, 2, 3, 5, 8, 13, 21, 34):
        async with nothing_left_open():
            shadow = runtime(tmp_path)
            starting = asyncio.create_task(shadow.__aenter__())
            await steps(moment)
            starting.cancel()
            await settle(starting)
            if not starting.cancelled():
                await shadow.__aexit__(None, None, None)


async def test_the_engine_is_named_in_the_journal_first_and_its_end_last(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with runtime(tmp_path, engine) as shadow:
        await whole_turn(shadow, "s", list(range(100)))
        await shadow.wait_fresh("s")
    found = await reopened(tmp_path)
    assert isinstance(found[0], t.EngineLoaded)
    assert found[0].engine == engine.identity.engine
    assert found[-1] == t.EngineStopped("closed")
    assert engine.closed == 1


# -- the library -------------------------------------------------------------------------------


async def test_a_session_from_prompt_to_answer(tmp_path: Path) -> None:
    async with runtime(tmp_path) as shadow:
        assert (shadow.state, shadow.reason) == ("ready", "")
        await shadow.prompt("s", list(range(50)), turn="t1")
        await shadow.output("s", "t1", offset=0, ids=[7] * 20)
        await shadow.end("s", "t1")
        status = await shadow.wait_fresh("s")
        assert (status.known, status.committed, status.fresh) == (70, 64, True)
        assert status.checkpoints == (48,)
        text = await shadow.ask("s", "Is it done?", ["yes", "no"])
        ids = await shadow.ask("s", [1, 2, 3], ["yes", "no", "maybe"], wait="now")
        assert (text.position, text.behind, ids.position) == (70, 0, 70)
        assert sum(ids.probabilities.values()) == pytest.approx(1)
        status = await shadow.session_status("s")
        assert [answer.question for answer in status.answers] == [text.question, ids.question]
        digest = await shadow.digest("s")
        expected = [*range(50), *[7] * 20][:64]
        assert (digest.position, digest.digest) == (64, FakeEngine.hash_of(Ids.of(expected)))
        assert await shadow.export("s") == Ids.of(expected).to_bytes()
        journaled = await entries(shadow, session="s")
        erased = await shadow.erase("s")
        assert (erased.session, erased.events) == ("s", len(journaled))
        with pytest.raises(NotFoundError):
            await shadow.session_status("s")
        with pytest.raises(NotFoundError):
            await shadow.digest("s")


async def test_digest_and_export_of_what_is_not_there_or_too_large(tmp_path: Path) -> None:
    async with runtime(tmp_path, export_bytes=1024) as shadow:
        for call in (shadow.digest("nobody"), shadow.export("nobody")):
            with pytest.raises(NotFoundError):
                await call
        await shadow.prompt("short", [1, 2], turn="t1")
        with pytest.raises(NotFoundError):
            await shadow.digest("short")
        await whole_turn(shadow, "long", [1] * 400)
        await shadow.end("short", "t1")
        await shadow.wait_fresh("long")
        with pytest.raises(TooLargeError):
            await shadow.export("long")


async def test_digest_and_export_wait_while_a_request_runs(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with runtime(tmp_path, engine) as shadow:
        await whole_turn(shadow, "s", [1] * 20)
        await shadow.wait_fresh("s")
        async with shadow.lease.request():
            calls = len(engine.calls)
            looking = [
                asyncio.create_task(shadow.digest("s")),
                asyncio.create_task(shadow.export("s")),
            ]
            await asyncio.sleep(0.05)
            assert len(engine.calls) == calls, "the device is the request's"
            waiters = [waiter.owner for waiter in (await shadow.status()).lease.waiters]
            assert waiters == ["digest", "export"]
        await asyncio.gather(*looking)


async def test_wait_fresh_says_when_it_does_not_come(tmp_path: Path) -> None:
    async with runtime(tmp_path) as shadow:
        await shadow.prompt("s", [1] * 20, turn="t1")
        with pytest.raises(AskTimeoutError) as error:
            await shadow.wait_fresh("s", timeout_s=0.05)
        assert error.value.details["limit"] == 0.05
        with pytest.raises(NotFoundError):
            await shadow.wait_fresh("nobody")


async def test_the_status_is_bounded_and_newest_first(tmp_path: Path) -> None:
    async with Runtime(settings(tmp_path)) as shadow:
        for number in range(120):
            await shadow.prompt(f"s{number:03}", [1] * (number + 1), turn="t1")
        status = await shadow.status()
        assert [s.session for s in status.sessions] == [f"s{n:03}" for n in range(119, 19, -1)]
        assert (status.totals.sessions, status.totals.running) == (120, 120)
        assert status.totals.known == status.totals.behind == sum(range(121))
        assert status.journal.events == 240


async def test_the_sums_of_the_status_are_those_of_its_sessions(tmp_path: Path) -> None:
    async with runtime(tmp_path, foreground="lease", branches=0) as shadow:
        for number in range(10):
            await shadow.prompt(f"s{number}", [number] * (GRID * number + 3), turn="t1")
            if number % 3:
                await shadow.end(f"s{number}", "t1")
            await shadow.wait_fresh(f"s{number}")
        asking = asyncio.create_task(shadow.ask("s1", "q", ["a", "b"]))
        async with shadow.lease.request():
            await until(partial(questions_wait, shadow, 1))
            await shadow.prompt("s9", [7] * 50, turn="t2")
            status = await shadow.status()
        await asking
        assert len(status.sessions) == 10
        assert status.totals == Totals(
            sessions=10,
            known=sum(s.known for s in status.sessions),
            behind=sum(s.behind for s in status.sessions),
            fresh=sum(s.fresh for s in status.sessions),
            running=sum(s.running for s in status.sessions),
            open_questions=1,
        )
        assert (status.totals.fresh, status.totals.running) == (9, 4)


async def test_the_status_makes_nothing_of_the_sessions_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(live: LiveSession, *more: Any) -> SessionStatus:
        made.append(live.session)
        return session_status(live, *more)

    monkeypatch.setattr("shadow_reader.runtime.session_status", counted)
    async with Runtime(settings(tmp_path, status_sessions=3)) as shadow:
        for number in range(50):
            await shadow.prompt(f"s{number:02}", [1], turn="t1")
        status = await shadow.status()
        assert made == ["s49", "s48", "s47"]
        assert status.totals.sessions == 50


async def test_the_status_says_how_the_last_turn_began_and_ended(tmp_path: Path) -> None:
    async with Runtime(settings(tmp_path)) as shadow:
        await shadow.prompt("s", [1, 2], turn="t1", router="code")
        status = await shadow.session_status("s")
        assert (status.router, status.reason, status.unsure) == ("code", None, False)
        await shadow.output("s", "t1", offset=0, ids=[3])
        await shadow.end("s", "t1", reason="length", produced=2)
        status = await shadow.session_status("s")
        assert (status.router, status.reason, status.unsure) == ("code", "length", True)
        await shadow.prompt("s", [1], turn="t2")
        status = await shadow.session_status("s")
        assert (status.router, status.reason, status.unsure) == (None, None, False)


async def test_two_runtimes_in_one_process_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with runtime(tmp_path / "a") as one, runtime(tmp_path / "b") as two:
        await asyncio.gather(whole_turn(one, "s", [1] * 40), whole_turn(two, "s", [2] * 70))
        statuses = await asyncio.gather(one.wait_fresh("s"), two.wait_fresh("s"))
        assert [status.committed for status in statuses] == [40, 64]
        async with one.lease.request():
            assert two.lease.free
            assert (await two.ask("s", "q", ["a", "b"])).position == 70


async def test_embedded_in_another_program_with_a_real_model(tmp_path: Path) -> None:
    """The shape of an engine's own process: its requests hold the lease, the shadow fits in."""
    made = settings(tmp_path, model="random:tiny", grid_ids=64, device="cpu")
    ids = [(31 * place) % 251 for place in range(300)]
    async with AsyncExitStack() as program:
        shadow = await program.enter_async_context(Runtime(made, vocabulary=fake_vocabulary()))

        async def request(session: str, prompt: list[int], output: list[int]) -> None:
            turn = f"turn of {len(prompt)}"
            async with shadow.lease.request():
                await shadow.prompt(session, prompt, turn=turn)
                for offset in range(0, len(output), 7):
                    delta = output[offset : offset + 7]
                    await shadow.output(session, turn, offset=offset, ids=delta)
                await shadow.end(session, turn)

        await asyncio.gather(
            request("in pieces", ids[:90], ids[90:140]), request("other", ids[::-1], [])
        )
        await shadow.wait_fresh("in pieces")
        await request("in pieces", ids[:200], ids[200:])
        await request("at once", ids, [])
        for session in ("in pieces", "at once", "other"):
            await shadow.wait_fresh(session, timeout_s=PATIENCE_S)
        digests = [await shadow.digest(name) for name in ("in pieces", "at once", "other")]
        assert digests[0].digest == digests[1].digest != digests[2].digest
        assert digests[0].position == 256
        replies = [
            await shadow.ask(name, [5, 6, 7], ["yes", "no"]) for name in ("in pieces", "at once")
        ]
        assert replies[0].probabilities == replies[1].probabilities
        assert (await shadow.digest("in pieces")).digest == digests[0].digest


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
