"""Snapshots in memory: what the tests of spilling and restoring write to and read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import Manifest, RawTensor
from shadow_reader.shadow.engine import Engine, Pinned, Restore

Tensors = Mapping[str, RawTensor]


@dataclass(frozen=True)
class Snapshot:
    """A manifest, the head's tensors, and each piece's by its name."""

    manifest: Manifest
    head: Tensors
    pieces: Mapping[str, Tensors]

    def with_piece(self, name: str, tensors: Tensors) -> Snapshot:
        """The same with one piece's tensors changed."""
        return replace(self, pieces={**self.pieces, name: tensors})


def copy_out(pinned: Pinned, session: str = "s") -> Snapshot:
    """Everything of the pinned state, with bytes of its own; the pin is not released."""
    pieces = {}
    for index in range(pinned.pieces):
        pieces[pinned.piece(index).name] = own(pinned.copy_piece(index))
    head = own(pinned.copy_head())
    return Snapshot(pinned.manifest(session=session, opened_at=1.5, seq=7), head, pieces)


def spill(engine: Engine, session: str) -> Snapshot:
    """A snapshot of the session's state, which stays."""
    pinned = engine.pin(session)
    assert pinned is not None
    try:
        return copy_out(pinned, session)
    finally:
        pinned.release()


def put_all(restore: Restore, snapshot: Snapshot) -> None:
    """Put every piece that is wanted."""
    for piece in restore.pieces:
        restore.put(piece, snapshot.pieces[piece.name])


def bring_back(engine: Engine, session: str, snapshot: Snapshot, known: Ids) -> int:
    """Restore; the line. Nothing stays when it fails, also for want of room."""
    restore = engine.begin_restore(session, snapshot.manifest, snapshot.head, known)
    try:
        put_all(restore, snapshot)
        return restore.finish()
    finally:
        restore.abort()


def own(tensors: Tensors) -> dict[str, RawTensor]:
    """The same in bytes of their own, as a file would have them."""
    return {name: RawTensor(raw.dtype, raw.shape, bytes(raw.data)) for name, raw in tensors.items()}


def flipped(raw: RawTensor, bit: int) -> RawTensor:
    """The tensor with one bit changed."""
    data = bytearray(raw.data)
    data[bit // 8] ^= 1 << (bit % 8)
    return RawTensor(raw.dtype, raw.shape, bytes(data))
