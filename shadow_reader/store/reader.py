"""Reading a journal, whoever writes it: this process, another one, or nobody any more.

Law: reading changes nothing, never waits for the writer, and holds a read transaction only while
one page is fetched, so the write-ahead log can be emptied between any two pages. (Another
program's long read transaction is what keeps the log growing; here there is none.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from shadow_reader.events.journal import SessionRow
from shadow_reader.events.types import Entry
from shadow_reader.store import schema
from shadow_reader.store.pool import ReaderPool
from shadow_reader.store.query import PAGE_ROWS, EntryQuery, newest_seq, read_page

_SESSION_ROW = (
    "SELECT name, last_seq, last_at, events FROM sessions WHERE NOT erased AND name IS NOT NULL"
)


class JournalReader:
    """Entries and sessions of a journal's file; read-only."""

    def __init__(self, path: Path) -> None:
        self._pool = ReaderPool(path)

    @classmethod
    async def open(cls, path: Path | str) -> JournalReader:
        """Open a journal that anybody may be writing.

        Raises:
            JournalFormatError: not a journal, or not of this build's version.
            JournalError: there is no such file, or it cannot be read.
        """
        real = schema.locate(path, must_exist=True)
        schema.inspect(real)
        reader = cls(real)
        try:
            await reader.newest_seq()
        except BaseException:
            await reader.close()
            raise
        return reader

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        await self.close()

    async def newest_seq(self) -> int:
        """The newest committed seq, 0 when the journal is empty."""
        return await self._pool.run(newest_seq)

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
        """Entries as ``Journal.entries`` gives them, up to the newest one at the first page."""
        wanted = None if kinds is None else tuple(kinds)
        query = EntryQuery(session, turn, wanted, after, since, until, newest_first)
        left = limit
        span = None
        while left is None or left > 0:
            rows = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
            page = await self._pool.run(partial(read_page, query=query, span=span, rows=rows))
            for entry in page.entries:
                yield entry
            if page.rest is None:
                return
            span = page.rest
            left = None if left is None else left - len(page.entries)

    async def sessions(self, *, after: str = "", limit: int = 1000) -> tuple[SessionRow, ...]:
        """Sessions by name behind ``after``, at most ``limit``."""
        return await self._rows("AND name > ? ORDER BY name LIMIT ?", after, limit)

    async def recent_sessions(self, *, limit: int) -> tuple[SessionRow, ...]:
        """The sessions with the newest entries, newest first."""
        return await self._rows("ORDER BY last_seq DESC LIMIT ?", limit)

    async def close(self) -> None:
        """Let pages that are being fetched come in, then close. May be called again."""
        await self._pool.close()

    async def _rows(self, tail: str, *values: object) -> tuple[SessionRow, ...]:
        sql = f"{_SESSION_ROW} {tail}"
        rows = await self._pool.run(lambda db: db.execute(sql, values).fetchall())
        return tuple(SessionRow(*row) for row in rows)
