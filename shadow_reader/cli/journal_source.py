"""One way to ask for entries, two places to ask: a server, or the journal's file.

Law: both give the same rows for the same filters.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from shadow_reader.errors import InvalidInputError
from shadow_reader.events.codec import KINDS
from shadow_reader.events.journal import SessionRow
from shadow_reader.events.rows import entry_row
from shadow_reader.http.client import ShadowClient
from shadow_reader.store.reader import JournalReader

Row = dict[str, Any]

PAGE: Final = 1000
"""Sessions fetched at once."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which entries: all that is given must match. ``since`` and ``until`` are unix seconds."""

    session: str | None = None
    turn: str | None = None
    kinds: tuple[str, ...] = ()
    after: int = 0
    since: float | None = None
    until: float | None = None
    limit: int | None = None
    newest_first: bool = False

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise InvalidInputError(
                f"{unknown[0]!r} is no kind; known are {', '.join(KINDS)}",
                field="kind",
                found=unknown[0],
            )

    def behind(self, seq: int) -> Filters:
        """The same, only behind ``seq``."""
        return replace(self, after=seq)

    def newest(self, count: int) -> Filters:
        """The same, only the newest, the newest first."""
        return replace(self, limit=count, newest_first=True)


class JournalSource(Protocol):
    """Where entries are asked for."""

    def rows(self, filters: Filters, *, ids: bool) -> AsyncGenerator[Row, None]:
        """Matching entries as flat objects; token ids, or only their count."""
        ...

    def sessions(self) -> AsyncGenerator[SessionRow, None]:
        """All sessions by name."""
        ...


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A running server's journal."""

    client: ShadowClient

    async def rows(self, filters: Filters, *, ids: bool) -> AsyncGenerator[Row, None]:
        """See ``JournalSource``."""
        found = self.client.journal(
            session=filters.session,
            turn=filters.turn,
            kind=filters.kinds or None,
            after=filters.after,
            since=filters.since,
            until=filters.until,
            limit=filters.limit,
            order="desc" if filters.newest_first else "asc",
            ids=ids,
        )
        async with contextlib.aclosing(found):
            async for row in found:
                yield row

    async def sessions(self) -> AsyncGenerator[SessionRow, None]:
        """See ``JournalSource``."""
        async with contextlib.aclosing(self.client.sessions()) as found:
            async for row in found:
                yield row


@dataclass(frozen=True, slots=True)
class FileSource:
    """A journal's file, whoever writes it."""

    journal: JournalReader

    async def rows(self, filters: Filters, *, ids: bool) -> AsyncGenerator[Row, None]:
        """See ``JournalSource``."""
        found = self.journal.entries(
            session=filters.session,
            turn=filters.turn,
            kinds=filters.kinds or None,
            after=filters.after,
            since=filters.since,
            until=filters.until,
            limit=filters.limit,
            newest_first=filters.newest_first,
        )
        async for entry in found:
            yield entry_row(entry, with_ids=ids)

    async def sessions(self) -> AsyncGenerator[SessionRow, None]:
        """See ``JournalSource``."""
        after: str | None = ""
        while after is not None:
            page = await self.journal.sessions(after=after, limit=PAGE)
            for row in page:
                yield row
            after = page[-1].session if len(page) == PAGE else None
