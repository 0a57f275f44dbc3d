"""The contract of the snapshots' keeper; ``store`` implements it, everybody else knows only this.

Laws, held by ``tests/store/test_snapshot*.py``:

1. A snapshot is read whole as it was written, or refused whole with the file, what was expected and
   what was found. The bytes of the tensors are the restorer's to check, by the digests.
2. Until ``write_head`` has put the new head in its place, the session's old snapshot stays whole.
3. The files never take more than the cap, not for a moment and not while one is written.
4. A write that fails leaves nothing half done, gives up the whole spill, and hinders no later one.
5. Pieces never change: the same name is the same bytes, and is written once.

All calls are plain and are made by one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as bytes; nothing here knows what they mean.

    Attributes:
        dtype: safetensors' name: "F32", "BF16", "U32", ...
        shape: elements along each dimension; () is one element.
        data: little-endian, in C order. What a reader gets is a view on a buffer of its own.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


Span: TypeAlias = tuple[int, int]
"""Pages [start, stop), counted from the session's beginning."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One immutable file of a snapshot: pages [start, stop) of one slab of the session.

    Attributes:
        name: the file's stem: 1 to 128 lower-case letters, digits and hyphens, not "head". It says
            what is inside: same name, same bytes.
        start, stop: pages, counted from the session's beginning.
        digests: by tensor name, for all of the piece's tensors; hex, opaque to the store.
        bytes: of all tensors together.
    """

    name: str
    start: int
    stop: int
    digests: Mapping[str, str]
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a head says of its snapshot.

    Attributes:
        session, opened_at: whose it is; unix seconds.
        engine: the facts that decide the bits; compared as a whole by whoever restores.
        position: the grid line that the state stands at.
        seq: the journal's seq up to which the ids were known.
        ids_hash: of the ids below ``position``.
        digest: the state digest.
        checkpoints: (position, digest) of each.
        pieces: in the order of their pages.
        head_digests: by tensor name, for all of the head's own tensors.
    """

    session: str
    opened_at: float
    engine: Mapping[str, str | int]
    position: int
    seq: int
    ids_hash: str
    digest: str
    checkpoints: tuple[tuple[int, str], ...]
    pieces: tuple[Piece, ...]
    head_digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SnapshotStats:
    """How the snapshots stand.

    Attributes:
        bytes: of all files, also of those being written.
        peak_bytes: the most that ``bytes`` was since the opening.
        cap_bytes: what ``bytes`` never passes.
        sessions: how many have a snapshot.
        newest, oldest: when heads were written, unix seconds; None without any.
        ttl_s: after so many seconds without a new head, ``sweep`` takes a snapshot.
    """

    bytes: int
    peak_bytes: int
    cap_bytes: int
    sessions: int
    newest: float | None
    oldest: float | None
    ttl_s: float


class SnapshotStore(Protocol):
    """Snapshots of sessions as files, under a cap and for a time.

    Every call raises SnapshotError for what the file system or the caller's values do not allow.
    """

    def find(self, session: str) -> Manifest | None:
        """The session's snapshot, every file of it checked but for the tensors' bytes.

        None when there is none. It does not count as use.

        Raises:
            SnapshotError: there is one, and it is refused; it stays until it is erased, replaced,
                evicted or too old. Erase it before the next spill, so that nothing is built on it.
        """
        ...

    def read_head(self, manifest: Manifest) -> Mapping[str, RawTensor]:
        """The head's own tensors; counts as use of the snapshot.

        Raises:
            SnapshotError: refused, or another head is in its place by now.
        """
        ...

    def read_piece(self, manifest: Manifest, piece: Piece) -> Mapping[str, RawTensor]:
        """The tensors of one of the manifest's pieces, as views on one buffer.

        Raises:
            SnapshotError: refused, or gone: a write for another session may have evicted it.
        """
        ...

    def has_piece(self, session: str, name: str) -> bool:
        """Is this piece there, whole in size and shape, from this spill or the last snapshot?"""
        ...

    def write_piece(self, session: str, piece: Piece, tensors: Mapping[str, RawTensor]) -> None:
        """Write a piece of the session's next snapshot; if it is there already, nothing happens.

        Snapshots of other sessions go, least recently used first, where the cap demands it.

        Raises:
            SnapshotFullError: it does not fit beside what this session holds. An old snapshot
                of the session stays; erase it to make room for the new one.
            SnapshotError: it could not be written, or contradicts itself.
        """
        ...

    def write_head(self, manifest: Manifest, tensors: Mapping[str, RawTensor]) -> None:
        """Write the head, which completes the snapshot; pieces that it does not name go.

        Raises:
            SnapshotFullError, SnapshotError: as ``write_piece``; also when a piece it names is
                missing or says something else. The old or the new snapshot is whole.
        """
        ...

    def abandon(self, session: str) -> None:
        """Give up a spill: the pieces that no head names go. Never fails; strays go later."""
        ...

    def erase(self, session: str) -> bool:
        """Remove everything of the session; True if there was something.

        When it returns, no file of it has a name and the file system was told to keep it so. The
        freed blocks are not overwritten: who reads the bare device may find them.

        Raises:
            SnapshotError: something could not be removed; call it again.
        """
        ...

    def sweep(self) -> tuple[str, ...]:
        """Remove what is older than the TTL, and strays; the names of the sessions that went.

        A head whose time is in the future is as old as this process has seen it there, so a clock
        that jumps back neither makes anything old nor keeps it for ever.
        """
        ...

    def sessions(self) -> tuple[str, ...]:
        """Whose snapshots are there, those alone whose heads can be read."""
        ...

    def stats(self) -> SnapshotStats:
        """Figures for the status."""
        ...

    def close(self) -> None:
        """Let go of the folder. May be called again; other calls may not follow."""
        ...
