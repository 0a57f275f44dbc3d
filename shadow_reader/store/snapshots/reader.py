"""Reading a snapshot's files: each is what its manifest says, or it is refused.

Law: a file's header is checked in itself (``tensor_file``), its text field by field
(``manifest_text``), and here against what was asked for: the session, the piece, the tensors' names
and their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shadow_reader.events.snapshots import Manifest, Piece, RawTensor
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.faults import refused
from shadow_reader.store.snapshots.manifest_text import read_head_text, read_piece_text
from shadow_reader.store.snapshots.session_folder import END, HEAD
from shadow_reader.store.snapshots.tensor_file import Header, read_file, read_header


class SnapshotReader:
    """The files of one session's folder. Every call raises SnapshotError for what is refused."""

    def __init__(self, disk: Disk, folder: Path, session: str) -> None:
        self._disk = disk
        self._folder = folder
        self._session = session

    def manifest(self) -> Manifest:
        """What the head says, once all files are seen to be as it says."""
        manifest = self._check_head(read_header(self._disk, self._folder / HEAD))
        for piece in manifest.pieces:
            self.check_piece(piece)
        return manifest

    def head(self, manifest: Manifest) -> Mapping[str, RawTensor]:
        """The head's tensors, if the head is still this one."""
        header, tensors = read_file(self._disk, self._folder / HEAD)
        found = self._check_head(header)
        if found != manifest:
            raise refused(self._folder / HEAD, "head", expected=manifest.digest, found=found.digest)
        return tensors

    def check_piece(self, piece: Piece) -> None:
        """The piece's file is there, whole in size and shape, and says the same of itself."""
        path = self._folder / (piece.name + END)
        self._check_piece(path, read_header(self._disk, path), piece)

    def piece(self, piece: Piece) -> Mapping[str, RawTensor]:
        """The piece's tensors."""
        path = self._folder / (piece.name + END)
        header, tensors = read_file(self._disk, path)
        self._check_piece(path, header, piece)
        return tensors

    def named(self, name: str) -> Piece:
        """What the piece's file says of itself."""
        path = self._folder / (name + END)
        header = read_header(self._disk, path)
        _, piece = read_piece_text(path, header.about)
        if piece.name != name:
            raise refused(path, "piece", expected=name, found=piece.name)
        self._check_piece(path, header, piece)
        return piece

    def _check_head(self, header: Header) -> Manifest:
        path = self._folder / HEAD
        manifest, _ = read_head_text(path, header.about)
        if manifest.session != self._session:
            raise refused(path, "session", expected=self._session, found=manifest.session)
        check_file(path, header, manifest.head_digests)
        return manifest

    def _check_piece(self, path: Path, header: Header, piece: Piece) -> None:
        session, found = read_piece_text(path, header.about)
        if session != self._session:
            raise refused(path, "session", expected=self._session, found=session)
        if found != piece:
            raise refused(path, "piece", expected=piece, found=found)
        check_file(path, header, piece.digests, data_bytes=piece.bytes)


def check_file(
    path: Path, header: Header, digests: Mapping[str, str], *, data_bytes: int | None = None
) -> None:
    """A digest for each tensor and a tensor for each digest; and so many bytes, where that is said.

    Raises:
        SnapshotError: names the tensors that are missing, or too many, or the bytes.
    """
    missing, extra = digests.keys() - header.specs.keys(), header.specs.keys() - digests.keys()
    if missing or extra:
        what = "missing tensors" if missing else "extra tensors"
        raise refused(path, what, expected=sorted(digests), found=sorted(header.specs))
    if data_bytes is not None and header.data_bytes != data_bytes:
        raise refused(path, "tensors' bytes", expected=data_bytes, found=header.data_bytes)
