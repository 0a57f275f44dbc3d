"""Reader connections: a bounded number, opened when first needed, lent for one short job each.

Law: no job outlives its loan. A connection is lent again only after its job ended on the thread,
also when the task that asked was cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from shadow_reader.errors import ShutDownError
from shadow_reader.store.connection import Connection, open_reader
from shadow_reader.store.faults import from_sqlite

READERS: Final = 4
"""Reader connections, and threads, at most. Fixed: more than cores would not read faster."""

_STEPS_BETWEEN_LOOKS: Final = 10_000
"""Steps of SQLite's machine, about a millisecond, between two looks for a job given up."""

T = TypeVar("T")


class _Loan:
    """One job's use of a connection."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        self.abandoned = False

    def abandon(self) -> None:
        """Nobody waits for the job any more: its statement ends soon, or as soon as it begins."""
        self.abandoned = True

    def watch(self, job: Callable[[sqlite3.Connection], T], db: sqlite3.Connection) -> T:
        """Run ``job``, and fail it once it is abandoned.

        Looked at between a statement's steps; ``interrupt`` would be lost between statements.
        """
        db.set_progress_handler(lambda: self.abandoned, _STEPS_BETWEEN_LOOKS)
        try:
            return job(db)
        finally:
            db.set_progress_handler(None, 0)


class ReaderPool:
    """Lends connections that only read ``path``, first come first served."""

    def __init__(self, path: Path, size: int = READERS) -> None:
        self._path = path
        self._free: list[Connection] = []
        self._slots = asyncio.Semaphore(size)
        self._jobs: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a reading job on a connection's thread.

        Raises:
            ShutDownError: the pool is closing. JournalError: the file cannot be read.
        """
        loan = _Loan()
        task = asyncio.create_task(self._lend(loan, job), name="journal reader")
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            loan.abandon()
            raise
        except sqlite3.Error as error:
            raise from_sqlite(error, self._path, doing="reading journal") from error

    async def close(self) -> None:
        """Let running jobs end, refuse those that wait, close the connections."""
        self._closing = True
        while self._jobs:
            await asyncio.wait(tuple(self._jobs))
        while self._free:
            await self._free.pop().close()

    async def _lend(self, loan: _Loan, job: Callable[[sqlite3.Connection], T]) -> T:
        async with self._slots:
            if self._closing or loan.abandoned:
                raise ShutDownError("the journal is closing")
            if not self._free:
                self._free.append(await Connection.open(partial(open_reader, self._path)))
            connection = self._free.pop()
            try:
                return await connection.run(partial(loan.watch, job))
            finally:
                self._free.append(connection)
