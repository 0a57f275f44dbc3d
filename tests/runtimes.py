"""Runtimes over a folder, and what a test looks at around them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shadow_reader.config import Settings
from shadow_reader.events import types as t
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.engine import Engine
from tests.fake_journal import events_of
from tests.fakes import FakeEngine, fake_vocabulary

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


async def questions_wait(shadow: Runtime, count: int) -> bool:
    return (await shadow.status()).totals.open_questions == count


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
