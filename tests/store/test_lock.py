"""One writer a journal, whoever and wherever: the kernel's lock, not a file's existence."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest

from shadow_reader.errors import JournalLockedError
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.lock import WriterLock
from shadow_reader.store.reader import JournalReader
from tests.store.drafts import files_in, output, seqs

HOLDER = """
import asyncio, sys
from shadow_reader.store.journal import SqliteJournal

async def main(path):
    journal = await SqliteJournal.open(path)
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await journal.close()

asyncio.run(main(sys.argv[1]))
"""


async def holder(path: Path) -> asyncio.subprocess.Process:
    """Another process that has the journal open for writing until its input ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        str(path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    return process


async def test_a_second_journal_in_this_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    first = await SqliteJournal.open(path)
    with pytest.raises(JournalLockedError) as caught:
        await SqliteJournal.open(path)
    assert caught.value.details == {"path": str(path), "pid": os.getpid()}
    assert str(path) in caught.value.message
    assert list(await first.submit([output("a", 0)])) == [1]
    await first.close()
    second = await SqliteJournal.open(path)
    assert await seqs(second) == [1]
    await second.close()
    assert files_in(tmp_path) == ["shadow.db"]


async def test_another_process_is_named_and_its_death_frees_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    process = await holder(path)
    try:
        with pytest.raises(JournalLockedError, match=f"in process {process.pid}") as caught:
            await SqliteJournal.open(path)
        assert caught.value.details["pid"] == process.pid
        async with await JournalReader.open(path) as reader:
            assert await seqs(reader) == []
        process.send_signal(signal.SIGKILL)
    finally:
        await process.communicate()
    assert "shadow.db.lock" in files_in(tmp_path)
    journal = await SqliteJournal.open(path)
    assert list(await journal.submit([output("a", 0)])) == [1]
    await journal.close()
    assert files_in(tmp_path) == ["shadow.db"]


async def test_another_process_s_close_frees_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    process = await holder(path)
    await process.communicate(b"")
    assert process.returncode == 0
    assert files_in(tmp_path) == ["shadow.db"]
    await (await SqliteJournal.open(path)).close()


def test_a_lock_file_whose_holder_wrote_no_pid_yet_still_locks(tmp_path: Path) -> None:
    journal = tmp_path / "shadow.db"
    with (tmp_path / "shadow.db.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(JournalLockedError, match="in another process") as caught:
            WriterLock.take(journal)
        assert caught.value.details["pid"] is None
    lock = WriterLock.take(journal)
    lock.release()
    lock.release()
    assert files_in(tmp_path) == []


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_not_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "shadow.db"
    flock = fcntl.flock
    taken: list[int] = []

    def flock_after_the_last_holder_left(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        taken.append(descriptor)
        if len(taken) == 1:
            (tmp_path / "shadow.db.lock").unlink()

    monkeypatch.setattr(fcntl, "flock", flock_after_the_last_holder_left)
    lock = WriterLock.take(journal)
    assert len(taken) == 2
    assert files_in(tmp_path) == ["shadow.db.lock"]
    with pytest.raises(JournalLockedError):
        WriterLock.take(journal)
    lock.release()
