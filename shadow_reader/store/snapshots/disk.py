"""Every call that the snapshots make to the file system, so that each can be made to fail.

Law: no other module here touches a file, except for the lock. A call either does one thing or
raises OSError; what it means is decided elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_READ_BYTES: Final = 4 << 20
"""Asked for at once: little enough that the kernel reads ahead while it copies."""


@dataclass(frozen=True, slots=True)
class Found:
    """A name in a folder. ``size`` in bytes; ``used_ns`` is its modification time."""

    name: str
    is_file: bool
    is_folder: bool
    size: int
    used_ns: int


def plain_buffer(size: int) -> memoryview:
    """Memory that holds anything."""
    return np.empty(size, np.uint8).data  # unlike a bytearray, not zeroed first


class Disk:
    """The real file system. Symbolic links are neither followed nor taken for files.

    Args:
        allocate: makes the buffers that files are read into; a device has some that it likes.
    """

    _allocate: Callable[[int], memoryview] = staticmethod(plain_buffer)

    def __init__(self, allocate: Callable[[int], memoryview] | None = None) -> None:
        if allocate is not None:
            self._allocate = allocate

    def make_folder(self, path: Path) -> None:
        """Make it, and those above it, unless it is there."""
        path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def list(self, folder: Path) -> tuple[Found, ...]:
        """What is in the folder, by name."""
        with os.scandir(folder) as entries:
            found = [_look_at(entry) for entry in entries]
        return tuple(sorted(found, key=lambda entry: entry.name))

    def create(self, path: Path) -> int:
        """An empty file, open for writing; what had the name is cut to nothing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, FILE_MODE)

    def open(self, path: Path) -> int:
        """A file, open for reading from its start to its end."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return descriptor

    def size(self, descriptor: int) -> int:
        """Bytes of an open file."""
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, size: int) -> memoryview:
        """The next ``size`` bytes, or fewer where the file ends, in a buffer of their own."""
        buffer = self._allocate(size)
        done = 0
        while done < size:
            count = os.readv(descriptor, [buffer[done : done + _READ_BYTES]])
            if count == 0:
                break
            done += count
        return buffer[:done]

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of ``data``; how many bytes."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Bring an open file's bytes to the medium."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def touch(self, target: Path | int, used_ns: int) -> None:
        """Set the modification time of a path or an open file."""
        os.utime(target, ns=(used_ns, used_ns))

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its name, in the place of what had it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def fsync_folder(self, path: Path) -> None:
        """Bring a folder's names to the medium."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _look_at(entry: os.DirEntry[str]) -> Found:
    there = entry.stat(follow_symlinks=False)
    return Found(
        entry.name,
        stat.S_ISREG(there.st_mode),
        stat.S_ISDIR(there.st_mode),
        there.st_size,
        there.st_mtime_ns,
    )
