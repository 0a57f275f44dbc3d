"""File systems that fail, that stop, and that forget what was not brought to the medium.

Every one measures the folder before and after each call that changes it: the cap is never passed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shadow_reader.store.snapshots.disk import Disk

T = TypeVar("T")


class Crash(BaseException):
    """The process is gone: no call does anything any more."""


class TestDisk(Disk):
    """The real file system without its waits, with a fault at one step.

    Attributes:
        steps: changing calls so far, as "call name".
        fail_at: number of the step that fails; None for none. Whatever follows works again.
        after: does the failing step take effect (a write: its first half) all the same?
        crash: does the process end there?
        kinds: every step of these kinds fails, from step ``kinds_from`` on.
    """

    __test__ = False

    def __init__(self, root: Path, cap: int) -> None:
        self.root = root
        self.cap = cap
        self.steps: list[str] = []
        self.fail_at: int | None = None
        self.after = False
        self.crash = False
        self.kinds: frozenset[str] = frozenset()
        self.kinds_from = 0
        self.error = errno.EIO
        self.crashed = False
        self.most = 0

    def measure(self) -> int:
        """Bytes of all files now, which the cap holds."""
        now = _bytes_below(str(self.root))
        assert now <= self.cap, f"{now} bytes with a cap of {self.cap}, {self.steps[-1:]}"
        self.most = max(self.most, now)
        return now

    def _step(self, kind: str, name: str, act: Callable[[], T], half: Callable[[], object]) -> T:
        if self.crashed:
            raise Crash
        number = len(self.steps)
        self.steps.append(f"{kind} {name}")
        if number != self.fail_at and not (kind in self.kinds and number >= self.kinds_from):
            done = act()
            self.measure()
            return done
        if self.after:
            half()
            self.measure()
        if self.crash:
            self.crashed = True
            raise Crash
        raise OSError(self.error, os.strerror(self.error))

    def _whole(self, kind: str, path: Path | int, act: Callable[[], T]) -> T:
        return self._step(kind, getattr(path, "name", ""), act, act)

    def make_folder(self, path: Path) -> None:
        self._whole("make_folder", path, lambda: super(TestDisk, self).make_folder(path))

    def remove_folder(self, path: Path) -> None:
        self._whole("remove_folder", path, lambda: super(TestDisk, self).remove_folder(path))

    def create(self, path: Path) -> int:
        def closed() -> None:
            os.close(super(TestDisk, self).create(path))

        return self._step("create", path.name, lambda: super(TestDisk, self).create(path), closed)

    def write(self, descriptor: int, data: memoryview) -> int:
        return self._step(
            "write",
            "",
            lambda: super(TestDisk, self).write(descriptor, data),
            lambda: super(TestDisk, self).write(descriptor, data[: len(data) // 2]),
        )

    def fsync(self, descriptor: int) -> None:
        self._whole("fsync", descriptor, lambda: None)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)  # a process that ends closes its files

    def touch(self, target: Path | int, used_ns: int) -> None:
        self._whole("touch", target, lambda: super(TestDisk, self).touch(target, used_ns))

    def rename(self, source: Path, target: Path) -> None:
        self._whole("rename", target, lambda: super(TestDisk, self).rename(source, target))

    def unlink(self, path: Path) -> None:
        self._whole("unlink", path, lambda: super(TestDisk, self).unlink(path))

    def fsync_folder(self, path: Path) -> None:
        self._whole("fsync_folder", path, lambda: None)


class ForgetfulDisk(TestDisk):
    """Knows what the medium has: bytes that were synced, under names that were synced."""

    __test__ = False

    def __init__(self, root: Path, cap: int) -> None:
        super().__init__(root, cap)
        self._synced: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, bytes | None]] = {}

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._synced.pop(os.fstat(descriptor).st_ino, None)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        super().fsync(descriptor)
        self._synced[os.fstat(descriptor).st_ino] = self._bytes(descriptor)

    def fsync_folder(self, path: Path) -> None:
        super().fsync_folder(path)
        self._names[path] = {
            found.name: None if found.is_dir() else self._on_medium(found)
            for found in path.iterdir()
        }

    def lose_power(self, target: Path, *, names: str) -> None:
        """What is found after the power came back.

        Args:
            names: that were not synced are "lost" or "kept"; "removed": new ones are lost, but what
                was removed is gone.
        """
        now = {
            folder: {
                found.name: None if found.is_dir() else self._on_medium(found)
                for found in folder.iterdir()
            }
            for folder in (self.root, *(p for p in self.root.iterdir() if p.is_dir()))
        }
        kept = now if names == "kept" else self._names
        if names == "removed":
            kept = {
                folder: {name: data for name, data in old.items() if (folder / name).exists()}
                for folder, old in self._names.items()
            }
        target.mkdir()
        for name, content in kept.get(self.root, {}).items():
            if content is None:
                (target / name).mkdir()
                for inner, data in kept.get(self.root / name, {}).items():
                    assert data is not None
                    (target / name / inner).write_bytes(data)

    def _on_medium(self, path: Path) -> bytes:
        data = self._synced.get(path.stat().st_ino)
        return path.read_bytes()[: path.stat().st_size // 2] if data is None else data

    @staticmethod
    def _bytes(descriptor: int) -> bytes:
        return Path(f"/proc/self/fd/{descriptor}").read_bytes()


def _bytes_below(folder: str) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(
                _bytes_below(entry.path) if entry.is_dir() else entry.stat().st_size
                for entry in entries
            )
    except FileNotFoundError:  # not made yet
        return 0
