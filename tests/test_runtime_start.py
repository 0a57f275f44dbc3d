"""The runtime starts whole or not at all, with a model and without one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from shadow_reader.errors import (
    JournalFormatError,
    JournalFullError,
    JournalLockedError,
    ModelError,
    NotFoundError,
    ShadowError,
    ShutDownError,
    VocabularyError,
)
from shadow_reader.events import types as t
from shadow_reader.runtime import Runtime
from shadow_reader.store.memory import MemoryJournal
from tests.fakes import FakeEngine, fake_vocabulary, settle, steps
from tests.runtimes import (
    REPOSITORY,
    nothing_left_open,
    reopened,
    runtime,
    settings,
    until,
    whole_turn,
)


async def turn_is_over(shadow: Runtime, session: str) -> bool:
    return not (await shadow.session_status(session)).running


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
