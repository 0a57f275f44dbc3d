"""All sessions' folders under one root, and the room that they share.

Law: before a file is written there is room for all of it under the cap. Where there is none, strays
go first, then whole snapshots of other sessions, the least recently used first; and nobody's goes
for a file that could not fit even then.
"""

from __future__ import annotations

import logging
import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

from shadow_reader.errors import SnapshotFullError
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.faults import refused
from shadow_reader.store.snapshots.session_folder import SessionFolder
from shadow_reader.store.snapshots.usage import Usage

LOCK_NAME: Final = "snapshots.lock"

_HASH_BYTES: Final = 16
_FOLDER_NAME: Final = re.compile(rf"[0-9a-f]{{{2 * _HASH_BYTES}}}")
_USED_LIMIT_NS: Final = 1 << 62

log = logging.getLogger(__name__)


class Shelf:
    """The folders under a root, by name."""

    def __init__(self, root: Path, disk: Disk, usage: Usage) -> None:
        self.root = root
        self.folders: dict[str, SessionFolder] = {}
        self._disk = disk
        self._usage = usage
        self._fixed_bytes = 0
        self._used_ns = 0
        self._synced = True

    def load(self) -> None:
        """Learn what is there.

        Raises:
            OSError: some folder cannot be listed.
        """
        for entry in self._disk.list(self.root):
            if entry.name == LOCK_NAME:
                self._fixed_bytes = entry.size
                self._usage.change(entry.size)
            elif entry.is_folder and _FOLDER_NAME.fullmatch(entry.name):
                folder = SessionFolder(self.root / entry.name, self._disk, self._usage)
                folder.look()
                self.folders[entry.name] = folder
                self._used_ns = max(self._used_ns, folder.used_ns)
            else:
                log.warning("%s is not ours: left alone", self.root / entry.name)

    def path_of(self, session: str) -> Path:
        """The session's folder, whether it is there or not.

        Raises:
            SnapshotError: the name cannot be kept.
        """
        try:
            return self.root / folder_name(session)
        except UnicodeEncodeError as error:
            raise refused(self.root, "session", expected="Unicode", found=ascii(session)) from error

    def get(self, session: str) -> SessionFolder | None:
        """The session's folder, looked at.

        Raises:
            OSError: it cannot be listed.
            SnapshotError: there is something in it that is not ours.
        """
        folder = self.folders.get(self.path_of(session).name)
        if folder is not None:
            folder.look()
            if folder.stranger is not None:
                raise refused(folder.path, "folder", expected="our files", found=folder.stranger)
        return folder

    def make(self, session: str) -> SessionFolder:
        """The session's folder, made if need be, so that the medium has it.

        Raises:
            OSError, SnapshotError: as ``get``; or it cannot be made.
        """
        path = self.path_of(session)
        folder = self.get(session)
        if folder is None:
            folder = self.folders[path.name] = SessionFolder(path, self._disk, self._usage)
            self._synced = False
        self._disk.make_folder(path)
        self.sync()
        folder.look()
        return folder

    def tick(self, wall: float) -> int:
        """A time of use later than all before it, whatever the clock says; nanoseconds."""
        self._used_ns = min(max(int(wall * 1e9), self._used_ns + 1000), _USED_LIMIT_NS)
        return self._used_ns

    def drop(self, folder: SessionFolder) -> None:
        """Remove all of a folder that is ours.

        Raises:
            OSError: of the first step that failed; the others were tried.
        """
        gone = folder.remove()
        if gone:
            self._forget(folder)
            self.sync()

    def sync(self) -> None:
        """Bring the folders' names to the medium, unless it has them."""
        if not self._synced:
            self._disk.fsync_folder(self.root)
            self._synced = True

    def try_drop(self, folder: SessionFolder) -> bool:
        """``drop``, or say in the log why not; True when nothing of it is left."""
        try:
            self.drop(folder)
        except OSError as error:
            log.warning("cannot remove snapshot %s: %s", folder.path, error)
        return not folder.files

    def try_collect(self, folder: SessionFolder, *, keep_folder: bool = False) -> None:
        """Remove what nobody counts on, or say in the log why not; it is tried again later."""
        try:
            if folder.collect(keep_folder=keep_folder):
                self._forget(folder)
                self.sync()
        except OSError as error:
            log.warning("cannot remove strays of %s: %s", folder.path, error)

    def make_room(self, size: int, *, keep: SessionFolder | None) -> None:
        """Let ``size`` bytes more fit; ``keep`` loses strays at most.

        Raises:
            SnapshotFullError: they do not fit.
        """
        if self._usage.fits(size):
            return
        if keep is not None:
            self.try_collect(keep, keep_folder=True)
        own = self._fixed_bytes + (keep.bytes if keep is not None else 0)
        if size == 0 or own + size <= self._usage.cap_bytes:
            others = [folder for folder in self.folders.values() if folder is not keep]
            others.sort(key=lambda folder: (folder.used_ns, folder.path.name))
            self._take_from(others, size)
        if not self._usage.fits(size):
            cap, used = self._usage.cap_bytes, self._usage.bytes
            raise SnapshotFullError(
                f"snapshots {self.root}: {size} bytes more do not fit: the cap is {cap}, used are "
                f"{used}, of them {own} by this session",
                path=str(self.root),
                limit=cap,
                found=used + size,
                own=own,
            )

    def _take_from(self, others: list[SessionFolder], size: int) -> None:
        for folder in others:
            if folder.strays():
                self.try_collect(folder)
        for folder in others:
            if self._usage.fits(size):
                return
            if folder.stranger is None and self.try_drop(folder):
                log.info("evicted snapshot %s", folder.path)

    def _forget(self, folder: SessionFolder) -> None:
        self._synced = False
        folder.forget()
        self.folders.pop(folder.path.name, None)


def folder_name(session: str) -> str:
    """The name of a session's folder.

    Raises:
        UnicodeEncodeError: a session of no Unicode text has none.
    """
    return blake2b(session.encode(), digest_size=_HASH_BYTES).hexdigest()
