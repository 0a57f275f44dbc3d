"""The write-ahead log: kept short, and emptied when something was erased.

Laws: the log is copied into the database beside the writer, on a connection of its own, while
appends go on; the writer copies only the few frames that came meanwhile, after which the log
begins anew. A log that gets long all the same first makes the writer wait for readers, then the
commits for the copying; then a warning names who has the journal open, and at ``LIMIT_AT`` commits
are refused until whoever reads lets go, so that the log never fills the disk. An erasure is done
only when the log was emptied after it: then the removed bytes are in neither file. Another
program's old read transaction delays both.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from shadow_reader.errors import JournalError, JournalFullError
from shadow_reader.events.types import Entry
from shadow_reader.store.connection import Connection, copy_log, empty_log, restart_log
from shadow_reader.store.log_readers import processes_with
from shadow_reader.store.queue import Promise

LOG_BYTES: Final = 16 << 20
"""The log is copied whenever it has grown by about so much."""

RESTART_AT: Final = 2
"""At so many times that, the writer waits a moment for readers, so that the log begins anew."""

WAIT_AT: Final = 4
"""At so many times that, commits wait until it was tried."""

LIMIT_AT: Final = 64
"""At so many times that, 1 GiB, nothing more is committed. Fixed: only an old read transaction that
is held for hours of heavy writing gets it there."""

_FRAME_BYTES: Final = 4096 + 24
_TAIL_FRAMES: Final = 64
_MAX_PASSES: Final = 4
_RETRY_S: Final = (0.01, 1.0)


log = logging.getLogger(__name__)


class LogLength:
    """How long the log is, reckoned between two copyings, which tell.

    The file's size does not say: it stays when the log begins anew (to cut it each time costs a
    commit 10 to 20 ms), and SQLite tells how many pages a commit wrote only with a copying.
    """

    def __init__(self, size: int) -> None:
        self.bytes = float(size)
        self._guessed_pages = 0
        self._scale = 1.0

    def grew(self, pages: int) -> None:
        """A commit wrote about so many pages."""
        self._guessed_pages += pages
        self.bytes += pages * self._scale * _FRAME_BYTES

    def was(self, frames: int, copied: int) -> None:
        """A copying told: so many frames were in the log, and so many of them are copied."""
        if self._guessed_pages:  # far fewer than guessed: it had begun anew in between
            self._scale = min(max(frames / self._guessed_pages, 0.75), 8.0)
        if frames <= copied:  # the next commit begins anew, unless a reader still needs the log
            self.bytes, self._guessed_pages = 0.0, 0
        else:
            self.bytes = float(frames * _FRAME_BYTES)


class LogKeeper:
    """Keeps one journal's log short.

    Args:
        path: of the journal.
        side: a connection that only copies.
        size: the log's bytes at the start.
        scrub: the writer's job after an erasure; False: it must be done again.
    """

    def __init__(
        self,
        path: Path,
        writer: Connection,
        side: Connection,
        *,
        size: int,
        scrub: Callable[[sqlite3.Connection], bool],
    ) -> None:
        self._path = path
        self._warned = False
        self._writer = writer
        self._scrub = scrub
        self._side = side
        self._length = LogLength(size)
        self._copy_at = float(LOG_BYTES)
        self._unclean: list[tuple[Promise[tuple[Entry, ...]], tuple[Entry, ...]]] = []
        self._copying: asyncio.Task[None] | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def committed(self, pages: int) -> None:
        """A group was committed, and wrote about so many pages."""
        self._length.grew(pages)
        if self._length.bytes >= self._copy_at and self._copying is None:
            self._copying = asyncio.create_task(self._copy(), name="journal log")

    async def bounded(self) -> None:
        """Wait for the copying that goes on, if the log is very long.

        Raises:
            JournalFullError: it is at its limit, and an old read transaction keeps it there.
        """
        if self._copying is not None and self._length.bytes >= WAIT_AT * LOG_BYTES:
            await asyncio.wait({self._copying})
        if self._length.bytes >= LIMIT_AT * LOG_BYTES:
            with suppress(sqlite3.Error):
                self._length.was(*await self._writer.run(restart_log))
            if self._length.bytes >= LIMIT_AT * LOG_BYTES:
                readers = await asyncio.to_thread(processes_with, self._path)
                raise JournalFullError(
                    f"the journal's log has {self._length.bytes:.0f} bytes and cannot begin anew: "
                    f"an old read transaction needs it; {_named(readers)}",
                    found=int(self._length.bytes),
                    limit=LIMIT_AT * LOG_BYTES,
                    readers=readers,
                )

    def clean(self, promise: Promise[tuple[Entry, ...]], entries: tuple[Entry, ...]) -> None:
        """Keep ``promise`` once the log was emptied of all that is committed now."""
        self._unclean.append((promise, entries))
        if self._cleaning is None:
            self._cleaning = asyncio.create_task(self._clean(), name="journal erasure")

    async def close(self) -> None:
        """Make a last attempt to empty the log; no reader of ours is left."""
        self._closing.set()
        for task in (self._copying, self._cleaning):
            if task is not None:
                await asyncio.wait({task})
        with suppress(sqlite3.Error):
            await self._writer.run(empty_log)

    async def _copy(self) -> None:
        # what cannot be copied stays in the log, which grows until copying works again
        try:
            with suppress(sqlite3.Error):
                await self._copy_aside()
            with suppress(sqlite3.Error):
                long = self._length.bytes >= RESTART_AT * LOG_BYTES
                self._length.was(*await self._writer.run(restart_log if long else copy_log))
            await self._warn()
        finally:
            self._copy_at = self._length.bytes + LOG_BYTES
            self._copying = None

    async def _warn(self) -> None:
        """Once each time that the log gets long: whoever reads it is for a person to deal with."""
        long = self._length.bytes >= RESTART_AT * LOG_BYTES
        if long and not self._warned:
            readers = await asyncio.to_thread(processes_with, self._path)
            log.warning(
                "the journal's log has %d bytes and cannot begin anew: an old read transaction "
                "needs it; %s; at %d bytes nothing more is committed",
                self._length.bytes,
                _named(readers),
                LIMIT_AT * LOG_BYTES,
            )
        self._warned = long

    async def _copy_aside(self) -> None:
        seen = 0
        for _ in range(_MAX_PASSES):
            frames, _copied = await self._side.run(copy_log)
            self._length.bytes = max(self._length.bytes, frames * _FRAME_BYTES)
            if frames - seen < _TAIL_FRAMES:
                break
            seen = frames

    async def _clean(self) -> None:
        wait_s, longest_s = _RETRY_S
        try:
            while self._unclean:
                asked = len(self._unclean)
                if await self._emptied():
                    self._keep_promises(asked)
                    wait_s = _RETRY_S[0]
                    continue
                if self._closing.is_set():
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), wait_s)
                wait_s = min(2 * wait_s, longest_s)
        finally:
            self._cleaning = None
            self._give_up()

    async def _emptied(self) -> bool:
        try:
            return await self._writer.run(self._scrub)
        except sqlite3.Error:
            return False

    def _keep_promises(self, count: int) -> None:
        for promise, entries in self._unclean[:count]:
            promise.set_result(entries)
        del self._unclean[:count]

    def _give_up(self) -> None:
        for promise, _ in self._unclean:
            promise.fail(
                JournalError(
                    "the session's events are removed, but another program still reads the old "
                    "log: their bytes stay in it until that program ends and the journal is "
                    "opened again"
                )
            )
        self._unclean.clear()


def _named(readers: tuple[str, ...]) -> str:
    if not readers:
        return "who holds it is not to be seen from here"
    return f"the journal is open in {', '.join(readers)}"
