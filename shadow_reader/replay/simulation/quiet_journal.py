"""A journal that keeps only what was used of each turn, for a run that nobody reads again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from shadow_reader.events.journal import JournalStats, SessionRow
from shadow_reader.events.types import Draft, Entry, RationUsed


class QuietJournal:
    """A ``Journal`` whose every entry is committed, counted and forgotten at once.

    Sessions must not leave memory while it is in use: there is nothing to fold them from.

    Attributes:
        used: what was journaled of turns' rations, in order, with the session's name.
    """

    def __init__(self) -> None:
        self.used: list[tuple[str, RationUsed]] = []
        self._seq = 0
        self._loop = asyncio.get_running_loop()

    async def room(self) -> None:
        """See ``Journal.room``: there always is."""

    def submit(self, drafts: Sequence[Draft]) -> asyncio.Future[range]:
        """See ``Journal.submit``."""
        first = self._seq + 1
        self._seq += len(drafts)
        for draft in drafts:
            if isinstance(draft.event, RationUsed):
                self.used.append((draft.session, draft.event))
        future: asyncio.Future[range] = self._loop.create_future()
        future.set_result(range(first, self._seq + 1))
        return future

    def erase(self, *drafts: Draft) -> asyncio.Future[tuple[Entry, ...]]:
        """See ``Journal.erase``: nothing is there to be erased."""
        entries = []
        for draft in drafts:
            self._seq += 1
            entries.append(Entry(draft.at, draft.session, draft.turn, draft.event, self._seq))
        future: asyncio.Future[tuple[Entry, ...]] = self._loop.create_future()
        future.set_result(tuple(entries))
        return future

    def on_failure(self, listener: Callable[[], None]) -> None:
        """See ``Journal.on_failure``: none fails."""

    async def entries(
        self,
        *,
        session: str | None = None,  # noqa: ARG002  # the contract's names
        turn: str | None = None,  # noqa: ARG002
        kinds: Sequence[str] | None = None,  # noqa: ARG002
        after: int = 0,  # noqa: ARG002
        since: float | None = None,  # noqa: ARG002
        until: float | None = None,  # noqa: ARG002
        limit: int | None = None,  # noqa: ARG002
        newest_first: bool = False,  # noqa: ARG002
    ) -> AsyncIterator[Entry]:
        """See ``Journal.entries``: none was kept."""
        kept: tuple[Entry, ...] = ()
        for entry in kept:
            yield entry

    async def sessions(
        self,
        *,
        after: str = "",  # noqa: ARG002
        limit: int = 1000,  # noqa: ARG002
    ) -> tuple[SessionRow, ...]:
        """See ``Journal.sessions``."""
        return ()

    async def recent_sessions(self, *, limit: int) -> tuple[SessionRow, ...]:  # noqa: ARG002
        """See ``Journal.recent_sessions``."""
        return ()

    def stats(self) -> JournalStats:
        """Figures for the status."""
        return JournalStats("normal", self._seq, 0, 1, 0, 1, 0, 0, self._seq, self._seq)

    async def close(self) -> None:
        """See ``Journal.close``."""
