"""Moves states between memory and disk beside the reader loop, one session at a time.

Laws:

1. While a session's state comes back, or waits for room, the reader leaves that session alone and
   goes on with the others; it is woken when the move is over, however it ended.
2. A state leaves memory only when it is in a snapshot as it stands, or when the disk does not take
   it; never while something is done to it, and never for a session heard of less recently.
3. A snapshot that is refused is named in the log, the status and the journal, and is removed; the
   session is then read from the journal.
4. Once a session was forgotten, no snapshot of it is left and none is begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from shadow_reader.clock import Clock
from shadow_reader.errors import (
    NotFoundError,
    OutOfRoomError,
    ShadowError,
    ShutDownError,
    SnapshotError,
    SnapshotFullError,
)
from shadow_reader.events import types as t
from shadow_reader.events.snapshots import SnapshotStats, SnapshotStore
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.changes import Changes
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.moves import OWNER, Moved, Moves
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.roster import Roster
from shadow_reader.shadow.windows import Windows

SWEEP_S: Final = 3_600.0
"""How often snapshots that are too old are looked for."""

RESTORING: Final = "its state comes back from its snapshot"
WAITS_FOR_ROOM: Final = "waits until another session was spilled"
SPILLED: Final = "spilled to stay under the memory cap"

Kind: TypeAlias = Literal["restore", "room"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpillProgress:
    """How far the spilling of everything is."""

    done: int
    sessions: int


class Mover:
    """The task that moves states.

    Args:
        disk: the one thread that uses ``store``.
        windows: nothing is moved while a turn runs, if that is foreground, or a hold is on.
        wake: told the session after each move.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        device: JobThread,
        disk: JobThread,
        store: SnapshotStore,
        lease: Lease,
        clock: Clock,
        roster: Roster,
        line: QuestionLine,
        windows: Windows,
        wake: Callable[[str], None],
    ) -> None:
        self._moves = Moves(engine, device, disk, store, lease, windows.box, self._gate)
        self._engine = engine
        self._device = device
        self._disk = disk
        self._store = store
        self._lease = lease
        self._clock = clock
        self._roster = roster
        self._sessions = roster.sessions
        self._line = line
        self._windows = windows
        self._wake = wake
        self._wanted: dict[str, Kind] = {}
        self._current = ""
        self._victim = ""
        self._changes = Changes()
        self._gone: Counter[str] = Counter()
        self._stats = store.stats()

    # -- from outside -------------------------------------------------------------------------

    def restore(self, session: str) -> None:
        """Bring the session's state back, if there is a snapshot of it."""
        self._want(session, "restore", RESTORING)

    def make_room(self, session: str) -> None:
        """Spill the state that goes first to make room for ``session``."""
        self._want(session, "room", WAITS_FOR_ROOM)

    def tell(self) -> None:
        """Something changed: the foreground may have ended."""
        self._changes.tell()

    @property
    def stats(self) -> SnapshotStats:
        """How the snapshots stand, as of the last move."""
        return self._stats

    async def forget(self, session: str) -> None:
        """Remove what there is of a session that is gone, once what is done to it is over.

        Raises:
            SnapshotError: its snapshot could not be removed.
        """
        self._wanted.pop(session, None)
        self._gone[session] += 1
        self._changes.tell()
        try:
            while session in (self._current, self._victim):
                await self._changes.next()
        finally:
            self._gone -= Counter([session])
        await self._disk.run(self._store.erase, session)
        await self._look()

    # -- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what is wanted until ``cancel``; tidy the snapshots now and then."""
        await self._look()
        swept = self._clock.monotonic()
        while True:
            if self._clock.monotonic() - swept >= SWEEP_S:
                swept = self._clock.monotonic()
                await self._sweep()
            session = self._next()
            if session is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S):
                        await self._changes.next()
                continue
            await self._move(session, self._wanted.pop(session))

    def _want(self, session: str, kind: Kind, why: str) -> None:
        self._roster.notes(session).moving = why
        self._wanted[session] = kind
        self._changes.tell()

    def _next(self) -> str | None:
        """One that a question waits for, then the one heard of last."""
        if not self._wanted:
            return None
        return max(
            self._wanted,
            key=lambda name: (self._line.waits_for(name), self._roster.heard_s(name), name),
        )

    async def _move(self, session: str, kind: Kind) -> None:
        self._current = session
        try:
            if kind == "restore":
                await self._restore(session)
            else:
                await self._spill_next(session)
        except NotFoundError:
            log.info("session %s went away while its state was moved", session)
        except ShutDownError:
            log.info("closing ends the move of session %s", session)
        except (ShadowError, RuntimeError) as error:
            log.exception("the move of session %s failed", session)
            self._roster.snapshot_tried(session, str(error))
        finally:
            self._current = ""
            self._roster.moved(session)
            self._changes.tell()
            self._wake(session)
        await self._look()

    async def _gate(self) -> None:
        """Wait while the foreground has the device to itself.

        Raises:
            NotFoundError: what is moved is to be forgotten: whoever does that must not wait.
        """
        while self._is_foreground():
            if self._gone.keys() & {self._current, self._victim}:
                raise NotFoundError("the session went away while it was moved", field="session")
            await self._changes.next()

    def _is_foreground(self) -> bool:
        turns = self._windows.turns_block and self._roster.any_runs()
        return turns or self._windows.holds.any

    async def _look(self) -> None:
        self._stats = await self._disk.run(self._store.stats)

    async def _sweep(self) -> None:
        try:
            for session in await self._disk.run(self._store.sweep):
                log.info("the snapshot of session %s was too old and is removed", session)
        except SnapshotError as error:
            log.warning("old snapshots could not be removed: %s", error)
        await self._look()

    # -- restoring ----------------------------------------------------------------------------

    async def _restore(self, session: str) -> None:
        view = self._roster.known(session)
        if view is None:
            return
        began, seen = self._clock.monotonic(), self._sessions.messages

        async def room(error: OutOfRoomError) -> None:
            if not await self._give_way(session) and not await self._spill_next(session):
                raise error

        try:
            moved = await self._moves.restore(view, room)
        except OutOfRoomError as error:
            # As when there is no room to read it: left alone until somebody speaks of it again.
            self._roster.block(session, error.message, seen)
            self._line.fail_session(session, error)
            return
        except SnapshotError as error:
            await self._refuse(view, error, began)
            return
        self._roster.snapshot_tried(session)
        if moved is not None:
            if not self._is_there(view):
                await self._device.run(partial(self._engine.drop, session, erased=True))
                return
            event = t.Restore(moved.position, moved.bytes, self._ms_since(began))
            await self._record(view, event)

    async def _give_way(self, session: str) -> int:
        """Let what goes before any session go for ``session``; the bytes."""
        await self._gate()
        async with self._lease.hold(Rank.SUMMARY, OWNER):
            elders = self._roster.elders(session)
            return await self._device.run(
                self._engine.give_way, [*elders, session], newest=not elders
            )

    async def _refuse(self, view: SessionView, error: SnapshotError, began: float) -> None:
        log.warning("the snapshot of session %s is not used: %s", view.session, error)
        self._roster.snapshot_tried(view.session, error.message)
        await self._record(view, t.Restore(0, 0, self._ms_since(began), error.message))
        with suppress(SnapshotError):
            await self._disk.run(self._store.erase, view.session)

    # -- spilling -----------------------------------------------------------------------------

    async def _spill_next(self, session: str) -> bool:
        """Let one state go to make room for ``session``; False: there is none that may."""
        victim = self._roster.victim(session)
        if victim is None:
            return False
        self._victim = victim
        try:
            await self._spill_victim(victim, session)
        finally:
            self._victim = ""
            self._changes.tell()
        return True

    async def _spill_victim(self, victim: str, session: str) -> None:
        view = (await self._sessions.load(victim)).durable
        began = self._clock.monotonic()
        moved: Moved | None = None
        why = SPILLED
        if view is not None:
            try:
                moved = await self._spill(view)
            except SnapshotFullError as error:
                log.warning("session %s is dropped and not spilled: %s", victim, error)
                why = f"dropped to stay under the memory cap: {error.message}"
            except SnapshotError as error:
                log.error("session %s is dropped and not spilled: %s", victim, error)
                why = f"dropped to stay under the memory cap: {error.message}"
        await self._gate()
        async with self._lease.hold(Rank.SUMMARY, OWNER):
            # Nothing is done to it now. It stays if it was heard of, or read on, meanwhile.
            standing = self._roster.committed(victim)
            is_first = self._roster.victim(session) == victim
            goes = is_first and (moved is None or moved.position == standing)
            if goes:
                seen = self._sessions.messages
                await self._device.run(self._engine.drop, victim)
                self._roster.dropped(victim, why, seen)
                told = OutOfRoomError(f"session {victim!r} was {why}", field="cap_gb")
                self._line.fail_session(victim, told)
        if view is not None and moved is not None:
            ms = self._ms_since(began)
            await self._record(view, t.Spill(moved.position, moved.bytes, ms, kept=not goes))
        elif view is not None and goes:
            await self._record(view, t.Dropped("cap", standing))

    async def _spill(self, view: SessionView, *, leased: bool = True) -> Moved | None:
        spill = partial(
            self._moves.spill,
            view,
            seq=self._sessions.journal.stats().last_seq,
            is_there=lambda: self._is_there(view),
            leased=leased,
        )
        try:
            return await spill()
        except SnapshotFullError:
            # The old snapshot and the new one may not fit together.
            if not await self._disk.run(self._store.erase, view.session):
                raise
            return await spill()

    async def spill_all(self, told: Callable[[SpillProgress], None]) -> None:
        """Write every resident state, the one heard of last first. Nobody else is at work now.

        Args:
            told: how far it is, before each session and at the end.
        """
        names = self._roster.residents()
        for done, session in enumerate(reversed(names)):
            told(SpillProgress(done, len(names)))
            began = self._clock.monotonic()
            try:
                view = (await self._sessions.load(session)).durable
                moved = await self._spill(view, leased=False) if view is not None else None
            except (ShadowError, RuntimeError) as error:
                log.warning("session %s is not spilled: %s", session, error)
                continue
            if view is not None and moved is not None:
                ms = self._ms_since(began)
                await self._record(view, t.Spill(moved.position, moved.bytes, ms, kept=False))
        await self._look()
        told(SpillProgress(len(names), len(names)))

    # -- small things -------------------------------------------------------------------------

    def _is_there(self, view: SessionView) -> bool:
        """Whether the session is still the one that ``view`` shows."""
        live = self._sessions.peek(view.session)
        if view.session in self._gone:
            return False
        if live is None:
            return True  # it left the view, not the journal
        return live.erasing is None and (
            live.durable is not None and live.durable.opened_at == view.opened_at
        )

    async def _record(self, view: SessionView, event: t.SessionEvent) -> None:
        try:
            await self._sessions.record(view.session, event, opened_at=view.opened_at)
        except ShadowError as error:
            log.warning("the journal did not take what was moved: %s", error)

    def _ms_since(self, began: float) -> float:
        return round(1000 * (self._clock.monotonic() - began), 3)
