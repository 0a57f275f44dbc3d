"""Who else has the journal open, as far as the system tells: for the warning about a long log.

SQLite does not say who holds an old read transaction, only that somebody does. On Linux the open
files of other processes can be looked through; elsewhere, and for processes of other users, nobody
is found.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")


def processes_with(path: Path) -> tuple[str, ...]:
    """Other processes that have ``path`` or its log open, each as ``pid N (name)``, by pid."""
    files = {str(path), f"{path}-wal"}
    found = []
    for folder in _PROCESSES.glob("[0-9]*"):
        pid = int(folder.name)
        if pid != os.getpid() and files & _open_files(folder / "fd"):
            found.append((pid, _name(folder)))
    return tuple(f"pid {pid} ({name})" for pid, name in sorted(found))


def _open_files(descriptors: Path) -> set[str]:
    files = set()
    try:
        for descriptor in descriptors.iterdir():
            files.add(str(descriptor.readlink()))
    except OSError:  # it ended, or is another user's
        pass
    return files


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"
