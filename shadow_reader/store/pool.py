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
"""Reader connections, and threads, at most."""

T = TypeVar("T")


class _Loan:
    """One job's use of a connection."""

    __slots__ = ("abandoned", "connection")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.abandoned = False

    def abandon(self) -> None:
        """Nobody waits for the job any more: end it soon."""
        self.abandoned = True
        if self.connection is not None:
            self.connection.interrupt_job()


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
            loan.connection = connection = self._free.pop()
            try:
                return await connection.run(job)
            finally:
                loan.connection = None
                self._free.append(connection)
