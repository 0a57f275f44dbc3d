"""Erasures on their way: journal, questions and state of a session, in that order.

Laws: once begun, an erasure goes through to its end, whoever waits for it. There is one of a
session at most: whoever asks for it again meanwhile waits for the same one, unless the session came
back since, which is then another session with an erasure of its own. Their number is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from shadow_reader.bounds import Bound
from shadow_reader.errors import NotFoundError, ShutDownError
from shadow_reader.events.branches import MAX_BRANCHES, line_names
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.sessions import Erased, Sessions


@dataclass(slots=True)
class _Erasure:
    """One of a session. ``gone``: it is out of the journal."""

    task: asyncio.Task[Erased] | None = None
    gone: bool = False


@dataclass(slots=True)
class Erasures:
    """All erasures in flight.

    Args:
        bound: on their number.
        forget: drops a session's state; without a model there is none.
    """

    sessions: Sessions
    line: QuestionLine
    bound: Bound
    forget: Callable[[str], Awaitable[None]] | None = None
    _running: dict[str, _Erasure] = field(default_factory=dict)

    async def erase(self, session: str) -> Erased:
        """Erase the session, or wait for whoever does.

        Raises:
            NotFoundError: no such session. BusyError: too many are being erased.
        """
        while True:
            found = self._running.get(session)
            if found is None:
                found = self._begin(session)
            assert found.task is not None, "it runs"
            if not (found.gone and self._is_back(session)):
                return await asyncio.shield(found.task)
            await asyncio.wait([found.task])

    async def settle(self) -> None:
        """Wait for all of them."""
        tasks = [erasure.task for erasure in self._running.values() if erasure.task]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, session: str) -> _Erasure:
        self.bound.take()
        erasure = self._running[session] = _Erasure()
        erasure.task = asyncio.create_task(self._erase(session, erasure), name="erase")
        erasure.task.add_done_callback(lambda task: self._ended(session, task))
        return erasure

    async def _erase(self, session: str, erasure: _Erasure) -> Erased:
        try:
            erased = await self.sessions.erase(session)
        except NotFoundError:
            # An erasure before this one may have ended between the journal and the snapshots.
            await self._forget(session, MAX_BRANCHES)
            raise
        erasure.gone = True
        await self._forget(session, erased.branches)
        return erased

    async def _forget(self, session: str, branches: int) -> None:
        """Let go of what there is of the session's lines."""
        gone = NotFoundError("the session was erased", field="session")
        for name in line_names(session, branches):
            self.line.fail_session(name, gone)
        if self.forget is not None:
            with suppress(ShutDownError):  # the engine closes, and all states with it
                for name in line_names(session, branches):
                    await self.forget(name)

    def _ended(self, session: str, task: asyncio.Task[Erased]) -> None:
        del self._running[session]
        self.bound.give()
        if not task.cancelled():
            task.exception()  # seen: whoever asked may have gone

    def _is_back(self, session: str) -> bool:
        live = self.sessions.peek(session)
        return live is not None and live.tentative is not None
