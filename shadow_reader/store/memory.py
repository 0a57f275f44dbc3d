"""The journal in memory: the same laws as the file's, no thread, nothing kept.

For tests, for virtual time, and for replays that need a journal but no file.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

from shadow_reader.errors import JournalFullError, ShutDownError
from shadow_reader.events.codec import encode, kind_of
from shadow_reader.events.ids import ID_BYTES
from shadow_reader.events.journal import JournalStats, SessionRow
from shadow_reader.events.types import Draft, Entry, SessionErased
from shadow_reader.store.query import PAGE_ROWS, EntryQuery, Page, Span
from shadow_reader.store.queue import Promise, WriteQueue
from shadow_reader.store.submission import Append, Erasure, Result, Submission, row_size


class MemoryJournal:
    """A ``Journal`` in a list.

    Args:
        limit_bytes: most bytes of rows; an append beyond them fails as on a full disk. It may be
            set at any time; None is no limit.
    """

    def __init__(
        self,
        *,
        pending_limit: int = 8192,
        pending_bytes: int = 64 << 20,
        limit_bytes: int | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._entries: list[Entry] = []
        self._sessions: dict[str, SessionRow] = {}
        self._counts: Counter[str] = Counter()
        self._last_seq = 0
        self._bytes = 0
        self._commits = 0
        self._events = 0
        self._closed = False
        self._queue: WriteQueue[Submission, Result] = WriteQueue(
            self._commit, limit=pending_limit, limit_bytes=pending_bytes
        )

    async def room(self) -> None:
        """See ``Journal.room``."""
        await self._queue.room()

    def submit(self, drafts: Sequence[Draft]) -> Promise[range]:
        """See ``Journal.submit``."""
        append = Append.of(drafts)
        promise = self._queue.submit(append, events=len(append.drafts), size=append.size)
        return cast(Promise[range], promise)

    def erase(self, *drafts: Draft) -> Promise[tuple[Entry, ...]]:
        """See ``Journal.erase``."""
        erasure = Erasure.of(drafts)
        promise = self._queue.submit(erasure, events=len(drafts), size=erasure.size)
        return cast(Promise[tuple[Entry, ...]], promise)

    def on_failure(self, listener: Callable[[], None]) -> None:
        """See ``Journal.on_failure``."""
        self._queue.on_failure(listener)

    async def entries(
        self,
        *,
        session: str | None = None,
        turn: str | None = None,
        kinds: Sequence[str] | None = None,
        after: int = 0,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[Entry]:
        """See ``Journal.entries``."""
        wanted = None if kinds is None else tuple(kinds)
        query = EntryQuery(session, turn, wanted, after, since, until, newest_first)
        span: Span | None = Span(after, self._last_seq)
        left = limit
        while span is not None and (left is None or left > 0):
            await self._reading()
            rows = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
            page = self._page(query, span, rows)
            for entry in page.entries:
                yield entry
            span = page.rest
            left = None if left is None else left - len(page.entries)

    async def sessions(self, *, after: str = "", limit: int = 1000) -> tuple[SessionRow, ...]:
        """See ``Journal.sessions``."""
        await self._reading()
        names = sorted(name for name in self._sessions if name > after)
        return tuple(self._sessions[name] for name in names[:limit])

    async def recent_sessions(self, *, limit: int) -> tuple[SessionRow, ...]:
        """See ``Journal.recent_sessions``."""
        await self._reading()
        newest = sorted(self._sessions.values(), key=lambda row: row.last_seq, reverse=True)
        return tuple(newest[:limit])

    def stats(self) -> JournalStats:
        """Figures for the status."""
        return JournalStats(
            durability="normal",
            last_seq=self._last_seq,
            pending=self._queue.pending,
            pending_limit=self._queue.limit,
            pending_bytes=self._queue.pending_bytes,
            pending_bytes_limit=self._queue.limit_bytes,
            bytes=self._bytes,
            wal_bytes=0,
            commits=self._commits,
            events=self._events,
        )

    async def close(self) -> None:
        """Commit what is queued, then refuse everything. May be called again."""
        self._closed = True
        await self._queue.close()

    async def _reading(self) -> None:
        if self._closed:
            raise ShutDownError("the journal is closing")
        await asyncio.sleep(0)

    def _page(self, query: EntryQuery, span: Span, rows: int) -> Page:
        places = range(
            bisect_right(self._entries, span.after, key=_seq),
            bisect_right(self._entries, span.upto, key=_seq),
        )
        found: list[Entry] = []
        for place in reversed(places) if query.newest_first else places:
            entry = self._entries[place]
            if query.holds(entry, kind_of(entry.event)):
                found.append(entry)
            if len(found) == rows:
                return Page(found, query.rest(span, entry.seq))
        return Page(found, None)

    async def _commit(self, group: Sequence[Submission]) -> Sequence[Result]:
        await asyncio.sleep(0)
        added = sum(item.size for item in group if isinstance(item, Append))
        if self.limit_bytes is not None and self._bytes + added > self.limit_bytes:
            raise JournalFullError(
                f"the journal in memory is full: {self._bytes} bytes and {added} more pass "
                f"{self.limit_bytes}; nothing was kept",
                found=self._bytes + added,
                limit=self.limit_bytes,
            )
        self._commits += 1
        return [self._take(item) for item in group]

    def _take(self, item: Submission) -> Result:
        if isinstance(item, Erasure):
            return tuple([self._erase(draft) for draft in item.drafts])
        first = self._last_seq + 1
        for draft in item.drafts:
            self._add(draft)
        return range(first, self._last_seq + 1)

    def _add(self, draft: Draft) -> Entry:
        self._last_seq += 1
        self._events += 1
        self._bytes += row_size(encode(draft.event))
        entry = Entry(draft.at, draft.session, draft.turn, draft.event, self._last_seq)
        self._entries.append(entry)
        if draft.session:
            self._counts[draft.session] += 1
            self._sessions[draft.session] = SessionRow(
                draft.session, entry.seq, draft.at, self._counts[draft.session]
            )
        return entry

    def _erase(self, draft: Draft) -> Entry:
        gone = [entry for entry in self._entries if entry.session == draft.session]
        self._entries = [entry for entry in self._entries if entry.session != draft.session]
        rows = [encode(entry.event) for entry in gone]
        self._bytes -= sum(map(row_size, rows))
        self._counts[draft.session] = 0
        ids = sum(len(row.ids or b"") for row in rows) // ID_BYTES
        entry = self._add(draft._replace(event=SessionErased(len(gone), ids)))
        del self._sessions[draft.session]
        return entry


def _seq(entry: Entry) -> int:
    return entry.seq
