"""One process writes a journal: a lock file beside it, which the kernel frees with its holder.

Law: the lock is the kernel's, never the file's mere existence; a file left by a killed process
hinders nobody. The file holds the pid only for the error message, and goes with the lock.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from shadow_reader.errors import JournalLockedError
from shadow_reader.store.faults import from_system


class WriterLock:
    """An exclusive lock on ``<journal>.lock``, held until ``release``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, journal: Path) -> WriterLock:
        """Take the lock without waiting.

        Raises:
            JournalLockedError: somebody has it; names the journal and, if known, the pid.
            JournalError: the lock file cannot be made.
        """
        path = journal.with_name(journal.name + ".lock")
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise from_system(error, path, doing="making the lock file") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _read_pid(descriptor)
                os.close(descriptor)
                if not isinstance(error, BlockingIOError):
                    raise from_system(error, path, doing="locking") from error
                raise _locked(journal, holder) from error
            if _is_at(path, descriptor):
                _write_pid(descriptor)
                return cls(path, descriptor)
            os.close(descriptor)  # its last holder removed it meanwhile

    def release(self) -> None:
        """Let go and remove the file; once is enough, more does nothing."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _write_pid(descriptor: int) -> None:
    with suppress(OSError):  # on a full disk the pid is missing from a message, nothing more
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0)
    return int(text) if text.isdigit() else None


def _locked(journal: Path, holder: int | None) -> JournalLockedError:
    who = "another process" if holder is None else f"process {holder}"
    return JournalLockedError(
        f"journal {journal} is open for writing in {who}", path=str(journal), pid=holder
    )
