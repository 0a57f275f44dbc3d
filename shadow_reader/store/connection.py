"""Connections to the journal's file, each with a thread of its own (aiosqlite's).

A job is one function that runs on the connection's thread: one hop there and back however many
statements it has, and nothing of another task's can come between them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import aiosqlite

from shadow_reader.store import schema
from shadow_reader.store.faults import from_sqlite

Durability: TypeAlias = Literal["normal", "full"]
T = TypeVar("T")

BUSY_MS: Final = 5_000
"""How long a connection waits for another program's lock before it gives up."""

LOG_FILE_BYTES: Final = 64 << 20
"""What the log's file keeps of its size when the log begins anew."""

WRITER_CACHE_KIB: Final = 16 << 10
READER_CACHE_KIB: Final = 2 << 10
_RESTARTING_BUSY_MS: Final = 50
_EMPTYING_BUSY_MS: Final = 250
_FETCH_ROWS: Final = 64


class Connection(aiosqlite.Connection):
    """An SQLite connection on its own thread."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, _FETCH_ROWS)
        self._stopped: asyncio.Future[Any] | None = None
        # A program that ends without closing must not wait for this thread; nothing is lost
        # with it that kill -9 would not take too. (Before aiosqlite 0.22 self is the thread.)
        thread: Any = getattr(self, "_thread", self)
        thread.daemon = True

    @classmethod
    async def open(cls, connector: Callable[[], sqlite3.Connection]) -> Connection:
        """Start the thread and let it connect; what ``connector`` raises comes out here.

        The thread is gone by then: it must not outlive the loop that it would report to.
        """
        connection = cls(connector)
        try:
            await connection
        except BaseException:
            if connection._stopped is not None:
                await connection._stopped
            raise
        return connection

    def stop(self) -> asyncio.Future[Any] | None:
        """End the thread; the base class does so when connecting fails, and does not wait."""
        self._stopped = super().stop()
        return self._stopped

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job on the connection's thread."""
        return cast(T, await self._execute(job, self._conn))  # type: ignore[no-untyped-call]


def open_writer(path: Path, *, durability: Durability) -> sqlite3.Connection:
    """Open the journal for writing, made or migrated where needed; its lock is held.

    Raises:
        JournalError: or a subclass; the file is as it was found.
    """
    if not path.exists():
        schema.create(path)
    schema.inspect(path)
    schema.check_writable(path)
    try:
        db = schema.connect(path, "rw")
    except sqlite3.Error as error:
        raise from_sqlite(error, path, doing="opening journal") from error
    try:
        _prepare_writer(db, durability)
        schema.migrate(db, path)
    except BaseException as error:
        db.close()
        if isinstance(error, sqlite3.Error):
            raise from_sqlite(error, path, doing="opening journal") from error
        raise
    return db


def open_side(path: Path, *, durability: Durability) -> sqlite3.Connection:
    """A second connection to a journal that is open for writing; it only copies the log."""
    db = schema.connect(path, "rw")
    db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    db.execute(f"PRAGMA synchronous = {durability.upper()}")
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the journal for reading, whoever writes it; it is not changed.

    Raises:
        JournalError: or a subclass.
    """
    try:
        db = schema.connect(path, schema.reading_mode(path))
    except sqlite3.Error as error:
        raise from_sqlite(error, path, doing="reading journal") from error
    try:
        db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        db.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
        schema.check_newest(db, path)
    except BaseException as error:
        db.close()
        if isinstance(error, sqlite3.Error):
            raise from_sqlite(error, path, doing="reading journal") from error
        raise
    return db


def copy_log(db: sqlite3.Connection) -> tuple[int, int]:
    """Copy what may be copied, waiting for nobody; (frames in the log, frames copied)."""
    _, frames, copied = _checkpoint(db, "PASSIVE", BUSY_MS)
    return frames, copied


def restart_log(db: sqlite3.Connection) -> tuple[int, int]:
    """Copy all and wait a moment for readers, so that the log begins anew; as ``copy_log``."""
    busy, frames, copied = _checkpoint(db, "RESTART", _RESTARTING_BUSY_MS)
    return frames, copied - busy


def empty_log(db: sqlite3.Connection) -> bool:
    """Copy everything and cut the log to nothing; False while a reader still needs it."""
    busy, _, _ = _checkpoint(db, "TRUNCATE", _EMPTYING_BUSY_MS)
    return not busy


def _checkpoint(db: sqlite3.Connection, mode: str, busy_ms: int) -> tuple[int, int, int]:
    db.execute(f"PRAGMA busy_timeout = {busy_ms}")
    try:
        busy, frames, copied = db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    finally:
        db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    return busy, frames, copied


def _prepare_writer(db: sqlite3.Connection, durability: Durability) -> None:
    db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    db.execute("BEGIN IMMEDIATE")  # a read-only or locked file shows itself here, unchanged
    db.execute("ROLLBACK")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {durability.upper()}")
    db.execute("PRAGMA wal_autocheckpoint = 0")  # store/wal.py does it, off the writer's path
    db.execute(f"PRAGMA journal_size_limit = {LOG_FILE_BYTES}")
    db.execute("PRAGMA secure_delete = ON")
    db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
