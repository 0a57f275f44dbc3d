"""Closing in every state: no thread, no file descriptor and no file is left over."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import aiosqlite
import pytest

from shadow_reader.errors import JournalError, ShutDownError
from shadow_reader.store.connection import Connection
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.pool import READERS
from shadow_reader.store.reader import JournalReader
from tests.store.drafts import erased, everything, files_in, output, seqs


def descriptors() -> int:
    """Open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """As many threads and descriptors afterwards as before, and only the journal's file."""
    threads, files = set(threading.enumerate()), descriptors()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)  # told to end already; at most it has not got there yet
    assert set(threading.enumerate()) == threads
    assert descriptors() == files
    assert files_in(tmp_path) in ([], ["shadow.db"])


async def opened(folder: Path) -> SqliteJournal:
    return await SqliteJournal.open(folder / "shadow.db", pending_limit=1)


async def test_at_once(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await journal.close()


async def test_twice_and_at_the_same_time(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await asyncio.gather(*(journal.close() for _ in range(5)))
    await journal.close()


async def test_never_opened(tmp_path: Path) -> None:
    (tmp_path / "shadow.db").write_text("no journal" * 1000)
    for _ in range(3):
        with pytest.raises(JournalError):
            await opened(tmp_path)
        with pytest.raises(JournalError):
            await JournalReader.open(tmp_path / "shadow.db")


async def test_a_connection_that_fails_to_open_waits_for_its_thread() -> None:
    made: list[Connection] = []

    class Kept(Connection):
        def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
            super().__init__(connector)
            made.append(self)

    def fails() -> sqlite3.Connection:
        raise sqlite3.OperationalError("no such luck")

    with pytest.raises(sqlite3.OperationalError, match="no such luck"):
        await Kept.open(fails)
    if hasattr(aiosqlite.Connection, "stop"):  # before 0.22 the thread reports to nobody
        assert made[0]._stopped is not None
        assert made[0]._stopped.done()


async def test_opening_cancelled_at_any_moment(tmp_path: Path) -> None:
    for steps in range(12):
        opening = asyncio.ensure_future(opened(tmp_path))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()
    journal = await opened(tmp_path)  # the lock is free, nothing holds the file
    assert await seqs(journal) == []
    await journal.close()


async def test_opening_a_reader_cancelled_at_any_moment(tmp_path: Path) -> None:
    await (await opened(tmp_path)).close()
    for steps in range(12):
        opening = asyncio.ensure_future(JournalReader.open(tmp_path / "shadow.db"))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()
    await (await opened(tmp_path)).close()  # takes a left-over log with it


async def test_with_events_in_the_queue(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    futures = [journal.submit([output("a", n)]) for n in range(100)]
    erasing = journal.erase(erased("b"))
    await journal.close()
    assert [seq for future in futures for seq in future.result()] == list(range(1, 101))
    assert [e.seq for e in erasing.result()] == [101]
    async with await JournalReader.open(tmp_path / "shadow.db") as reader:
        assert await seqs(reader) == list(range(1, 102))
    await (await opened(tmp_path)).close()


async def test_right_after_an_erasure_was_committed(tmp_path: Path) -> None:
    for steps in range(12):
        journal = await opened(tmp_path)
        await journal.submit([output("a", 0)])
        erasing = journal.erase(erased("a"))
        for _ in range(steps):
            await asyncio.sleep(0)
        await asyncio.wait_for(journal.close(), 30)
        assert isinstance(erasing.result()[0].seq, int)

    journal = await opened(tmp_path)
    erasing = journal.erase(erased("a"))
    closings = []
    committed = journal._queue._queue[-1].promise  # the commit's, before anybody hears of it
    committed.add_done_callback(lambda _: closings.append(asyncio.ensure_future(journal.close())))
    await asyncio.wait_for(erasing, 30)
    await closings[0]


async def test_with_waiters_for_room_and_readers_that_stream(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await journal.submit([output("a", n) for n in range(3000)])
    readings = [journal.entries() for _ in range(2 * READERS)]
    assert [(await anext(r)).seq for r in readings] == [1] * len(readings)
    pages = [asyncio.ensure_future(everything(journal)) for _ in range(2 * READERS)]
    last = journal.submit([output("a", 0)])
    waiting = [asyncio.ensure_future(journal.room()) for _ in range(3)]
    await asyncio.sleep(0)
    await journal.close()
    assert list(await last) == [3001]
    for refused in (*waiting, *pages):
        with pytest.raises(ShutDownError):
            await refused
    for reading in readings:
        with pytest.raises(ShutDownError):
            async for _ in reading:
                pass


async def test_after_a_failed_commit(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await journal._parts.writer.run(lambda db: db.execute("PRAGMA query_only = ON"))
    failing = journal.submit([output("a", 0)])
    await journal.close()
    assert isinstance(failing.exception(), JournalError)


async def test_with_the_file_gone(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await journal.submit([output("a", 0)])
    for name in files_in(tmp_path):
        os.unlink(tmp_path / name)  # noqa: PTH108  # as another program would
    await journal.close()


@pytest.mark.parametrize("end", ["cancelled", "raised"])
async def test_inside_a_with_block_that_ends_early(tmp_path: Path, end: str) -> None:
    async def use() -> None:
        async with await opened(tmp_path) as journal:
            journal.submit([output("a", 0)])
            inside.set()
            if end == "raised":
                raise LookupError
            await asyncio.Event().wait()

    inside = asyncio.Event()
    using = asyncio.ensure_future(use())
    await inside.wait()
    if end == "cancelled":
        using.cancel()
    with pytest.raises((asyncio.CancelledError, LookupError)):
        await using
    async with await JournalReader.open(tmp_path / "shadow.db") as reader:
        assert await seqs(reader) == [1]
    await (await opened(tmp_path)).close()


FORGETFUL = """
import asyncio, sys
from shadow_reader.events import types as t
from shadow_reader.store.connection import Connection
from shadow_reader.store.journal import SqliteJournal

async def main(path):
    journal = await SqliteJournal.open(path)
    await journal.submit([t.Draft(1.0, "a", "", t.SessionOpened())])
    journal.submit([t.Draft(1.0, "b", "", t.SessionOpened())])
    await asyncio.sleep(0)

asyncio.run(main(sys.argv[1]))
print("ended")
"""


async def test_a_program_that_never_closes_ends_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    done = subprocess.run(  # noqa: ASYNC221  # nothing else has to run meanwhile
        [sys.executable, "-c", FORGETFUL, str(path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=True,
    )
    assert done.stdout == b"ended\n"
    journal = await SqliteJournal.open(path)
    assert await seqs(journal, "a") == [1]
    await journal.close()
