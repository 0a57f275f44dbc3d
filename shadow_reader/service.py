"""One running service: started whole or not at all, closed in any state. Its calls: ``runtime``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from shadow_reader.assembly import Given, Parts, Told, assemble
from shadow_reader.bounds import Bounds
from shadow_reader.clock import Clock, SystemClock
from shadow_reader.config import Settings
from shadow_reader.errors import ModelError, ShutDownError
from shadow_reader.events import types as t
from shadow_reader.events.journal import Journal
from shadow_reader.events.snapshots import SnapshotStore
from shadow_reader.making import Maker
from shadow_reader.reading import Reading
from shadow_reader.shadow.changes import Changes
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.mover import SpillProgress
from shadow_reader.shadow.roster import check_read
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.status import (
    NO_MODEL,
    ServiceState,
)
from shadow_reader.shadow.vocabulary import Vocabulary

LOAD_S: Final = 600.0

log = logging.getLogger(__name__)


class Service:
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
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Open the journal and take messages; the model is loaded beside that (``load``).

        Raises:
            JournalError, ModelError, SettingsError, VocabularyError, SnapshotError: nothing is
                left open.
        """
        self._started_s = self.clock.monotonic()
        self._loop = asyncio.get_running_loop()
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

    # -- what it is made of -------------------------------------------------------------------

    @property
    def sessions(self) -> Sessions:
        """The live sessions; their calls are decided at once and acknowledged when awaited."""
        return self._running().sessions

    @property
    def journal(self) -> Journal:
        """The journal."""
        return self._running().journal

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

    # -- how it stands ------------------------------------------------------------------------

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
        live = await self.sessions.spoken(session)
        check_read(session, live.tentative, self.sessions.limits)

    def _check_alive(self) -> None:
        if self._state == "failed":
            raise ShutDownError(self._reason)


def _nothing() -> None:
    """Nobody wants to know."""
