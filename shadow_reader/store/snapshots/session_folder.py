"""One session's folder: its head, its pieces, and what may be removed without harm.

Laws: a file has its name only when all its bytes are on the medium. A piece goes only when the head
that is on the medium does not name it, and no spill in progress counts on it. What an earlier
failure left unclear is looked at again before anything is removed.

Names: ``head.safetensors``, ``<piece>.safetensors``, and ``.<file>.<pid>.tmp`` for one that is
being written. Anything else is not ours: then the whole folder is left alone.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from shadow_reader.errors import SnapshotError
from shadow_reader.events.snapshots import Manifest
from shadow_reader.store.snapshots.disk import Disk, Found
from shadow_reader.store.snapshots.manifest_text import PIECE_NAME, read_head_text
from shadow_reader.store.snapshots.tensor_file import read_header
from shadow_reader.store.snapshots.usage import Usage

END: Final = ".safetensors"
HEAD: Final = "head" + END

_UNFINISHED: Final = re.compile(r"\..+\.\d+\.tmp")
_BLOCK_BYTES: Final = 8 << 20

log = logging.getLogger(__name__)


class SessionFolder:
    """What is known of a folder; ``look`` learns it.

    Attributes:
        path: of the folder.
        files: bytes of our files, by name; counted in the usage.
        stranger: a name that is not ours, if there is one.
        manifest: what the head in place says; None without a head, or when it is refused.
        written_at: when the head was written, unix seconds; of a refused one, when it was used.
        used_ns: when the snapshot was last written or restored; only its order counts.
        fresh: files that the spill in progress counts on.
        future_since: monotonic time since when ``written_at`` was seen in the future, if it is.
    """

    def __init__(self, path: Path, disk: Disk, usage: Usage) -> None:
        self.path = path
        self.files: dict[str, int] = {}
        self.stranger: str | None = None
        self.manifest: Manifest | None = None
        self.written_at = 0.0
        self.used_ns = 0
        self.fresh: set[str] = set()
        self.future_since: float | None = None
        self._disk = disk
        self._usage = usage
        self._known = False
        self._synced = False

    @property
    def bytes(self) -> int:
        """Of all our files."""
        return sum(self.files.values())

    @property
    def has_head(self) -> bool:
        """Is there a head, be it a refused one?"""
        return HEAD in self.files

    def look(self) -> None:
        """Learn what is there, unless that is known.

        Raises:
            OSError: what was known before still counts.
        """
        if self._known:
            return
        found = self._list()
        self.stranger = next((entry.name for entry in found if not _is_ours(entry)), None)
        if self.stranger is not None:
            log.warning("%s holds %r, not ours: left alone", self.path, self.stranger)
            found = ()
        for name in self.files.keys() - {entry.name for entry in found}:
            self._count(name, None)
        for entry in found:
            self._count(entry.name, entry.size)
        self.fresh &= self.files.keys()
        self._read_head(found)
        self._known = True

    def doubt(self) -> None:
        """Look again before the next step: a file is not as it should be."""
        self._known = False

    def write(self, name: str, parts: Iterable[memoryview], size: int, used_ns: int) -> None:
        """Write a file of ``size`` bytes and give it its name, on the medium.

        Raises:
            OSError: it may be there, or half of it under a temporary name; ``collect`` follows.
        """
        temporary = f".{name}.{os.getpid()}.tmp"
        self._known = self._synced = False
        self._count(temporary, max(size, self.files.get(temporary, 0)))
        descriptor = self._disk.create(self.path / temporary)
        try:
            for part in parts:
                self._write_all(descriptor, part)
            self._disk.touch(descriptor, used_ns)
            self._disk.fsync(descriptor)
        finally:
            self._disk.close(descriptor)
        self._disk.rename(self.path / temporary, self.path / name)
        self._count(temporary, None)
        self._count(name, size)
        self._disk.fsync_folder(self.path)
        self._known = self._synced = True
        self.used_ns = used_ns

    def adopt(self, manifest: Manifest, written_at: float) -> None:
        """The head in place is this one, whole; the spill is over."""
        self.manifest, self.written_at = manifest, written_at
        self.future_since = None
        self.fresh.clear()

    def use(self, used_ns: int) -> None:
        """The snapshot was restored; that survives a restart if the file system takes it."""
        self.used_ns = used_ns
        try:
            self._disk.touch(self.path / HEAD, used_ns)
        except OSError as error:
            log.warning("cannot note the use of %s: %s", self.path, error)

    def strays(self) -> tuple[str, ...]:
        """Files that may go: unfinished ones, and pieces that nobody counts on."""
        return tuple(name for name in self.files if self._is_stray(name))

    def collect(self, *, keep_folder: bool = False) -> bool:
        """Remove strays, and the folder when nothing is left; True when it is gone.

        Args:
            keep_folder: leave it, even empty: something is about to be written there.

        Raises:
            OSError: of the first step that failed; the others were tried.
        """
        self.look()
        if self.stranger is not None:
            return False
        strays = self.strays()
        errors = self._unlink(name for name in strays if _UNFINISHED.fullmatch(name))
        if not self._synced and self.has_head and self.strays():
            # The medium may still have the head before this one, which names other pieces.
            self._disk.fsync_folder(self.path)
            self._synced = True
        errors += self._unlink(name for name in strays if name in self.files)
        if errors:
            raise errors[0]
        if self.files or keep_folder:
            return False
        self._remove_folder()
        return True

    def remove(self) -> bool:
        """Remove everything of ours; True when the folder is gone too, False when strangers stay.

        The head goes first: while it cannot, the snapshot stays whole.

        Raises:
            OSError: of the first step that failed. Once the head is gone, the others were tried.
        """
        self._known = False
        ours = {entry.name for entry in self._list() if _is_ours(entry)}
        self.fresh.clear()
        errors = self._unlink(ours & {HEAD}) or self._unlink(sorted(ours - {HEAD}))
        if errors:
            raise errors[0]
        if self.stranger is None:
            self._remove_folder()
            return True
        self._disk.fsync_folder(self.path)
        return False

    def forget(self) -> None:
        """The folder is gone, by whatever way."""
        for name in tuple(self.files):
            self._count(name, None)

    def _list(self) -> tuple[Found, ...]:
        try:
            return self._disk.list(self.path)
        except FileNotFoundError:  # somebody removed it
            return ()

    def _remove_folder(self) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove_folder(self.path)

    def _is_stray(self, name: str) -> bool:
        if _UNFINISHED.fullmatch(name):
            return True
        if name == HEAD or name in self.fresh:
            return False
        if self.manifest is None:
            return not self.has_head  # of a refused head nobody knows what it names
        return all(name != piece.name + END for piece in self.manifest.pieces)

    def _unlink(self, names: Iterable[str]) -> list[OSError]:
        errors = []
        for name in names:
            try:
                self._disk.unlink(self.path / name)
            except FileNotFoundError:
                self._count(name, None)
            except OSError as error:
                self._known = False  # it may be gone all the same
                errors.append(error)
            else:
                self._count(name, None)
        return errors

    def _write_all(self, descriptor: int, part: memoryview) -> None:
        done = 0
        while done < len(part):
            done += self._disk.write(descriptor, part[done : done + _BLOCK_BYTES])

    def _read_head(self, found: Sequence[Found]) -> None:
        head = next((entry for entry in found if entry.name == HEAD), None)
        self.manifest = None
        if head is None:
            self.used_ns = max((entry.used_ns for entry in found), default=self.used_ns)
            return
        self.used_ns = max(head.used_ns, self.used_ns if self.fresh else 0)
        path = self.path / HEAD
        try:
            self.manifest, self.written_at = read_head_text(
                path, read_header(self._disk, path).about
            )
        except SnapshotError as error:
            log.warning("%s", error.message)
            self.written_at = head.used_ns / 1e9

    def _count(self, name: str, size: int | None) -> None:
        before = self.files.pop(name, 0)
        if size is not None:
            self.files[name] = size
        elif name == HEAD:
            self.manifest = None
        self._usage.change((size or 0) - before)


def _is_ours(entry: Found) -> bool:
    if not entry.is_file:
        return False
    stem, dot, _ = entry.name.partition(END)
    if entry.name == HEAD or _UNFINISHED.fullmatch(entry.name):
        return True
    return entry.name == stem + END and bool(dot) and PIECE_NAME.fullmatch(stem) is not None
