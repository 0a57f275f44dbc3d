"""Files and folders that may not be written. Root may write all, so it lays that power down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shadow_reader.store.journal import SqliteJournal
from tests.store.drafts import files_in, output

# Opens the journal for writing and for reading; prints what came of it.
CHILD = """
import asyncio, sys
from shadow_reader.errors import JournalError
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.reader import JournalReader

async def main(path):
    try:
        await (await SqliteJournal.open(path)).close()
        print("opened")
    except JournalError as error:
        print(type(error).__name__, error)
    try:
        async with await JournalReader.open(path) as reader:
            print("read", [entry.seq async for entry in reader.entries()])
    except JournalError as error:
        print(type(error).__name__, error)

asyncio.run(main(sys.argv[1]))
"""


def without_power(*command: str) -> list[str]:
    """The command, run by somebody to whom file modes apply."""
    if os.geteuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root without setpriv: file modes do not apply")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search", *command]


def opens(path: Path) -> list[str]:
    """What opening for writing, and reading, came to."""
    done = subprocess.run(
        without_power(sys.executable, "-W", "error", "-c", CHILD, str(path)),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A closed journal of two entries."""
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0), output("a", 1)])
    await journal.close()
    return path


def test_a_read_only_file_can_be_read_but_not_opened_for_writing(path: Path) -> None:
    path.chmod(0o444)
    before = path.read_bytes()
    assert opens(path) == [f"JournalError journal {path} is read-only", "read [1, 2]"]
    assert path.read_bytes() == before
    assert not path.with_name("shadow.db.lock").exists()


def test_a_journal_in_a_read_only_folder_can_be_read_but_not_opened_for_writing(
    path: Path,
) -> None:
    folder = path.parent
    folder.chmod(0o555)
    try:
        assert opens(path) == [
            f"JournalError making the lock file {path}.lock: Permission denied (EACCES)",
            "read [1, 2]",
        ]
        new = folder / "new.db"
        assert opens(new) == [
            f"JournalError making the lock file {new}.lock: Permission denied (EACCES)",
            f"JournalError there is no journal {new}",
        ]
        assert files_in(folder) == ["shadow.db"]
    finally:
        folder.chmod(0o755)


def test_a_file_that_may_not_be_read_is_an_error(path: Path) -> None:
    path.chmod(0o000)
    written, read = opens(path)
    assert written.startswith("JournalError opening journal")
    assert read.startswith("JournalError opening journal")
    assert "SQLITE_CANTOPEN" in written
    assert not path.with_name("shadow.db.lock").exists()
