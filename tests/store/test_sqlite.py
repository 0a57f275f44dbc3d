"""The journal in SQLite: the contract, and what only a file can show."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from shadow_reader.errors import JournalFormatError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.journal import Journal, SessionRow
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.pool import ReaderPool
from shadow_reader.store.query import PAGE_BYTES, EntryQuery, newest_seq, read_page
from shadow_reader.store.reader import JournalReader
from tests.store.contract import JournalContract
from tests.store.contract_house import House
from tests.store.drafts import (
    entry,
    erased,
    everything,
    files_in,
    opened,
    output,
    seqs,
    stopped,
)


async def writer_does(journal: Journal, sql: str) -> None:
    """Run a statement on the writer's own connection."""
    assert isinstance(journal, SqliteJournal)
    await journal._parts.writer.run(lambda db: db.execute(sql).fetchall())


class SqliteHouse(House):
    """Breaks a commit by forbidding its connection to write."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def make(self, pending_limit: int, pending_bytes: int) -> Journal:
        path = self._folder / f"{len(self.opened)}.db"
        return await SqliteJournal.open(
            path, pending_limit=pending_limit, pending_bytes=pending_bytes
        )

    async def break_commits(self, journal: Journal) -> None:
        await writer_does(journal, "PRAGMA query_only = ON")

    async def mend(self, journal: Journal) -> None:
        await writer_does(journal, "PRAGMA query_only = OFF")


class TestSqliteJournal(JournalContract):
    """The contract."""

    @pytest.fixture
    def house(self, tmp_path: Path) -> House:
        return SqliteHouse(tmp_path)


@pytest.mark.parametrize("durability", ["normal", "full"])
async def test_what_was_committed_is_there_after_reopening(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "shadow.db"
    assert durability in ("normal", "full")
    drafts = [opened("a"), output("a", 0), stopped(), opened("b")]
    for number, draft in enumerate(drafts):
        journal = await SqliteJournal.open(
            path, durability="full" if durability == "full" else "normal"
        )
        try:
            assert journal.stats().durability == durability
            assert journal.stats().last_seq == number
            assert list(await journal.submit([draft])) == [number + 1]
        finally:
            await journal.close()
        assert files_in(tmp_path) == ["shadow.db"]
    async with await JournalReader.open(path) as reader:
        assert await everything(reader) == [entry(d, n + 1) for n, d in enumerate(drafts)]
        assert await reader.newest_seq() == 4


async def test_durability_is_sqlite_s_own_setting(tmp_path: Path) -> None:
    for durability, level in (("normal", 1), ("full", 2)):
        journal = await SqliteJournal.open(
            tmp_path / durability, durability="full" if durability == "full" else "normal"
        )
        try:
            for connection in (journal._parts.writer, journal._parts.side):
                found = await connection.run(
                    lambda db: db.execute("PRAGMA synchronous").fetchone()[0]
                )
                assert found == level
        finally:
            await journal.close()


async def test_a_seq_is_never_given_twice_even_when_the_newest_entries_are_erased(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", n) for n in range(5)])
    assert (await journal.erase(erased("a")))[0].seq == 6
    await journal.close()
    journal = await SqliteJournal.open(path)
    assert list(await journal.submit([output("a", 0)])) == [7]
    await journal.close()


async def test_another_process_s_journal_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    async with await JournalReader.open(path) as reader:
        assert await everything(reader) == []
        assert await reader.newest_seq() == 0
        await journal.submit([output("a", 0), output("b", 0)])
        assert await seqs(reader) == [1, 2]
        assert await seqs(reader, "b") == [2]
        assert await reader.sessions() == (SessionRow("a", 1, 1.0, 1), SessionRow("b", 2, 1.0, 1))
        await journal.close()
        assert await seqs(reader) == [1, 2]


async def test_reading_takes_no_lock_and_a_writer_may_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    await (await SqliteJournal.open(path)).close()
    async with await JournalReader.open(path) as reader:
        journal = await SqliteJournal.open(path)
        await journal.submit([output("a", 0)])
        assert await seqs(reader) == [1]
        await journal.close()
        assert await seqs(reader) == [1]


async def test_a_cancelled_read_gives_its_connection_back(tmp_path: Path) -> None:
    journal = await SqliteJournal.open(tmp_path / "shadow.db")
    await journal.submit([output("a", n) for n in range(3_000)])

    async def count() -> int:
        return len([e async for e in journal.entries(turn="other", since=5.0)]) + len(
            await seqs(journal)
        )

    for _ in range(2):
        tasks = [asyncio.create_task(count()) for _ in range(8)]
        await journal.recent_sessions(limit=1)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [d for d in done[1::2] if d != 3_000] == []
        assert all(isinstance(d, asyncio.CancelledError) for d in done[::2])
    assert await journal.sessions() == (SessionRow("a", 3_000, 1.0, 3_000),)
    await journal.close()


async def test_a_long_read_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    await (await SqliteJournal.open(path)).close()
    pool = ReaderPool(path, size=1)
    started = threading.Event()

    def read_for_ever(db: sqlite3.Connection) -> None:
        started.set()
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        db.execute(f"{endless} SELECT max(i) FROM n").fetchone()

    reading = asyncio.ensure_future(pool.run(read_for_ever))
    behind = asyncio.ensure_future(pool.run(newest_seq))
    waiting = asyncio.ensure_future(pool.run(newest_seq))
    await asyncio.to_thread(started.wait)
    waiting.cancel()
    reading.cancel()
    assert await asyncio.wait_for(behind, 30) == 0
    await asyncio.wait({reading, waiting})
    assert reading.cancelled()
    assert waiting.cancelled()
    await pool.close()


async def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    big = Ids.of(range(PAGE_BYTES // 4 // 3 - 100))
    await journal.submit([t.Draft(1.0, "a", "t", t.Prompt(n, big)) for n in range(8)])
    await journal.close()
    for newest_first, expected in ((False, [1, 2, 3, 4]), (True, [8, 7, 6, 5])):
        query = EntryQuery(newest_first=newest_first)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            page = read_page(db, query, None, 512)
            assert [e.seq for e in page.entries] == expected
            rest = read_page(db, query, page.rest, 512)
            assert len(page.entries) + len(rest.entries) == 8


async def test_a_damaged_entry_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", n) for n in range(5)])
    await journal.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE events SET data = X'7B7D' WHERE seq = 3")
    async with await JournalReader.open(path) as reader:
        with pytest.raises(JournalFormatError, match="entry 3: output event") as caught:
            await everything(reader)
        assert caught.value.details["seq"] == 3
        assert [e.seq async for e in reader.entries(after=3)] == [4, 5]


async def test_people_can_read_it_with_an_sqlite_shell(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([opened("a"), output("a", 0, n=2), stopped(), output("gone", 0)])
    await journal.erase(erased("gone"))
    await journal.close()
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT * FROM journal ORDER BY seq").fetchall()
    assert rows == [
        (1, 1.0, "a", "", "session.opened", 1, "{}", None),
        (2, 1.0, "a", "t", "output", 1, '{"offset":0}', b"\0\0\0\0\1\0\0\0"),
        (3, 1.0, "", "", "engine.stopped", 1, '{"reason":"closed"}', None),
        (5, 9.0, "gone", "", "session.erased", 1, '{"event_count":1,"id_count":1}', None),
    ]
