"""An engine with the reader and the mover that drive it: what comes and goes with a model.

Law: ``close`` finishes the chunk in flight, sees every question ended, writes every resident state
where there is a disk, and lets go of the engine, in this order and in any state. An engine whose
reader died is not trusted: nothing of it is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from shadow_reader.bounds import Bound
from shadow_reader.clock import Clock
from shadow_reader.config import Settings
from shadow_reader.errors import ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.snapshots import SnapshotStore
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.mover import Mover, SpillProgress
from shadow_reader.shadow.narrator import Narrator
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.windows import Windows

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshots' keeper, and the one thread that uses it."""

    disk: JobThread
    store: SnapshotStore


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is there whether a model is loaded or not.

    Attributes:
        device: the one thread that uses the engine. snapshots: None without a disk.
        windows: when anything may be done unasked. summaries: of the narrator, at once.
        on_death: told why, should the reader die. on_spill: told how far the spilling is.
    """

    settings: Settings
    sessions: Sessions
    line: QuestionLine
    lease: Lease
    clock: Clock
    device: JobThread
    snapshots: Snapshots | None
    windows: Windows
    summaries: Bound
    on_death: Callable[[Exception], None]
    on_spill: Callable[[SpillProgress], None]


class Reading:
    """One loaded engine at work."""

    def __init__(self, engine: Engine, around: Surroundings) -> None:
        settings = around.settings
        self.engine = engine
        self._around = around
        self.reader = Reader(
            sessions=around.sessions,
            engine=engine,
            device=around.device,
            lease=around.lease,
            line=around.line,
            clock=around.clock,
            windows=around.windows,
            recent_sessions=settings.recent_sessions,
        )
        self.mover = _mover(self.reader, engine, around)
        self.narrator = Narrator(
            sessions=around.sessions,
            engine=engine,
            device=around.device,
            lease=around.lease,
            clock=around.clock,
            line=around.line,
            reader=self.reader,
            windows=around.windows,
            profiles=settings.narrated,
            share=settings.narrator_share,
            most=settings.summary_ids,
            bound=around.summaries,
        )
        self._reads: asyncio.Task[None] | None = None
        self._moves: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Journal the engine, then read.

        Raises:
            JournalError: nothing was started.
        """
        around, engine = self._around, self.engine
        loaded = t.EngineLoaded(engine=engine.identity.engine, **asdict(engine.identity))
        await around.sessions.journal.submit([t.Draft(around.clock.wall(), "", "", loaded)])
        around.line.wake = self.reader.wake
        around.line.away = None
        if self.mover is not None:
            self._moves = self._watched("mover", self.mover.run())
        self._reads = self._watched("reader", self.reader.run(around.sessions.journal))

    async def close(self, why: ShadowError) -> None:
        """Stop, spill, let go; ``why`` is told to those whose questions wait."""
        async with AsyncExitStack() as stack:  # what a cancelled step leaves, the next ones do
            stack.push_async_callback(self._around.device.run, self.engine.close)
            stack.push_async_callback(self._spill)
            stack.push_async_callback(self._stop_moving)
            stack.push_async_callback(self._stop_reading, why)
            stack.push_async_callback(self.narrator.close)

    async def _stop_reading(self, why: ShadowError) -> None:
        """Finish the chunk in flight, and see every question ended."""
        self._around.line.send_away(why)
        self._around.line.wake = _nobody
        self.reader.stop()
        await _ended(self._reads)
        await self._around.line.settle()

    async def _stop_moving(self) -> None:
        if self._moves is not None:
            self._moves.cancel()
        await _ended(self._moves)

    async def _spill(self) -> None:
        if self.mover is not None and self._reads is not None and not self.reader.died:
            await self.mover.spill_all(self._around.on_spill)

    def _watched(self, name: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._watch(name, work), name=name)

    async def _watch(self, name: str, work: Coroutine[None, None, None]) -> None:
        """Run the reader or the mover. Its death is a bug of ours: say so, and go on journaling."""
        try:
            await work
        except Exception as error:
            log.exception("the %s stopped", name)
            self.reader.died = True
            self._around.on_death(error)
            self.reader.stop()
            raise


def _mover(reader: Reader, engine: Engine, around: Surroundings) -> Mover | None:
    if around.snapshots is None:
        return None
    mover = Mover(
        engine=engine,
        device=around.device,
        disk=around.snapshots.disk,
        store=around.snapshots.store,
        lease=around.lease,
        clock=around.clock,
        roster=reader.roster,
        line=around.line,
        windows=around.windows,
        wake=reader.wake,
    )
    reader.move_with(mover)
    return mover


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.gather(task, return_exceptions=True)


def _nobody() -> None:
    """Nobody answers questions now."""
