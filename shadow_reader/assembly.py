"""Makes the parts of one service out of its settings, connects them, and says how each is closed.

Law: everything that was opened is on the stack before the next thing is opened, so a start that
fails or is cancelled closes what there is, in the reverse order. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shadow_reader.bounds import Bound, Bounds
from shadow_reader.clock import Clock
from shadow_reader.config import GIB, Settings
from shadow_reader.errors import JournalError, SettingsError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.journal import Journal
from shadow_reader.events.snapshots import SnapshotStore
from shadow_reader.making import REAL, Maker
from shadow_reader.reading import Snapshots, Surroundings
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.changes import Changes
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.erasures import Erasures
from shadow_reader.shadow.holds import Holds
from shadow_reader.shadow.holds_journal import HoldsJournal
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.mover import SpillProgress
from shadow_reader.shadow.orphans import remove_orphans
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.router import ShadowRouter
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.turn_watch import watch_turns
from shadow_reader.shadow.vocabulary import Vocabulary, check_vocabulary
from shadow_reader.shadow.windows import Windows
from shadow_reader.slot import Slot
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.snapshots.disk import Disk, plain_buffer
from shadow_reader.store.snapshots.store import FileSnapshots, SnapshotLimits

if TYPE_CHECKING:
    from shadow_reader.shadow.model.config import ModelConfig

QWEN_VOCABULARY: Final = 248_320
QWEN_CONTEXT_IDS: Final = 262_144
NVIDIA: Final = Path("/dev/nvidiactl")
"""Where it is missing there is no CUDA, which can be known before torch is imported."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller brought; None is made from the settings."""

    engine: Engine | None
    maker: Maker | None
    journal: Journal | None
    vocabulary: Vocabulary | None
    snapshots: SnapshotStore | None


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told of what.

    Attributes:
        death: why the reader died. spill: how far a spilling is. loaded: the model is there.
    """

    death: Callable[[Exception], None]
    spill: Callable[[SpillProgress], None]
    loaded: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that runs.

    Attributes:
        changes: tells of every commit of a session.
        router: None where no profile wants it.
    """

    journal: Journal
    sessions: Sessions
    line: QuestionLine
    erasures: Erasures
    changes: Changes
    device: JobThread
    snapshots: Snapshots | None
    windows: Windows
    slot: Slot
    router: ShadowRouter | None


async def assemble(
    settings: Settings,
    *,
    clock: Clock,
    lease: Lease,
    bounds: Bounds,
    given: Given,
    stack: AsyncExitStack,
    told: Told,
) -> Parts:
    """Make, connect and start everything; ``stack`` closes it.

    Args:
        bounds: gets the bounds of all parts.

    Raises:
        JournalError, ModelError, SettingsError, VocabularyError, SnapshotError: a part cannot be
            made.
    """
    config = _check_model(settings, given)
    journal = given.journal or await _open_journal(settings)
    stack.push_async_callback(journal.close)
    device = JobThread()
    stack.push_async_callback(device.close)
    sessions = Sessions(journal, clock, _limits(settings, given, config), settings.sessions)
    line = QuestionLine(sessions, clock, given.vocabulary, settings.ask_timeout_s)
    changes = Changes()
    erasures = Erasures(sessions, line, bounds.add(Bound("erasures", settings.erasures)))
    windows = _windows(settings, clock, bounds, stack)
    slots: list[Slot] = []

    def spilling(progress: SpillProgress) -> None:
        slots[0].spilling(progress)
        told.spill(progress)

    def host_buffer(size: int) -> memoryview:
        return slots[0].host_buffer(size) if slots else plain_buffer(size)

    snapshots = await _open_snapshots(settings, given, clock, Disk(host_buffer), stack)
    around = Surroundings(
        *(settings, sessions, line, lease, clock, device, snapshots, windows),
        summaries=bounds.add(Bound("summaries", settings.summaries)),
        on_death=told.death,
        on_spill=spilling,
    )
    slot = Slot(around, given=given.engine, maker=given.maker or REAL, on_loaded=told.loaded)
    slots.append(slot)
    erasures.forget = slot.forget

    router = _router(settings, sessions, line, slot, bounds, stack)

    def changed(session: str) -> None:
        if router is not None:
            router.tell(session)  # first: it looks how far the reader is
        slot.tell(session)
        changes.tell(session)

    sessions.on_change = changed
    windows.holds.on_change = slot.tell
    holding = HoldsJournal(journal, clock)
    windows.holds.on_begin, windows.holds.on_end = holding.began, holding.ended
    stack.push_async_callback(holding.settle)
    stack.callback(windows.holds.close)
    parts = Parts(
        journal, sessions, line, erasures, changes, device, snapshots, windows, slot, router
    )
    _list_bounds(bounds, settings, parts)
    if given.engine or settings.model:
        stack.push_async_callback(_journal_stop, journal, clock)
    if snapshots is not None:
        looking = remove_orphans(journal, snapshots.disk, snapshots.store)
        stack.push_async_callback(_stop_task, asyncio.create_task(looking, name="orphans"))
    watching = watch_turns(sessions, settings.turn_timeout_s)
    stack.push_async_callback(_stop_task, asyncio.create_task(watching, name="turn watch"))
    stack.push_async_callback(slot.close)
    await slot.start()
    return parts


async def _open_journal(settings: Settings) -> Journal:
    return await SqliteJournal.open(
        settings.journal.expanduser(),
        durability=settings.durability,
        pending_limit=settings.pending_events,
        pending_bytes=settings.pending_bytes,
    )


