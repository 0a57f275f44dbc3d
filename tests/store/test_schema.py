"""The file's versions: each step is one transaction, and reads what the step before it wrote."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from shadow_reader.errors import JournalError, JournalFormatError
from shadow_reader.store import schema
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.reader import JournalReader
from tests.store.drafts import entry, everything, files_in, output, seqs

NEXT = (
    *schema.MIGRATIONS,
    ("CREATE TABLE notes(text TEXT NOT NULL)", "INSERT INTO notes SELECT name FROM sessions"),
    ("ALTER TABLE notes ADD COLUMN length INTEGER", "UPDATE notes SET length = length(text)"),
)


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A closed journal of this build's version."""
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0), output("abc", 0)])
    await journal.close()
    return path


async def test_an_older_file_is_brought_up_to_date_and_keeps_its_entries(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", NEXT)
    with pytest.raises(JournalFormatError, match=r"has version 1, this build reads 3") as caught:
        await JournalReader.open(path)
    assert caught.value.details == {"path": str(path), "found": 1, "expected": 3}
    journal = await SqliteJournal.open(path)
    assert await everything(journal) == [entry(output("a", 0), 1), entry(output("abc", 0), 2)]
    await journal.close()
    assert version_of(path) == 3
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM notes").fetchall() == [("a", 1), ("abc", 3)]


async def test_a_file_built_by_hand_with_nothing_but_its_mark_becomes_a_journal(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shadow.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    assert version_of(path) == 0
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0)])
    assert await seqs(journal) == [1]
    await journal.close()
    assert version_of(path) == len(schema.MIGRATIONS)


async def test_a_step_that_fails_leaves_the_version_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (*NEXT[:2], ("CREATE TABLE half(x)", "INSERT INTO missing VALUES (1)"))
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(JournalError, match="no such table: missing"):
        await SqliteJournal.open(path)
    assert version_of(path) == 2
    assert files_in(path.parent) == ["shadow.db"]
    with closing(sqlite3.connect(path)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    assert "notes" in tables
    assert "half" not in tables
    monkeypatch.setattr(schema, "MIGRATIONS", NEXT)
    journal = await SqliteJournal.open(path)
    assert await seqs(journal) == [1, 2]
    await journal.close()
    assert version_of(path) == 3


async def test_a_newer_file_is_refused_by_an_older_build(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", NEXT)
    await (await SqliteJournal.open(path)).close()
    monkeypatch.undo()
    with pytest.raises(JournalFormatError, match="has version 3; this build knows up to 1"):
        await SqliteJournal.open(path)
    assert version_of(path) == 3


def test_tables_are_strict_where_sqlite_can_be(path: Path) -> None:
    if sqlite3.sqlite_version_info < (3, 37):
        pytest.skip("this SQLite has no strict tables")
    with closing(sqlite3.connect(path)) as db:
        strict = dict(db.execute("SELECT name, strict FROM pragma_table_list WHERE type = 'table'"))
        for table in ("events", "sessions", "turns", "kinds"):
            assert strict[table] == 1
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT INTO kinds(kind, version) VALUES ('x', 'one')")
