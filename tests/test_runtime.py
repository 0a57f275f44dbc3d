"""The library's calls on a running service, and its status."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import AskTimeoutError, NotFoundError, TooLargeError
from shadow_reader.events.ids import Ids
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.sessions import LiveSession
from shadow_reader.shadow.status import SessionStatus, Totals, session_status
from tests.fakes import GRID, FakeEngine, fake_vocabulary
from tests.runtimes import PATIENCE_S, entries, questions_wait, runtime, settings, until, whole_turn


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
