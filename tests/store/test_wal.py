"""The write-ahead log stays short while appends go on, and grows only under others' readers."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shadow_reader.errors import JournalFullError
from shadow_reader.store import wal
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.wal import LogLength
from tests.store.drafts import everything, output, seqs

STEP = 128 << 10


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal's path; its log is copied every 128 KiB."""
    monkeypatch.setattr(wal, "LOG_BYTES", STEP)
    return tmp_path / "shadow.db"


def log_bytes(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


async def test_the_log_is_copied_while_appends_and_reads_go_on(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    for number in range(600):
        await journal.submit([output("ab"[number % 2], number, n=200)])
        if number % 100 == 0:
            assert len(await everything(journal)) == number + 1
    assert journal.stats().bytes > 500_000
    # the file keeps its greatest length: what was guessed may be somewhat more
    assert STEP <= log_bytes(path) <= (wal.WAIT_AT + 2) * STEP
    await journal.close()


async def test_one_large_group_after_the_other_does_not_outrun_the_copying(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    for number in range(60):
        await journal.submit([output("a", number * 50 + n, n=500) for n in range(50)])
    assert log_bytes(path) <= (wal.WAIT_AT + 4) * STEP  # of 48 * STEP written
    await journal.close()


async def test_a_long_read_of_another_program_lets_the_log_grow_and_its_end_stops_that(
    path: Path,
) -> None:
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM events").fetchone() == (1,)
        for number in range(1, 200):
            await journal.submit([output("a", number, n=200)])
        assert log_bytes(path) > (wal.WAIT_AT + 4) * STEP
        assert other.execute("SELECT count(*) FROM events").fetchone() == (1,)
        other.execute("ROLLBACK")
        longest = log_bytes(path)
        for number in range(200, 500):
            await journal.submit([output("a", number, n=200)])
        assert log_bytes(path) <= longest + 2 * STEP
    assert await seqs(journal) == list(range(1, 501))
    await journal.close()
    assert not path.with_name("shadow.db-wal").exists()


READER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
print(db.execute("SELECT count(*) FROM events").fetchone(), flush=True)
sys.stdin.read()
"""


async def append_for_ever(journal: SqliteJournal) -> None:
    while True:
        await journal.submit([output("a", 0, n=200)])


async def test_case_33_a_long_reader_is_named_and_the_log_stays_below_its_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wal, "LIMIT_AT", 8)
    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0)])
    with subprocess.Popen(  # noqa: ASYNC220  # it starts at once, and is waited for at the end
        [sys.executable, "-c", READER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        with pytest.raises(JournalFullError) as caught:
            await append_for_ever(journal)
        (found,) = caught.value.details["readers"]
        assert found.startswith(f"pid {reader.pid} (")
        assert found in caught.value.message
        assert caught.value.details["limit"] == 8 * STEP
        assert 7 * STEP <= log_bytes(path) <= 9 * STEP
        (warning,) = [record.getMessage() for record in caplog.records]
        assert found in warning
        with pytest.raises(JournalFullError):
            await journal.submit([output("a", 0, n=200)])
        before = await seqs(journal)
        reader.communicate()
    (seq,) = await journal.submit([output("a", 0, n=200)])
    assert await seqs(journal) == [*before, seq]
    await journal.close()


async def test_a_log_that_cannot_be_copied_is_kept_and_copied_later(path: Path) -> None:
    journal = await SqliteJournal.open(path)

    def broken(_: sqlite3.Connection) -> tuple[int, int]:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wal, "copy_log", broken)
        patched.setattr(wal, "restart_log", broken)
        for number in range(100):
            await journal.submit([output("a", number, n=200)])
        kept = log_bytes(path)
        assert kept > (wal.WAIT_AT + 4) * STEP
    for number in range(100, 300):
        await journal.submit([output("a", number, n=200)])
    assert log_bytes(path) <= kept + 2 * STEP
    await journal.close()
    journal = await SqliteJournal.open(path)
    assert await seqs(journal) == list(range(1, 301))
    await journal.close()


def test_the_log_s_length_is_reckoned_between_copyings_and_corrected_by_them() -> None:
    length = LogLength(5000)
    length.grew(10)
    assert length.bytes == 5000 + 10 * 4120
    length.was(frames=20, copied=20)  # twice as many as was guessed
    assert length.bytes == 0
    length.grew(10)
    assert length.bytes == 20 * 4120
    length.was(frames=40, copied=30)
    assert length.bytes == 40 * 4120
    length.grew(1)  # four for one it was this time
    assert length.bytes == 44 * 4120
    length.was(frames=1, copied=1)  # it began anew meanwhile: that says nothing of the guesses
    length.grew(8)
    assert length.bytes == 6 * 4120
