"""What is refused at the door: each refusal names the file and leaves everything as it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from shadow_reader.errors import JournalError, JournalFormatError
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.reader import JournalReader
from shadow_reader.store.schema import APPLICATION_ID, MIGRATIONS
from tests.store.drafts import output, seqs


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's bytes and time of change."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


async def a_journal(path: Path, events: int = 300) -> None:
    """A closed journal of several pages."""
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", n, n=50) for n in range(events)])
    await journal.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"not a journal, and longer than a header of SQLite's is\n" * 100)


def short_garbage(path: Path) -> None:
    path.write_bytes(b"{}")


def empty(path: Path) -> None:
    path.touch()


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE bookmarks(url TEXT)")


def foreign_with_a_log(path: Path) -> None:
    foreign(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (garbage, "not a journal, or damaged: file is not a database"),
        (short_garbage, "not a journal, or damaged: file is not a database"),
        (empty, "is empty, not a journal"),
        (foreign, "an SQLite file of another program"),
        (foreign_with_a_log, "an SQLite file of another program"),
        (newer, f"has version {len(MIGRATIONS) + 1}; this build knows up to {len(MIGRATIONS)}"),
        (folder, "is not a file"),
    ],
)
async def test_what_is_not_a_journal_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "shadow.db"
    make(path)
    before = snapshot(tmp_path)
    for open_it in (SqliteJournal.open, JournalReader.open):
        with pytest.raises(JournalFormatError, match=says) as caught:
            await open_it(path)
        assert caught.value.details["path"] == str(path)
        assert str(path) in caught.value.message
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize("left", [0.3, 0.99])
async def test_a_truncated_journal_is_refused(tmp_path: Path, left: float) -> None:
    path = tmp_path / "shadow.db"
    await a_journal(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * left)])
    before = snapshot(tmp_path)
    for open_it in (SqliteJournal.open, JournalReader.open):
        with pytest.raises(JournalFormatError, match="damaged"):
            await open_it(path)
        assert snapshot(tmp_path) == before


async def test_a_newer_version_that_is_only_in_the_log_yet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    await a_journal(path, 1)
    with closing(sqlite3.connect(path)) as newer_build:
        newer_build.execute("PRAGMA user_version = 99")
        for open_it in (SqliteJournal.open, JournalReader.open):
            with pytest.raises(JournalFormatError, match="has version 99"):
                await open_it(path)
    assert not path.with_name("shadow.db.lock").exists()


@pytest.mark.parametrize("name", ["missing/shadow.db", "missing/deep/shadow.db"])
async def test_a_missing_folder_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for open_it in (SqliteJournal.open, JournalReader.open):
        with pytest.raises(JournalError, match=f"journal folder {path.parent} is missing"):
            await open_it(path)
    assert snapshot(tmp_path) == {}


async def test_a_missing_journal_is_not_made_by_a_reader_or_when_told_not_to(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shadow.db"
    with pytest.raises(JournalError, match=f"there is no journal {path}"):
        await JournalReader.open(path)
    with pytest.raises(JournalError, match=f"there is no journal {path}"):
        await SqliteJournal.open(path, create=False)
    assert snapshot(tmp_path) == {}


async def test_a_log_whose_journal_is_gone_is_not_played_into_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0)])
    copy = tmp_path / "copy.db-wal"
    copy.write_bytes(path.with_name("shadow.db-wal").read_bytes())
    await journal.close()
    before = snapshot(tmp_path)
    with pytest.raises(JournalFormatError, match=f"its log {copy} is there") as caught:
        await SqliteJournal.open(tmp_path / "copy.db")
    assert caught.value.details["found"] == str(copy)
    assert snapshot(tmp_path) == before


async def test_what_a_killed_creation_left_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    for name in (".shadow.db.new", ".shadow.db.new-journal", "shadow.db.lock"):
        (tmp_path / name).write_bytes(b"left over")
    await a_journal(path, 3)
    assert list(snapshot(tmp_path)) == ["shadow.db"]
    async with await JournalReader.open(path) as reader:
        assert await seqs(reader) == [1, 2, 3]


async def test_a_path_may_be_a_name_with_strange_characters_or_a_link(tmp_path: Path) -> None:
    strange = tmp_path / "a?b#c%20d ä.db"
    await a_journal(strange, 2)
    link = tmp_path / "link.db"
    link.symlink_to(strange)
    journal = await SqliteJournal.open(str(link), create=False)
    assert await seqs(journal) == [1, 2]
    assert (tmp_path / f"{strange.name}.lock").exists()
    await journal.close()
    assert sorted(snapshot(tmp_path)) == sorted([strange.name, "link.db"])
