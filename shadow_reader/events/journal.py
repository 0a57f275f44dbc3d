"""The contract of a journal; ``store`` has the implementations, everybody else knows only this.

Laws, held by one contract suite for every implementation:

1. ``submit`` never waits and never fails half-way: its future gives the seqs of its entries, which
   follow one another, or an error and then nothing of that submission is in the journal.
2. Entries get their ``seq`` in the order of the submits; a future is done only after the commit.
3. When a commit fails, every submission that waits behind it fails with it, because each was
   decided on what the earlier ones promised. Failure listeners run first, before any future fails
   and before any other task runs.
4. The queue is bounded: ``room`` waits while it is full. Whoever submits calls ``await room()``
   and then decides and submits without another await in between.
5. Cancelling a waiter cancels nothing: what was submitted is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shadow_reader.events.types import Draft, Entry


@dataclass(frozen=True, slots=True)
class JournalStats:
    """How the journal stands.

    Attributes:
        durability: "normal" (a committed event survives the process) or "full" (the machine too).
        last_seq: newest committed seq, 0 when empty.
        pending: events submitted and not yet committed.
        pending_limit: where ``room`` begins to wait.
        pending_bytes: bytes of what is pending, about.
        pending_bytes_limit: where ``room`` begins to wait too.
        bytes: size on disk with its write-ahead log; of the rows for a journal in memory.
        wal_bytes: of the write-ahead log alone; 0 in memory.
        commits: transactions so far; ``events / commits`` is the group size.
        events: events committed by this process.
    """

    durability: str
    last_seq: int
    pending: int
    pending_limit: int
    pending_bytes: int
    pending_bytes_limit: int
    bytes: int
    wal_bytes: int
    commits: int
    events: int


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in the journal: its newest entry, and how many entries it has."""

    session: str
    last_seq: int
    last_at: float
    events: int


class Journal(Protocol):
    """An ordered, durable log of events with one writer."""

    async def room(self) -> None:
        """Wait, first come first served, until the queue has room.

        Raises:
            ShutDownError: the journal is closing.
        """
        ...

    def submit(self, drafts: Sequence[Draft]) -> Awaitable[range]:
        """Queue one or more drafts to be committed together, in this order; their seqs.

        The awaitable is an asyncio future that may be awaited by several, or by none; it raises
        JournalError or a subclass.

        Raises:
            InvalidInputError: a draft that could not be read back; nothing was queued.
            ShutDownError: the journal is closing.
        """
        ...

    def erase(self, *drafts: Draft) -> Awaitable[tuple[Entry, ...]]:
        """Queue the removal of every entry of the drafts' sessions, of all of them or of none; the
        drafts take their places.

        It keeps its place among the submissions, and fails like one. Removed content is
        overwritten on disk, also in the write-ahead log, before the awaitable is done. Each draft's
        event is a SessionErased whose counts the journal fills in.
        """
        ...

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever submissions failed, before their futures fail (law 3)."""
        ...

    def entries(
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
        """Committed entries that match all that is given, by ``seq``, streamed in bounded pages.

        ``after`` excludes entries with ``seq`` <= it; ``since`` and ``until`` are unix seconds,
        the first included, the second not. Reads never wait for the writer. The newest entry at
        the first page is the last one given, so reading ends while others append.

        Raises:
            JournalFormatError: an entry that cannot be read; names its seq.
            ShutDownError: the journal is closing.
        """
        ...

    async def sessions(self, *, after: str = "", limit: int = 1000) -> tuple[SessionRow, ...]:
        """Sessions by name behind ``after``, at most ``limit``; erased ones are not named."""
        ...

    async def recent_sessions(self, *, limit: int) -> tuple[SessionRow, ...]:
        """The sessions with the newest entries, newest first."""
        ...

    def stats(self) -> JournalStats:
        """Figures for the status."""
        ...

    async def close(self) -> None:
        """Commit what is queued, then close. May be called in any state, and again."""
        ...
