"""The library's calls on one running service. What it is made of, ``assembly`` knows.

    async with Runtime(settings) as shadow:
        await shadow.prompt("s1", ids, turn="t1")
        await shadow.output("s1", "t1", offset=0, ids=[...])
        await shadow.end("s1", "t1")
        reply = await shadow.ask("s1", "Is the user done?", ["yes", "no"])

The HTTP API is a thin layer over these calls. Torch is imported only when there is a model.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal

from shadow_reader.assembly import Given, Parts, Told, assemble
from shadow_reader.bounds import Bounds
from shadow_reader.clock import Clock, SystemClock
from shadow_reader.config import Settings
from shadow_reader.errors import AskTimeoutError, ModelError, NotFoundError, ShutDownError
from shadow_reader.events import types as t
from shadow_reader.events.journal import Journal
from shadow_reader.events.snapshots import SnapshotStore
from shadow_reader.reading import Reading
from shadow_reader.shadow import jobs
from shadow_reader.shadow.changes import Changes
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.jobs import StateDigest
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.mover import SpillProgress
from shadow_reader.shadow.questions import Reply
from shadow_reader.shadow.roster import PROFILE_OFF, Roster
from shadow_reader.shadow.sessions import Accepted, Erased, LiveSession, Sessions
from shadow_reader.shadow.status import (
    NO_MODEL,
    ServiceState,
    SessionStatus,
    SlotStatus,
    Status,
    engine_status,
    session_status,
    totals,
)
from shadow_reader.shadow.vocabulary import Vocabulary
from shadow_reader.slot import Maker

LOAD_S: Final = 600.0

log = logging.getLogger(__name__)


class Runtime:
    """One service: a journal, its live sessions, and, with a model, the reader.

    Args:
        settings: see ``config.Settings``.
        clock, engine, journal, vocabulary, snapshots: to bring your own; the rest is made from
            the settings. maker: makes the engine whenever the model is loaded.

    Attributes:
        bounds: every bound of the service, as the status shows them; also of whoever serves it.
        on_loaded: called each time the model was loaded.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        engine: Engine | None = None,
        maker: Maker | None = None,
        journal: Journal | None = None,
        vocabulary: Vocabulary | None = None,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.lease = Lease(self.clock)
        self.bounds = Bounds()
        self.on_loaded: Callable[[], None] = _nothing
        self._given = Given(engine, maker, journal, vocabulary, snapshots)
        self._parts: Parts | None = None
        self._stack = AsyncExitStack()
        self._state: ServiceState = "closing"
        self._reason = "not started"
        self._started_s = 0.0

    async def __aenter__(self) -> Runtime:
        """Open the journal and take messages; the model is loaded beside that (``load``).

        Raises:
            JournalError, ModelError, SettingsError, VocabularyError, SnapshotError: nothing is
                left open.
        """
        self._started_s = self.clock.monotonic()
        async with AsyncExitStack() as stack:
            # Last of all: an erasure may wait for the journal's closing.
            stack.push_async_callback(self._settle_erasures)
            parts = await assemble(
                self.settings,
                clock=self.clock,
                lease=self.lease,
                bounds=self.bounds,
                given=self._given,
                stack=stack,
                told=Told(self._reader_died, self._spilling, self._loaded),
            )
            self._parts = parts
            has_model = self._given.engine is not None or self.settings.model
            self._state, self._reason = ("ready", "") if has_model else ("off", NO_MODEL)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the chunk in flight, spill every resident state, journal the end, close."""
        self._state, self._reason = "closing", "the service is closing"
        try:
            await self._stack.aclose()
        finally:
            self._parts = None

    # -- what an engine says ------------------------------------------------------------------

    @property
    def sessions(self) -> Sessions:
        """The live sessions; their calls are decided at once and acknowledged when awaited."""
        return self._running().sessions

    @property
    def journal(self) -> Journal:
        """The journal."""
        return self._running().journal

    async def prompt(
        self,
        session: str,
        ids: list[int],
        *,
        turn: str | None = None,
        keep: int | None = None,
        keep_of: str | None = None,
        router: str | None = None,
        profile: str | None = None,
    ) -> Accepted:
        """A turn begins with the whole prompt, or with ``keep`` known ids and then ``ids``.

        Args:
            keep_of: the turn whose line of talk ``keep`` counts on; default: the last prompt's.
            profile: a profile of the settings; default: the one called default, if there is one.
        """
        receipt = await self.sessions.prompt(
            session,
            ids,
            turn=turn,
            keep=keep,
            keep_of=keep_of,
            router=router,
            profile=profile,
        )
        return await receipt

    async def first_token(self, session: str, turn: str) -> Accepted:
        """The turn's prefill is over. The first output says it too."""
        return await (await self.sessions.first_token(session, turn))

    async def output(self, session: str, turn: str, *, offset: int, ids: list[int]) -> Accepted:
        """Output ids, ``offset`` counted from the turn's first output id."""
        return await (await self.sessions.output(session, turn, offset=offset, ids=ids))

    async def end(
        self, session: str, turn: str, *, reason: t.EndReason = "stop", produced: int | None = None
    ) -> Accepted:
        """The turn ends; ``produced`` is the engine's own count of output ids."""
        return await (await self.sessions.end(session, turn, reason=reason, produced=produced))

    async def erase(self, session: str) -> Erased:
        """Remove the session: events, ids and state. Once begun it goes through to the end.

        Raises:
            NotFoundError: no such session. BusyError: too many are being erased.
        """
        return await self._running().erasures.erase(session)

    # -- what is asked ------------------------------------------------------------------------

    async def ask(
        self,
        session: str,
        question: str | list[int],
        choices: Sequence[str],
        *,
        wait: Literal["fresh", "now"] = "fresh",
        timeout_s: float | None = None,
    ) -> Reply:
        """A typed question about the session; see ``QuestionLine.ask``.

        Raises:
            ModelError: no model is loaded.
        """
        parts = self._running()
        limit_s = parts.line.limit(timeout_s)
        await self._check_profile(session)
        asked_s = self.clock.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await self._reading()
        except TimeoutError:
            raise AskTimeoutError(
                f"the model was not loaded within {limit_s:g} s: {parts.slot.status().reason}",
                field="timeout_s",
                limit=limit_s,
            ) from None
        return await parts.line.ask(
            session, question, choices, wait=wait, timeout_s=timeout_s, asked_s=asked_s
        )

    async def wait_fresh(self, session: str, *, timeout_s: float | None = None) -> SessionStatus:
        """Wait until less than one chunk of the session is unread.

        Raises:
            NotFoundError: no such session (any more). AskTimeoutError: not within ``timeout_s``
            (default: ``ask_timeout_s``). ModelError: no model is loaded.
            ShutDownError: the reader stopped, and why.
        """
        limit_s = self.settings.ask_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                line = (await self.sessions.spoken(session)).session
                await (await self._reading()).reader.wait_fresh(line)
        except TimeoutError:
            raise AskTimeoutError(
                f"session {session!r} was not fresh within {limit_s:g} s",
                field="timeout_s",
                limit=limit_s,
            ) from None
        except ShutDownError:
            self._check_alive()
            raise
        return await self._line_status(await self.sessions.load(line))

    async def session_status(self, session: str) -> SessionStatus:
        """How one session stands: of its lines of talk the one last spoken of, or the one named.

        Raises:
            NotFoundError: no such session.
        """
        return await self._line_status(await self.sessions.spoken(session))

    async def _line_status(self, live: LiveSession) -> SessionStatus:
        parts = self._running()
        if live.durable is None:
            session = live.session
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        return session_status(live, live.durable, _roster(parts))

    async def status(self, *, shown: int | None = None) -> Status:
        """How everything stands; ``shown`` sessions one by one, by default ``status_sessions``."""
        parts = self._running()
        roster, reading = _roster(parts), parts.slot.reading
        there = [live for live in parts.sessions.live() if live.durable is not None]
        # They came into view about in the order they were heard of: from behind it takes one look.
        newest = heapq.nlargest(
            self.settings.status_sessions if shown is None else shown,
            reversed(there),
            key=lambda live: live.heard_s,
        )
        return Status(
            state=self._state,
            reason=self._reason,
            uptime_s=self.clock.monotonic() - self._started_s,
            slot=parts.slot.status(),
            model=engine_status(reading.engine) if reading else None,
            journal=parts.journal.stats(),
            snapshots=parts.slot.disk_stats(),
            lease=self.lease.status(),
            limits=self.bounds.limits(),
            totals=totals(there, roster),
            sessions=tuple(
                session_status(live, live.durable, roster) for live in newest if live.durable
            ),
        )

    async def digest(self, session: str) -> StateDigest:
        """The digest of the session's state, and the grid line it holds for.

        Raises:
            NotFoundError: no state is resident.
        """
        parts = self._running()
        engine = self._resident().engine
        line = (await parts.sessions.spoken(session)).session
        async with self.lease.hold(Rank.SUMMARY, "digest"):
            found = await parts.device.run(jobs.digest, engine, line)
        if found is None:
            raise _no_state(session)
        return found

    async def export(self, session: str) -> bytes:
        """The session's state as one safetensors file.

        Raises:
            NotFoundError: no state is resident. TooLargeError: it passes ``export_bytes``.
        """
        parts = self._running()
        engine = self._resident().engine
        limit_bytes = self.settings.export_bytes
        line = (await parts.sessions.spoken(session)).session
        async with self.lease.hold(Rank.SUMMARY, "export"):
            found = await parts.device.run(
                partial(jobs.export, engine, line, limit_bytes=limit_bytes)
            )
        if found is None:
            raise _no_state(session)
        return found

    def journal_entries(self, **filters: Any) -> AsyncIterator[t.Entry]:
        """Committed entries; the filters are those of ``Journal.entries``."""
        return self.journal.entries(**filters)

    @property
    def changes(self) -> Changes:
        """Tells of every commit of a session, for those who follow the journal."""
        return self._running().changes

    @property
    def state(self) -> ServiceState:
        """off (no model), ready, failed (the reader stopped), closing."""
        return self._state

    @property
    def reason(self) -> str:
        """Why the state is not ready; empty when it is."""
        return self._reason

    # -- the model ----------------------------------------------------------------------------

    async def load(self, *, timeout_s: float = LOAD_S) -> SlotStatus:
        """Load the model in the next idle window; at once when it is loaded already.

        Raises:
            OutOfRoomError: weights and cap do not fit the free memory. ModelError: it cannot be
                loaded, or there is none. AskTimeoutError: no idle window came in time.
            ConflictError: somebody released it meanwhile.
        """
        return await self._running().slot.load(timeout_s=timeout_s)

    async def release(self) -> SlotStatus:
        """Finish the work in flight, spill every resident state, and give the model's memory back.

        The next turn whose profile is read brings it back.

        Raises:
            ModelError: there is no model, or it was handed in. ConflictError: somebody loaded it
                again meanwhile.
        """
        return await self._running().slot.release()

    def _reader_died(self, error: Exception) -> None:
        self._state, self._reason = "failed", f"the reader stopped: {error!r}"
        self._running().line.send_away(ShutDownError(self._reason))

    def _loaded(self) -> None:
        if self._state == "failed":
            self._state, self._reason = "ready", ""
        self.on_loaded()

    def _spilling(self, progress: SpillProgress) -> None:
        told = f"{progress.done} of {progress.sessions} states are spilled"
        if self._state == "closing":
            self._reason = f"closing: {told}"
        if progress.sessions:
            log.info(told)

    async def _settle_erasures(self) -> None:
        if self._parts is not None:
            await self._parts.erasures.settle()

    def _running(self) -> Parts:
        if self._parts is None:
            raise ShutDownError("the runtime is not running: use it in an `async with` block")
        return self._parts

    async def _reading(self) -> Reading:
        """What reads, once it does."""
        self._check_alive()
        return await self._running().slot.ready()

    def _resident(self) -> Reading:
        """What reads now: without it no state is resident."""
        self._check_alive()
        slot = self._running().slot
        if slot.reading is None:
            raise ModelError(slot.status().reason, field="model", state=slot.status().state)
        return slot.reading

    async def _check_profile(self, session: str) -> None:
        view = (await self.sessions.spoken(session)).tentative
        if view is not None and view.turn and not self.sessions.limits.reads(view.turn.profile):
            raise ModelError(
                f"session {session!r} is not read: {PROFILE_OFF}", field="session", found=session
            )

    def _check_alive(self) -> None:
        if self._state == "failed":
            raise ShutDownError(self._reason)


def _roster(parts: Parts) -> Roster | None:
    reading = parts.slot.reading
    return reading.reader.roster if reading is not None else None


def _nothing() -> None:
    """Nobody wants to know."""


def _no_state(session: str) -> NotFoundError:
    return NotFoundError(
        f"no state of session {session!r} is resident", field="session", found=session
    )
