"""Why a snapshot is refused: each error names the file, what was expected and what was found."""

from __future__ import annotations

import errno
from pathlib import Path

from shadow_reader.errors import SnapshotError, SnapshotFullError


def refused(path: Path, what: str, *, expected: object, found: object) -> SnapshotError:
    """The error for a file, or a value about to become one, that is not as it must be."""
    facts = {"path": str(path), "expected": _plain(expected), "found": _plain(found)}
    return SnapshotError(
        f"snapshot {path}: {what}: expected {facts['expected']}, found {facts['found']}", **facts
    )


def from_system(error: OSError, path: Path, *, doing: str) -> SnapshotError:
    """The error for what the system says, while ``doing`` something with the path."""
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    facts = {"path": str(path), "found": name}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SnapshotFullError(f"{doing} {path}: the disk is full ({name})", **facts)
    return SnapshotError(f"{doing} {path}: {error.strerror or error} ({name})", **facts)


def _plain(value: object) -> object:
    """As JSON, and short: a damaged file may hold anything."""
    if isinstance(value, int | float | bool) or value is None:
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
