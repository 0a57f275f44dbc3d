"""The parts of a service that have threads of their own, on virtual time instead.

A job takes its time on the loop's clock and happens at the end of it, at once and whole. So a
history is the same every time, and whatever lies between two jobs can be looked at, or be where
the process is killed. Everything else of the service is as it is.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from unittest.mock import patch

from shadow_reader.runtime import Runtime
from shadow_reader.store.snapshots.disk import Disk
from tests.fake_device import InlineDevice
from tests.machine.checked_engine import CheckedEngine
from tests.store.snapshot_disk import TestDisk

P = ParamSpec("P")
T = TypeVar("T")

CHUNK_S: Final = 0.1
DISK_S: Final = 0.02
SQLITE_S: Final = 0.003


class InlineConnection:
    """A connection to the journal without its thread; a cancelled caller's job is done all the
    same, as on the thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._line = asyncio.Lock()
        self._jobs: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, connector: Callable[[], sqlite3.Connection]) -> InlineConnection:
        """Connect; what ``connector`` raises comes out here."""
        await asyncio.sleep(SQLITE_S)
        return cls(connector())

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job behind those that were given before."""
        task = asyncio.ensure_future(self._do(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Close, behind all jobs."""
        async with self._line:
            self._db.close()

    async def _do(self, job: Callable[[sqlite3.Connection], T]) -> T:
        async with self._line:
            await asyncio.sleep(SQLITE_S)
            return job(self._db)


class InlineJobs(InlineDevice):
    """The device's and the disk's threads; what only lets go of memory takes no time."""

    def __init__(self, name: str = "shadow-device") -> None:
        super().__init__(DISK_S if name == "shadow-disk" else CHUNK_S)
        self.costs |= {"release": 0.0, "abort": 0.0}

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``job`` at the end of its time, which its function's name says."""

        def named() -> T:
            return job(*args, **kwargs)

        inner: Any = job
        while isinstance(inner, partial):
            inner = inner.func
        named.__name__ = getattr(inner, "__name__", "")
        return await super().run(named)


@contextmanager
def on_virtual_time(disk: Callable[[], TestDisk]) -> Iterator[None]:
    """Services that start within have no threads; ``disk`` makes their snapshots' file system."""

    def made(*_buffer: object) -> Disk:
        return disk()

    with ExitStack() as stack:
        for name, part in (
            ("shadow_reader.store.journal.Connection", InlineConnection),
            ("shadow_reader.store.pool.Connection", InlineConnection),
            ("shadow_reader.assembly.JobThread", InlineJobs),
            ("shadow_reader.assembly.Disk", made),
        ):
            stack.enter_context(patch(name, part))
        yield


def files_below(folder: Path) -> list[Path]:
    """Every file there is now."""
    return [path for path in folder.rglob("*") if path.is_file()]


@dataclass
class Life:
    """One process: its folder, its runtime and engine."""

    folder: Path
    shadow: Runtime
    engine: CheckedEngine
    ready: bool = False

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.folder / "shadow.db"

    @property
    def snapshots(self) -> Path:
        """The snapshots' folder."""
        return self.folder / "snapshots"
