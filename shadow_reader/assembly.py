"""Makes the parts of one service out of its settings, connects them, and says how each is closed.

Law: everything that was opened is on the stack before the next thing is opened, so a start that
fails or is cancelled closes what there is, in the reverse order. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from shadow_reader.bounds import Bound, Bounds
from shadow_reader.clock import Clock
from shadow_reader.config import GIB, Settings
from shadow_reader.errors import JournalError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.journal import Journal
from shadow_reader.events.snapshots import SnapshotStore
from shadow_reader.shadow.changes import Changes
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.erasures import Erasures
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.mover import Mover, SpillProgress
from shadow_reader.shadow.orphans import remove_orphans
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.turn_watch import watch_turns
from shadow_reader.shadow.vocabulary import Vocabulary, load_vocabulary
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.store import FileSnapshots, SnapshotLimits

QWEN_VOCABULARY: Final = 248_320
QWEN_CONTEXT_IDS: Final = 262_144

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller brought; None is made from the settings."""

    engine: Engine | None
    journal: Journal | None
    vocabulary: Vocabulary | None
    snapshots: SnapshotStore | None


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that runs. ``engine`` and ``reader`` are both there, or, without a model, neither.

    Attributes:
        changes: tells of every commit of a session.
    """

    journal: Journal
    sessions: Sessions
    line: QuestionLine
    erasures: Erasures
    changes: Changes
    device: JobThread
    engine: Engine | None
    reader: Reader | None
    mover: Mover | None


async def assemble(
    settings: Settings,
    *,
    clock: Clock,
    lease: Lease,
    bounds: Bounds,
    given: Given,
    stack: AsyncExitStack,
    on_death: Callable[[Exception], None],
    on_spill: Callable[[SpillProgress], None],
) -> Parts:
    """Make, connect and start everything; ``stack`` closes it.

    Args:
        bounds: gets the bounds of all parts.
        on_death: told why, should the reader die.
        on_spill: told how far the spilling at the end is.

    Raises:
        JournalError, ModelError, VocabularyError, SnapshotError: a part cannot be made.
    """
    journal = given.journal or await _open_journal(settings)
    stack.push_async_callback(journal.close)
    device = JobThread()
    stack.push_async_callback(device.close)
    engine, vocabulary = given.engine, given.vocabulary
    if engine is None and settings.model:
        engine = await device.run(_build_engine, settings)
    if engine is not None:
        stack.push_async_callback(device.run, engine.close)
        if vocabulary is None:
            vocabulary = await asyncio.to_thread(load_vocabulary, settings.model_spec())
    sessions = Sessions(journal, clock, _limits(settings, engine), settings.sessions)
    line = QuestionLine(sessions, clock, vocabulary, settings.ask_timeout_s)
    changes = Changes()
    sessions.on_change = changes.tell
    erasing = bounds.add(Bound("erasures", settings.erasures))
    erasures = Erasures(sessions, line, erasing)
    reader: Reader | None = None
    mover: Mover | None = None
    if engine is not None:
        await _journal_engine(journal, clock, engine)
        stack.push_async_callback(_journal_stop, journal, clock)
        reader = Reader(
            sessions=sessions,
            engine=engine,
            device=device,
            lease=lease,
            line=line,
            clock=clock,
            turns_block=settings.foreground == "turns",
            burst_s=settings.burst_s,
            recent_sessions=settings.recent_sessions,
        )
        erasures.forget = reader.forget
        mover = await _make_mover(
            settings, given, engine, device, lease, clock, reader, line, stack
        )
    else:
        erasures.forget = await _make_eraser(settings, given, journal, clock, stack)
    watching = watch_turns(sessions, settings.turn_timeout_s)
    stack.push_async_callback(_stop_task, asyncio.create_task(watching, name="turn watch"))
    parts = Parts(journal, sessions, line, erasures, changes, device, engine, reader, mover)
    _list_bounds(bounds, settings, parts)
    if reader is not None:
        if mover is not None:
            _start_mover(parts, mover, reader, stack, on_spill, on_death)
        _start_reader(parts, reader, stack, on_death)
    return parts


async def _open_journal(settings: Settings) -> Journal:
    return await SqliteJournal.open(
        settings.journal.expanduser(),
        durability=settings.durability,
        pending_limit=settings.pending_events,
        pending_bytes=settings.pending_bytes,
    )


def _build_engine(settings: Settings) -> Engine:
    """Made on the device thread: torch keeps some of its state by thread."""
    from shadow_reader.shadow.torch_engine import build_engine

    return build_engine(settings)


def _limits(settings: Settings, engine: Engine | None) -> Limits:
    return Limits(
        vocabulary=engine.vocabulary if engine else QWEN_VOCABULARY,
        context_ids=engine.context_ids if engine else settings.context_ids or QWEN_CONTEXT_IDS,
        question_ids=settings.question_ids,
        open_questions=settings.open_questions,
        branches=min(settings.branches, settings.sessions - 1),
        branch_min=settings.branch_min_ids,
    )


def _list_bounds(bounds: Bounds, settings: Settings, parts: Parts) -> None:
    """What is bounded by the parts themselves; each counts for itself."""
    journal, sessions, engine = parts.journal, parts.sessions, parts.engine
    stats = journal.stats()
    bounds.watch("sessions", sessions.capacity, lambda: len(sessions.live()))
    bounds.watch("pending_events", stats.pending_limit, lambda: journal.stats().pending)
    bounds.watch("pending_bytes", stats.pending_bytes_limit, lambda: journal.stats().pending_bytes)
    bounds.watch("open_questions", settings.open_questions, lambda: _most_questions(sessions))
    bounds.watch("branches", sessions.limits.branches, lambda: _most_branches(sessions))
    if engine is not None:
        bounds.watch("memory_bytes", engine.stats().cap_bytes, lambda: engine.stats().bytes)
    if (mover := parts.mover) is not None:
        bounds.watch("disk_bytes", mover.stats.cap_bytes, lambda: mover.stats.bytes)


def _most_questions(sessions: Sessions) -> int:
    """Open questions of the session that has the most."""
    live = sessions.live()
    return max([len(one.tentative.questions) for one in live if one.tentative], default=0)


def _most_branches(sessions: Sessions) -> int:
    """Lines beside the first of the session that has the most."""
    return max([one.branches for one in sessions.live()], default=0)


# -- the reader --------------------------------------------------------------------------------


def _start_reader(
    parts: Parts, reader: Reader, stack: AsyncExitStack, on_death: Callable[[Exception], None]
) -> None:
    def changed(session: str) -> None:
        reader.wake(session)
        parts.changes.tell(session)

    parts.sessions.on_change = changed
    parts.line.wake = reader.wake
    watched = _watched("reader", reader.run(parts.journal), parts, reader, on_death)
    task = asyncio.create_task(watched, name="shadow-reader")
    stack.push_async_callback(_stop_reader, parts, reader, task)


async def _watched(
    name: str,
    work: Coroutine[None, None, None],
    parts: Parts,
    reader: Reader,
    on_death: Callable[[Exception], None],
) -> None:
    """Run the reader or the mover. Its death is a bug of ours: say so, and go on journaling."""
    try:
        await work
    except Exception as error:
        log.exception("the %s stopped", name)
        reader.died = True
        on_death(error)
        parts.line.close()
        reader.stop()
        raise


async def _stop_reader(parts: Parts, reader: Reader, task: asyncio.Task[None]) -> None:
    """Finish the chunk in flight, and see every question ended."""
    parts.line.close()
    reader.stop()
    await asyncio.gather(task, return_exceptions=True)
    await parts.line.settle()


# -- snapshots ---------------------------------------------------------------------------------


async def _make_mover(
    settings: Settings,
    given: Given,
    engine: Engine,
    device: JobThread,
    lease: Lease,
    clock: Clock,
    reader: Reader,
    line: QuestionLine,
    stack: AsyncExitStack,
) -> Mover | None:
    """None without a disk. A journal that was brought along has no place beside it."""
    store = given.snapshots
    folder = settings.snapshot_dir
    if store is None and (folder is None or (given.journal and settings.disk == "auto")):
        return None
    disk = JobThread("shadow-disk")
    stack.push_async_callback(disk.close)
    if store is None:
        assert folder is not None
        files = Disk(engine.host_buffer)
        store = await _open_snapshots(settings, folder, disk, clock, files, stack)
    mover = Mover(
        engine=engine,
        device=device,
        disk=disk,
        store=store,
        lease=lease,
        clock=clock,
        roster=reader.roster,
        line=line,
        turns_block=settings.foreground == "turns",
        wake=reader.wake,
    )
    reader.move_with(mover)
    return mover


async def _make_eraser(
    settings: Settings, given: Given, journal: Journal, clock: Clock, stack: AsyncExitStack
) -> Callable[[str], Awaitable[None]] | None:
    """Without a model: removes the snapshots that one with a model left; None: there are none."""
    folder = settings.snapshot_dir
    if given.journal or folder is None or not folder.is_dir():
        return None
    disk = JobThread("shadow-disk")
    stack.push_async_callback(disk.close)
    store = await _open_snapshots(settings, folder, disk, clock, Disk(), stack)
    looking = asyncio.create_task(remove_orphans(journal, disk, store), name="orphans")
    stack.push_async_callback(_stop_task, looking)

    async def erase(session: str) -> None:
        await disk.run(store.erase, session)

    return erase


async def _open_snapshots(
    settings: Settings,
    folder: Path,
    disk: JobThread,
    clock: Clock,
    files: Disk,
    stack: AsyncExitStack,
) -> SnapshotStore:
    limits = SnapshotLimits(int(settings.disk_gb * GIB), settings.disk_ttl_h * 3600)
    open_store = partial(FileSnapshots.open, folder, limits=limits, clock=clock, disk=files)
    opened: list[SnapshotStore] = []
    stack.push_async_callback(_close_stores, disk, opened)
    await disk.run(lambda: opened.append(open_store()))
    return opened[0]


async def _close_stores(disk: JobThread, opened: list[SnapshotStore]) -> None:
    """The lock must go, also when whoever opens or closes is cancelled meanwhile."""

    def close() -> None:
        for store in opened:
            store.close()

    closing = asyncio.ensure_future(disk.run(close))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        raise


def _start_mover(
    parts: Parts,
    mover: Mover,
    reader: Reader,
    stack: AsyncExitStack,
    on_spill: Callable[[SpillProgress], None],
    on_death: Callable[[Exception], None],
) -> None:
    watched = _watched("mover", mover.run(), parts, reader, on_death)
    task = asyncio.create_task(watched, name="mover")

    async def stop() -> None:
        """The reader has stopped; what it left in memory goes to the disk."""
        await _stop_task(task)
        if not reader.died:
            await mover.spill_all(on_spill)

    stack.push_async_callback(stop)


async def _stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# -- the engine in the journal -----------------------------------------------------------------


async def _journal_engine(journal: Journal, clock: Clock, engine: Engine) -> None:
    loaded = t.EngineLoaded(engine=engine.identity.engine, **asdict(engine.identity))
    await journal.submit([t.Draft(clock.wall(), "", "", loaded)])


async def _journal_stop(journal: Journal, clock: Clock) -> None:
    stopped = t.Draft(clock.wall(), "", "", t.EngineStopped("closed"))
    try:
        await journal.submit([stopped])
    except JournalError as error:
        log.warning("the journal did not take the end of the service: %s", error)
