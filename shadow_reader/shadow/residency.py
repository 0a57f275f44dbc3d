"""Which states stay on the device: who makes room for whom, and what cannot stay.

Laws: a session never pushes out one that was heard of later, so two of them cannot push each other
out in turns. A session that fails or finds no room is named in the status, is left alone until its
next message, and whoever waits for it is told at once; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from shadow_reader.errors import OutOfRoomError, ShadowError
from shadow_reader.events import types as t
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.logbook import Logbook
from shadow_reader.shadow.mover import Mover
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.roster import Roster

OVER_CAP: Final = "dropped to stay under the memory cap"

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Residency:
    """Runs device jobs that need memory, and drops states.

    Args:
        wanted: whether somebody else waits for the device.
        mover: spills what makes room; None, without a disk: it is dropped.
    """

    engine: Engine
    device: JobThread
    roster: Roster
    line: QuestionLine
    wanted: Callable[[], bool]
    mover: Mover | None = None

    async def run(self, session: str, job: Callable[[], T], book: Logbook) -> T | None:
        """Run a job of ``session``; when it finds no room, make some until it does.

        Prefix points and older checkpoints give way first, then the states of sessions heard of
        less recently: to the disk, which is waited for elsewhere, or, without one, for good. Each
        session's newest checkpoint, which its next prompt may well go back to, goes last.

        None: room is being made; or it was, but now somebody waits for the device, or the session
        went away.

        Raises:
            OutOfRoomError: nobody is left who could make room.
        """
        while True:
            try:
                return await self.device.run(job)
            except OutOfRoomError as error:
                if self._is_over(session):
                    return None
                elders = self.roster.elders(session)
                gave = await self.device.run(
                    self.engine.give_way, [*elders, session], newest=not elders
                )
                if self._is_over(session):
                    return None
                if not gave:
                    if not elders:
                        raise
                    if self.mover is not None:
                        self.mover.make_room(session)
                        return None
                    await self._drop_for_room(elders[0], error, book)
                    if self._is_over(session):
                        return None

    def _is_over(self, session: str) -> bool:
        return self.wanted() or self.roster.known(session) is None

    async def _drop_for_room(self, victim: str, error: OutOfRoomError, book: Logbook) -> None:
        told = OutOfRoomError(f"session {victim!r} was {OVER_CAP}", **error.details)
        await self._drop(victim, "cap", OVER_CAP, told, book, self.roster.sessions.messages)

    async def fail(self, session: str, error: RuntimeError, book: Logbook, seen: int) -> None:
        """The session's state cannot be trusted any more: let go of it and say so.

        ``seen``: see ``Roster.block``.
        """
        log.error("session %s failed and is dropped", session, exc_info=error)
        why = f"failed: {error}"
        told = ShadowError(f"session {session!r} {why}")
        await self._drop(session, "failed", why, told, book, seen)

    def set_aside(self, session: str, why: str, told: ShadowError, seen: int) -> None:
        """The session is not read until its next message, and no question waits for it."""
        self.roster.block(session, why, seen)
        self.line.fail_session(session, told)

    async def forget(self, session: str) -> None:
        """Drop the state of a session that is gone, once what runs on it is done."""
        self.roster.forget(session)
        await self.device.run(partial(self.engine.drop, session, erased=True))

    async def _drop(
        self,
        session: str,
        reason: t.DropReason,
        why: str,
        told: ShadowError,
        book: Logbook,
        seen: int,
    ) -> None:
        committed = self.roster.committed(session)
        await self.device.run(self.engine.drop, session)
        book.add(session, t.Dropped(reason, committed), self.roster.known(session))
        self.set_aside(session, why, told, seen)