def _check_model(settings: Settings, given: Given) -> ModelConfig | None:
    """Whatever can be known to be wrong before the model is loaded stops the start.

    Raises:
        ModelError: no such model. VocabularyError: nothing to make its vocabulary of.
        SettingsError: the cap is too small to read one chunk.
    """
    if given.engine is not None or not settings.model:
        return None
    from shadow_reader.shadow.model.facts import checked_config, least_bytes

    spec = settings.model_spec()
    config = checked_config(spec)
    if given.vocabulary is None:
        check_vocabulary(spec)
    on_cpu = settings.device == "cpu" or (settings.device == "auto" and not NVIDIA.exists())
    least = least_bytes(config, 4 if on_cpu else 2, settings.grid_ids)
    if settings.cap_bytes < least:
        raise SettingsError(
            f"cap_gb {settings.cap_gb} is {settings.cap_bytes} bytes; "
            f"reading one chunk of {settings.model} takes {least} bytes",
            key="cap_gb",
            found=settings.cap_bytes,
            limit=least,
        )
    return config


def _limits(settings: Settings, given: Given, config: ModelConfig | None) -> Limits:
    vocabulary, context_ids = QWEN_VOCABULARY, settings.context_ids or QWEN_CONTEXT_IDS
    if given.engine is not None:
        vocabulary, context_ids = given.engine.vocabulary, given.engine.context_ids
    elif config is not None:
        vocabulary = config.vocab
        context_ids = min(settings.context_ids or config.context, config.context)
    return Limits(
        vocabulary=vocabulary,
        context_ids=context_ids,
        question_ids=settings.question_ids,
        open_questions=settings.open_questions,
        branches=min(settings.branches, settings.sessions - 1),
        branch_min=settings.branch_min_ids,
        profiles={name: p.shadow.mode == "on" for name, p in settings.profiles.items()},
    )


def _windows(settings: Settings, clock: Clock, bounds: Bounds, stack: AsyncExitStack) -> Windows:
    """When the shadow may do something unasked.

    Raises:
        SettingsError: the box lock's file cannot be opened.
    """
    path = settings.box_lock
    box = BoxLock(path.expanduser() if path is not None else None)
    stack.callback(box.close)
    return Windows(
        holds=Holds(clock, bounds.add(Bound("holds", settings.holds)), settings.hold_s),
        box=box,
        turns_block=settings.foreground == "turns",
        burst_s=settings.burst_s,
        share=settings.turn_share,
        slice_s=settings.slice_s,
        streamed=settings.rounds == "streamed",
        idle_poll_s=settings.idle_poll_s or None,
    )


def _router(
    settings: Settings,
    sessions: Sessions,
    line: QuestionLine,
    slot: Slot,
    bounds: Bounds,
    stack: AsyncExitStack,
) -> ShadowRouter | None:
    if not settings.routed:
        return None

    def committed(session: str) -> int:
        return slot.reading.reader.roster.committed(session) if slot.reading is not None else 0

    bound = bounds.add(Bound("router_questions", settings.router_questions))
    routed, capacity = settings.routed, settings.sessions
    router = ShadowRouter(sessions, line, routed, slot.ready, committed, bound, capacity)
    stack.push_async_callback(router.close)
    return router


def _list_bounds(bounds: Bounds, settings: Settings, parts: Parts) -> None:
    """What is bounded by the parts themselves; each counts for itself."""
    journal, sessions, slot = parts.journal, parts.sessions, parts.slot
    stats = journal.stats()
    bounds.watch("sessions", sessions.capacity, lambda: len(sessions.live()))
    bounds.watch("pending_events", stats.pending_limit, lambda: journal.stats().pending)
    bounds.watch("pending_bytes", stats.pending_bytes_limit, lambda: journal.stats().pending_bytes)
    bounds.watch("open_questions", settings.open_questions, lambda: _most_questions(sessions))
    bounds.watch("branches", sessions.limits.branches, lambda: _most_branches(sessions))
    if settings.model or slot.given is not None:
        cap = slot.given.stats().cap_bytes if slot.given is not None else settings.cap_bytes
        bounds.watch(
            "memory_bytes",
            cap,
            lambda: slot.reading.engine.stats().bytes if slot.reading is not None else 0,
        )
    if (snapshots := parts.snapshots) is not None:
        bounds.watch("disk_bytes", snapshots.store.stats().cap_bytes, lambda: _disk_bytes(slot))


def _most_questions(sessions: Sessions) -> int:
    """Open questions of the session that has the most."""
    live = sessions.live()
    return max([len(one.tentative.questions) for one in live if one.tentative], default=0)


def _most_branches(sessions: Sessions) -> int:
    """Lines beside the first of the session that has the most."""
    return max([one.branches for one in sessions.live()], default=0)


def _disk_bytes(slot: Slot) -> int:
    stats = slot.disk_stats()
    return stats.bytes if stats is not None else 0


async def _open_snapshots(
    settings: Settings, given: Given, clock: Clock, files: Disk, stack: AsyncExitStack
) -> Snapshots | None:
    """None without a disk. A journal that was brought along has no place beside it; without a
    model there is only what one with a model left."""
    folder, store = settings.snapshot_dir, given.snapshots
    has_model = bool(given.engine or settings.model)
    if store is None:
        if folder is None or (given.journal and settings.disk == "auto"):
            return None
        if not has_model and not folder.is_dir():
            return None
    disk = JobThread("shadow-disk")
    stack.push_async_callback(disk.close)
    if store is None:
        assert folder is not None
        store = await _open_store(settings, folder, disk, clock, files, stack)
    return Snapshots(disk, store)


async def _open_store(
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


async def _stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _journal_stop(journal: Journal, clock: Clock) -> None:
    stopped = t.Draft(clock.wall(), "", "", t.EngineStopped("closed"))
    try:
        await journal.submit([stopped])
    except JournalError as error:
        log.warning("the journal did not take the end of the service: %s", error)
