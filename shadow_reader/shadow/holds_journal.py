"""Holds in the journal: each beginning and each end, in the order they happened."""

from __future__ import annotations

import asyncio
import logging

from shadow_reader.clock import Clock
from shadow_reader.errors import ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.journal import Journal
from shadow_reader.shadow.holds import Hold

log = logging.getLogger(__name__)


class HoldsJournal:
    """Writes what becomes of holds; nobody waits for it, and a hold is on all the same."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._writing: set[asyncio.Future[range]] = set()

    def began(self, hold: Hold) -> None:
        """It is on."""
        self._write(t.HoldBegun(hold.hold, hold.owner, round(hold.left_s, 3)))

    def ended(self, hold: str, why: t.HoldEnd) -> None:
        """It is over."""
        self._write(t.HoldEnded(hold, why))

    async def settle(self) -> None:
        """Wait until everything is written, or was not taken."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _write(self, event: t.EngineEvent) -> None:
        try:
            written = self._journal.submit([t.Draft(self._clock.wall(), "", "", event)])
        except ShadowError as error:
            log.warning("the journal did not take a hold: %s", error)
            return
        future = asyncio.ensure_future(written)
        self._writing.add(future)
        future.add_done_callback(self._written)

    def _written(self, future: asyncio.Future[range]) -> None:
        self._writing.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            log.warning("the journal did not take a hold: %s", error)
