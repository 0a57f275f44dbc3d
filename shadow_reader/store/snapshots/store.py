"""Session snapshots in the file system; the contract is in ``events/snapshots.py``.

Law: a piece, then the head, each written aside, brought to the medium and renamed; only then goes
what no head names. So at each moment, and after any failure, the old or the new snapshot is whole.

One process has a root folder, by a lock in it, and one thread makes the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shadow_reader.clock import Clock
from shadow_reader.errors import (
    JournalError,
    JournalFullError,
    JournalLockedError,
    SnapshotError,
    SnapshotFullError,
)
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor, SnapshotStats
from shadow_reader.store.lock import WriterLock
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.faults import from_system, refused
from shadow_reader.store.snapshots.manifest_text import write_head_text, write_piece_text
from shadow_reader.store.snapshots.reader import SnapshotReader, check_file
from shadow_reader.store.snapshots.session_folder import END, HEAD, SessionFolder
from shadow_reader.store.snapshots.shelf import LOCK_NAME, Shelf
from shadow_reader.store.snapshots.tensor_file import Header, lay_out
from shadow_reader.store.snapshots.usage import Usage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """What bounds the snapshots.

    Attributes:
        cap_bytes: of all files, at every moment.
        ttl_s: seconds that a snapshot is kept after its head was written.
    """

    cap_bytes: int
    ttl_s: float


class FileSnapshots:
    """A ``SnapshotStore`` under one folder. Made by ``open``."""

    def __init__(
        self, shelf: Shelf, usage: Usage, limits: SnapshotLimits, clock: Clock, disk: Disk
    ) -> None:
        self._shelf = shelf
        self._usage = usage
        self._limits = limits
        self._clock = clock
        self._disk = disk
        self._lock: WriterLock | None = None

    @classmethod
    def open(
        cls, root: Path, *, limits: SnapshotLimits, clock: Clock, disk: Disk | None = None
    ) -> FileSnapshots:
        """Take the folder, which is made if need be; remove strays, what is too old, and what
        passes the cap.

        The lock says that no other process writes here. So every unfinished file is a stray,
        whatever process its name tells of: a pid may be in use again.

        Raises:
            SnapshotFullError: the disk is full.
            SnapshotError: another process has the folder (``pid`` in the details, if known), or it
                cannot be used.
        """
        disk = Disk() if disk is None else disk
        usage = Usage(limits.cap_bytes)
        store = cls(Shelf(root, disk, usage), usage, limits, clock, disk)
        try:
            disk.make_folder(root)
            store._lock = _take_lock(root)
            store._shelf.load()
            store._tidy()
        except OSError as error:
            store.close()
            raise from_system(error, root, doing="opening snapshots") from error
        except BaseException:
            store.close()
            raise
        return store

    def find(self, session: str) -> Manifest | None:
        """The session's snapshot, every file of it checked but for the tensors' bytes."""
        with self._reading(session) as folder:
            if folder is None or not folder.has_head:
                return None
            return self._reader(session).manifest()

    def read_head(self, manifest: Manifest) -> Mapping[str, RawTensor]:
        """The head's own tensors; counts as use of the snapshot."""
        with self._reading(manifest.session) as folder:
            tensors = self._reader(manifest.session).head(manifest)
            if folder is not None:
                folder.use(self._shelf.tick(self._clock.wall()))
            return tensors

    def read_piece(self, manifest: Manifest, piece: Piece) -> Mapping[str, RawTensor]:
        """The tensors of one of the manifest's pieces, as views on one buffer."""
        with self._reading(manifest.session) as folder:
            if piece not in manifest.pieces:
                path = self._shelf.path_of(manifest.session)
                names = [each.name for each in manifest.pieces]
                raise refused(path, "piece", expected=names, found=piece.name)
            del folder
            return self._reader(manifest.session).piece(piece)

    def has_piece(self, session: str, name: str) -> bool:
        """Is this piece there, whole in size and shape, from this spill or the last snapshot?"""
        with self._reading(session) as folder:
            return folder is not None and self._piece_there(folder, session, name) is not None

    def write_piece(self, session: str, piece: Piece, tensors: Mapping[str, RawTensor]) -> None:
        """Write a piece of the session's next snapshot; if it is there already, nothing happens."""
        path = self._shelf.path_of(session) / (piece.name + END)
        with self._writing(session, path):
            text = write_piece_text(path, session, piece)
            header, parts = lay_out(path, text, tensors)
            check_file(path, header, piece.digests, data_bytes=piece.bytes)
            folder = self._shelf.make(session)
            there = self._piece_there(folder, session, piece.name)
            if there is None:
                self._write(folder, path.name, header, parts)
            elif there != piece:
                raise refused(path, "a piece of this name", expected=piece, found=there)
            folder.fresh.add(path.name)

    def write_head(self, manifest: Manifest, tensors: Mapping[str, RawTensor]) -> None:
        """Write the head, which completes the snapshot; pieces that it does not name go."""
        session = manifest.session
        path = self._shelf.path_of(session) / HEAD
        with self._writing(session, path):
            now = self._clock.wall()
            header, parts = lay_out(path, write_head_text(path, manifest, now), tensors)
            check_file(path, header, manifest.head_digests)
            folder = self._shelf.make(session)
            for piece in manifest.pieces:
                self._reader(session).check_piece(piece)
            folder.fresh |= {piece.name + END for piece in manifest.pieces}
            self._write(folder, HEAD, header, parts)
            folder.adopt(manifest, now)
        self._shelf.try_collect(folder)

    def abandon(self, session: str) -> None:
        """Give up a spill: the pieces that no head names go. Never fails; strays go later."""
        folder = self._shelf.folders.get(self._shelf.path_of(session).name)
        if folder is not None:
            folder.fresh.clear()
            folder.doubt()  # a spill that came to nothing was no use of the old snapshot
            self._shelf.try_collect(folder)

    def erase(self, session: str) -> bool:
        """Remove everything of the session; True if there was something."""
        path = self._shelf.path_of(session)
        folder = self._shelf.folders.get(path.name)
        try:
            if folder is None:
                self._shelf.sync()
                return False
            self._shelf.drop(folder)
        except OSError as error:
            raise from_system(error, path, doing="erasing snapshot") from error
        return True

    def sweep(self) -> tuple[str, ...]:
        """Remove what is older than the TTL, and strays; the names of the sessions that went."""
        gone = []
        for folder in tuple(self._shelf.folders.values()):
            if folder.fresh or folder.stranger is not None:
                continue
            if not folder.has_head or self._age_s(folder) <= self._limits.ttl_s:
                self._shelf.try_collect(folder)
                continue
            name = folder.manifest.session if folder.manifest else folder.path.name
            if self._shelf.try_drop(folder):
                log.info("snapshot %s is older than %g s: removed", name, self._limits.ttl_s)
                gone.append(name)
        return tuple(gone)

    def sessions(self) -> tuple[str, ...]:
        """Whose snapshots are there, those alone whose heads can be read."""
        manifests = [folder.manifest for folder in self._shelf.folders.values()]
        return tuple(manifest.session for manifest in manifests if manifest is not None)

    def stats(self) -> SnapshotStats:
        """Figures for the status."""
        written = [f.written_at for f in self._shelf.folders.values() if f.has_head]
        return SnapshotStats(
            bytes=self._usage.bytes,
            peak_bytes=self._usage.peak_bytes,
            cap_bytes=self._limits.cap_bytes,
            sessions=len(written),
            newest=max(written, default=None),
            oldest=min(written, default=None),
            ttl_s=self._limits.ttl_s,
        )

    def close(self) -> None:
        """Let go of the folder. May be called again; other calls may not follow."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _tidy(self) -> None:
        for folder in tuple(self._shelf.folders.values()):
            self._shelf.try_collect(folder)
        self.sweep()
        try:
            self._shelf.make_room(0, keep=None)
        except SnapshotFullError as error:  # nothing is written until there is room
            log.warning("%s", error.message)
        self._usage.start_peak()

    def _age_s(self, folder: SessionFolder) -> float:
        """Seconds since the head was written; since a head from the future was first seen."""
        age_s = self._clock.wall() - folder.written_at
        if age_s >= 0:
            folder.future_since = None
            return age_s
        if folder.future_since is None:
            folder.future_since = self._clock.monotonic()
        return self._clock.monotonic() - folder.future_since

    def _reader(self, session: str) -> SnapshotReader:
        return SnapshotReader(self._disk, self._shelf.path_of(session), session)

    def _piece_there(self, folder: SessionFolder, session: str, name: str) -> Piece | None:
        """What a piece in place says of itself, if it can be built on."""
        file = name + END
        if file not in folder.files or file in folder.strays():
            return None
        try:
            return self._reader(session).named(name)
        except SnapshotError as error:
            log.warning("%s", error.message)
            return None

    def _write(
        self, folder: SessionFolder, name: str, header: Header, parts: tuple[memoryview, ...]
    ) -> None:
        text = header.encode()
        size = len(text) + header.data_bytes
        self._shelf.make_room(size, keep=folder)
        used_ns = self._shelf.tick(self._clock.wall())
        folder.write(name, (memoryview(text), *parts), size, used_ns)

    @contextmanager
    def _reading(self, session: str) -> Iterator[SessionFolder | None]:
        """The session's folder; after a failure it is looked at again."""
        path = self._shelf.path_of(session)
        try:
            yield self._shelf.get(session)
        except OSError as error:
            raise from_system(error, path, doing="reading snapshot") from error
        except SnapshotError:
            if path.name in self._shelf.folders:
                self._shelf.folders[path.name].doubt()
            raise

    @contextmanager
    def _writing(self, session: str, path: Path) -> Iterator[None]:
        """Whatever fails gives up the spill."""
        try:
            yield
        except BaseException as error:
            self.abandon(session)
            if isinstance(error, OSError):
                raise from_system(error, path, doing="writing snapshot") from error
            raise


def _take_lock(root: Path) -> WriterLock:
    """The store's lock, with the errors of this package."""
    try:
        return WriterLock.take(root / Path(LOCK_NAME).stem)
    except JournalLockedError as error:
        pid = error.details["pid"]
        who = "another process" if pid is None else f"process {pid}"
        raise SnapshotError(
            f"snapshots {root} are in use by {who}", path=str(root), pid=pid
        ) from error
    except JournalError as error:
        kind = SnapshotFullError if isinstance(error, JournalFullError) else SnapshotError
        raise kind(error.message, **error.details) from error
