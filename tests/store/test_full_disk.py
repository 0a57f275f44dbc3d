"""A commit that cannot be: nothing of it is kept, the cause is named, and the journal goes on."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import JournalError, JournalFullError
from shadow_reader.store import writer
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.reader import JournalReader
from tests.small_disk import run_on_a_small_disk
from tests.store.drafts import erased, output, seqs


async def test_a_full_database_keeps_nothing_of_the_append(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0)])
    writer_connection = journal._parts.writer
    (pages,) = await writer_connection.run(lambda db: db.execute("PRAGMA page_count").fetchone())
    await writer_connection.run(lambda db: db.execute(f"PRAGMA max_page_count = {pages}"))
    failing = journal.submit([output("a", 1), output("new", 0, n=9000)])
    behind = journal.submit([output("a", 2)])
    for future in (failing, behind):
        with pytest.raises(JournalFullError, match=f"{path}: the disk is full") as caught:
            await future
        assert caught.value.details == {"path": str(path), "found": "SQLITE_FULL"}
    assert await seqs(journal) == [1]
    assert [row.session for row in await journal.sessions()] == ["a"]
    await writer_connection.run(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    assert list(await journal.submit([output("new", 0, n=9000)])) == [2]
    await journal.close()
    async with await JournalReader.open(path) as reader:
        assert await seqs(reader) == [1, 2]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process grows beyond ``size`` bytes meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_file_that_may_not_grow_is_an_error_and_the_journal_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0)])
    with file_size_limit(256 << 10):
        with pytest.raises(JournalError, match="SQLITE_IOERR_WRITE"):
            await journal.submit([output("a", 1, n=100_000)])
        assert await seqs(journal) == [1]
        assert list(await journal.submit([output("a", 1)])) == [2]
    assert list(await journal.submit([output("a", 2, n=100_000)])) == [3]
    await journal.close()
    journal = await SqliteJournal.open(path)
    assert await seqs(journal) == [1, 2, 3]
    await journal.close()


class FailingAt:
    """A connection that fails one statement with an I/O error, after or instead of doing it."""

    def __init__(self, db: sqlite3.Connection, statement: str) -> None:
        self._db = db
        self._statement = statement
        self.armed = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.armed and sql.startswith(self._statement):
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@pytest.mark.parametrize(
    "statement", ["BEGIN", "INSERT INTO events", "UPDATE events", "UPDATE sessions SET n", "COMMIT"]
)
async def test_a_fault_at_any_step_of_a_commit_undoes_the_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    faults: list[FailingAt] = []

    class FaultyWriter(writer.EventWriter):
        def __init__(self, db: sqlite3.Connection) -> None:
            faults.append(FailingAt(db, statement))
            super().__init__(faults[-1])  # type: ignore[arg-type]  # looks like a connection

    monkeypatch.setattr("shadow_reader.store.journal.EventWriter", FaultyWriter)
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0), output("b", 0)])
    faults[0].armed = True
    futures: list[Awaitable[object]] = [
        journal.submit([output("a", 1), output("new", 0, turn="new")]),
        journal.erase(erased("b")),
        journal.submit([output("b", 1)]),
    ]
    for future in futures:
        with pytest.raises(JournalError, match="disk I/O error"):
            await future
    faults[0].armed = False
    assert await seqs(journal) == [1, 2]
    assert [row.session for row in await journal.sessions()] == ["a", "b"]
    assert list(await journal.submit([output("new", 0, turn="new")])) == [3]
    assert (await journal.erase(erased("b")))[0].seq == 4
    await journal.close()
    async with await JournalReader.open(path) as reader:
        assert await seqs(reader) == [1, 3, 4]
        assert [e.turn async for e in reader.entries(session="new", turn="new")] == ["new"]


async def test_nothing_of_a_failed_group_is_left_in_the_log_for_a_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0, n=50)])
    assert path.with_name("shadow.db-wal").stat().st_size > 0
    await journal._parts.writer.run(lambda db: db.execute("PRAGMA query_only = ON"))
    with pytest.raises(JournalError):
        await journal.submit([output("a", 1)])
    assert path.with_name("shadow.db-wal").stat().st_size == 0
    await journal.close()


def test_a_real_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    report = run_on_a_small_disk("tests.store.disk_child", folder, size="1m")
    path = folder / "shadow.db"
    assert report["creating"][0] == "JournalFullError"
    assert f"{path}: the disk is full" in report["creating"][1]
    assert report["files after creating"] == ["filler"]
    assert report["appending"][0] == "JournalFullError"
    assert report["behind"] == ["JournalFullError"] * 3
    assert report["kept"]
    assert report["goes on"]
    assert report["reopened"]
    assert report["files"] == ["shadow.db"]
