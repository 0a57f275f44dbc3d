"""The journal in SQLite: one file, one writer, group commit; readers beside it.

The life of an append: ``submit`` encodes it and queues it; the queue's task takes all that waits
as one group; one hop to the writer's thread commits the group; back on the loop its promises are
kept. What was promised survives ``kill -9``; with ``durability="full"`` a power loss too. With
"normal" a power loss may take the newest commits, whole ones: the log is then flushed to the disk
only when it is copied into the database.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self, cast

from shadow_reader.errors import JournalError
from shadow_reader.events.journal import JournalStats
from shadow_reader.events.types import Draft, Entry
from shadow_reader.store import schema
from shadow_reader.store.connection import Connection, Durability, open_side, open_writer
from shadow_reader.store.faults import from_sqlite
from shadow_reader.store.lock import WriterLock
from shadow_reader.store.queue import Promise, WriteQueue
from shadow_reader.store.reader import JournalReader
from shadow_reader.store.submission import Append, Erasure, Result, Submission
from shadow_reader.store.wal import LogKeeper
from shadow_reader.store.writer import EventWriter

PENDING_EVENTS: Final = 8192
PENDING_BYTES: Final = 64 << 20


class _Parts(NamedTuple):
    """What an open journal holds and must give back."""

    lock: WriterLock
    writer: Connection
    side: Connection
    events: EventWriter
    durability: Durability


class SqliteJournal(JournalReader):
    """A ``Journal`` in an SQLite file. Made by ``open``."""

    def __init__(self, path: Path, parts: _Parts, *, limit: int, limit_bytes: int) -> None:
        super().__init__(path)
        self._path = path
        self._parts = parts
        log_bytes = _sizes(path)[1]
        self._log = LogKeeper(
            path, parts.writer, parts.side, size=log_bytes, scrub=parts.events.scrub
        )
        self._queue: WriteQueue[Submission, Result] = WriteQueue(
            self._commit, limit=limit, limit_bytes=limit_bytes
        )
        self._last_seq = parts.events.last_seq
        self._commits = 0
        self._events = 0
        self._closed: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        durability: Durability = "normal",
        pending_limit: int = PENDING_EVENTS,
        pending_bytes: int = PENDING_BYTES,
        create: bool = True,
    ) -> Self:
        """Open a journal for writing; a missing one is made unless ``create`` is False.

        Args:
            pending_limit: events waiting for the writer from which on ``room`` waits.
            pending_bytes: the same for their bytes.

        Raises:
            JournalLockedError: somebody else writes it.
            JournalFormatError: not a journal, a damaged one, or from a newer version.
            JournalFullError, JournalError: it cannot be made or written. In each case nothing
                was created and nothing changed.
        """
        real = schema.locate(path, must_exist=not create)
        opening = asyncio.ensure_future(_open_parts(real, durability))
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            with suppress(JournalError):
                await _close_parts(await opening)
            raise
        return cls(real, opened, limit=pending_limit, limit_bytes=pending_bytes)

    async def room(self) -> None:
        """See ``Journal.room``."""
        await self._queue.room()

    def submit(self, drafts: Sequence[Draft]) -> Promise[range]:
        """See ``Journal.submit``."""
        append = Append.of(drafts)
        promise = self._queue.submit(append, events=len(append.drafts), size=append.size)
        return cast(Promise[range], promise)

    def erase(self, *drafts: Draft) -> Promise[tuple[Entry, ...]]:
        """See ``Journal.erase``.

        The rows go in one transaction in their turn. Then the log is emptied; while another
        program's read transaction forbids that, the promise waits, and the journal goes on.
        """
        erasure = Erasure.of(drafts)
        written = self._queue.submit(erasure, events=len(drafts), size=erasure.size)
        promise: Promise[tuple[Entry, ...]] = Promise(loop=asyncio.get_running_loop())
        written.add_done_callback(partial(self._erased, promise))
        return promise

    def on_failure(self, listener: Callable[[], None]) -> None:
        """See ``Journal.on_failure``."""
        self._queue.on_failure(listener)

    def stats(self) -> JournalStats:
        """Figures for the status."""
        database_bytes, log_bytes = _sizes(self._path)
        return JournalStats(
            durability=self._parts.durability,
            last_seq=self._last_seq,
            pending=self._queue.pending,
            pending_limit=self._queue.limit,
            pending_bytes=self._queue.pending_bytes,
            pending_bytes_limit=self._queue.limit_bytes,
            bytes=database_bytes + log_bytes,
            wal_bytes=log_bytes,
            commits=self._commits,
            events=self._events,
        )

    async def close(self) -> None:
        """Commit what is queued, empty the log, let go of everything. May be called again."""
        if self._closed is None:
            self._closed = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_close_parts, self._parts)
            stack.push_async_callback(self._log.close)
            stack.push_async_callback(super().close)
            stack.push_async_callback(self._queue.close)

    async def _commit(self, group: Sequence[Submission]) -> Sequence[Result]:
        await self._log.bounded()
        try:
            written = await self._parts.writer.run(lambda _db: self._parts.events.write(group))
        except sqlite3.Error as error:
            raise from_sqlite(error, self._path, doing="appending to journal") from error
        self._last_seq = written.last_seq
        self._commits += 1
        self._events += written.events
        self._log.committed(written.pages)
        return written.results

    def _erased(
        self,
        promise: Promise[tuple[Entry, ...]],
        written: asyncio.Future[Result],
    ) -> None:
        if written.cancelled():
            asyncio.Future.cancel(promise)
        elif (error := written.exception()) is not None:
            promise.fail(error)
        else:
            self._log.clean(promise, cast(tuple[Entry, ...], written.result()))


async def _open_parts(path: Path, durability: Durability) -> _Parts:
    lock = WriterLock.take(path)
    async with AsyncExitStack() as stack:
        stack.callback(lock.release)
        writer = await Connection.open(partial(open_writer, path, durability=durability))
        stack.push_async_callback(writer.close)
        try:
            events = await writer.run(EventWriter)
            side = await Connection.open(partial(open_side, path, durability=durability))
        except sqlite3.Error as error:
            raise from_sqlite(error, path, doing="opening journal") from error
        stack.pop_all()
    return _Parts(lock, writer, side, events, durability)


async def _close_parts(parts: _Parts) -> None:
    async with AsyncExitStack() as stack:
        stack.callback(parts.lock.release)
        stack.push_async_callback(parts.writer.close)
        stack.push_async_callback(parts.side.close)


def _sizes(path: Path) -> tuple[int, int]:
    """Bytes of the database and of its log."""
    sizes = []
    for name in (str(path), f"{path}-wal"):
        try:
            sizes.append(os.stat(name).st_size)  # noqa: PTH116  # on the path of every commit
        except FileNotFoundError:
            sizes.append(0)
    return sizes[0], sizes[1]
