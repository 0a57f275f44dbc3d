"""SQLite's errors as the error tree's: each names the file and what was found there."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

from shadow_reader.errors import JournalError, JournalFormatError, JournalFullError

_PRIMARY: Final = 0xFF
_FEW_BYTES: Final = 256 << 10
_NOT_A_JOURNAL: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def from_sqlite(error: sqlite3.Error, path: Path, *, doing: str) -> JournalError:
    """The typed error for what SQLite says, while ``doing`` something with the file."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    facts = {"path": str(path), "found": name}
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path)):
        return JournalFullError(f"{doing} {path}: the disk is full; nothing was kept", **facts)
    if code in _NOT_A_JOURNAL:
        return JournalFormatError(f"{doing} {path}: not a journal, or damaged: {error}", **facts)
    if code == sqlite3.SQLITE_BUSY:
        return JournalError(f"{doing} {path}: another program keeps it locked", **facts)
    if code == sqlite3.SQLITE_READONLY:
        return JournalError(f"{doing} {path}: the file is read-only", **facts)
    return JournalError(f"{doing} {path}: {error} ({name})", **facts)


def from_system(error: OSError, path: Path, *, doing: str) -> JournalError:
    """The typed error for what the system says, while ``doing`` something with the file."""
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    facts = {"path": str(path), "found": name}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JournalFullError(f"{doing} {path}: the disk is full; nothing was kept", **facts)
    return JournalError(f"{doing} {path}: {error.strerror} ({name})", **facts)


def _disk_is_full(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FEW_BYTES
