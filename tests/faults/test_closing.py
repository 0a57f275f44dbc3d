"""A closing that is cancelled at any await still lets go of everything, and loses nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path

import pytest

from shadow_reader.config import Settings
from shadow_reader.events.ids import Ids
from shadow_reader.runtime import Runtime
from tests.fakes import FakeEngine, fake_vocabulary
from tests.faults.moving import STRIDES, CancelledAt, prompt_of

SESSIONS = ("a", "b", "c")
CHUNKS = 40
QUESTION = [1, 2, 3]


def a_runtime(folder: Path) -> Runtime:
    settings = Settings(
        journal=folder / "shadow.db", disk=str(folder / "snapshots"), foreground="lease"
    )
    return Runtime(settings, engine=FakeEngine(), vocabulary=fake_vocabulary())


async def opened_and_fed(folder: Path) -> Runtime:
    runtime = a_runtime(folder)
    await runtime.__aenter__()
    for session in SESSIONS:
        await runtime.prompt(session, prompt_of(session, CHUNKS), turn="t1")
        await runtime.output(session, "t1", offset=0, ids=[1, 2, 3])
        await runtime.wait_fresh(session)
    return runtime


async def settled() -> None:
    """What goes on behind a cancelled caller comes to its end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, late = await asyncio.wait(left, timeout=20)
        assert not late


async def assert_whole(folder: Path) -> None:
    """A new service on the same files: nothing acknowledged is missing, states are exact."""
    async with a_runtime(folder) as shadow:
        for session in SESSIONS:
            await shadow.end(session, "t1")
        for session in SESSIONS:
            known = Ids.of([*prompt_of(session, CHUNKS), 1, 2, 3])
            assert (await shadow.session_status(session)).known == len(known)
            await shadow.ask(session, QUESTION, ["yes", "no"])
            digest = await shadow.digest(session)
            assert digest.digest == FakeEngine.hash_of(known.take(digest.position))
            assert digest.position == CHUNKS * 8


@STRIDES
async def test_a_closing_cancelled_at_any_await(
    tmp_path: Path, stride: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    for number in itertools.count(0, stride):
        folder = tmp_path / str(number)
        folder.mkdir()
        runtime = await opened_and_fed(folder)
        cut = CancelledAt(runtime.__aexit__(None, None, None), number)

        async def close(cut: CancelledAt[None] = cut) -> None:
            await cut

        await asyncio.wait([asyncio.create_task(close())])
        await settled()
        await assert_whole(folder)
        if not cut.reached:
            assert number > 10
            return


@STRIDES
async def test_a_start_cancelled_at_any_await(
    tmp_path: Path, stride: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    await (await opened_and_fed(tmp_path)).__aexit__(None, None, None)
    for number in itertools.count(0, stride):
        runtime = a_runtime(tmp_path)
        cut = CancelledAt(runtime.__aenter__(), number)

        async def start(cut: CancelledAt[Runtime] = cut) -> Runtime:
            return await cut

        task = asyncio.create_task(start())
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().__aexit__(None, None, None)
        await settled()
        if not cut.reached:
            break
    await assert_whole(tmp_path)
