"""Made-up snapshots, and the ways tests spill them and read them back bit for bit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from shadow_reader.clock import Clock, ManualClock
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.store import FileSnapshots, SnapshotLimits

TTL_S = 48 * 3600.0


@dataclass(frozen=True)
class Sample:
    """A snapshot with everything that its files hold."""

    manifest: Manifest
    head: Mapping[str, RawTensor]
    pieces: Mapping[str, Mapping[str, RawTensor]]


def digests(tensors: Mapping[str, RawTensor]) -> dict[str, str]:
    """A plain hash of each tensor's bytes."""
    return {name: blake2b(t.data, digest_size=8).hexdigest() for name, t in tensors.items()}


def made(seed: str, dtype: str, shape: tuple[int, ...], size: int) -> RawTensor:
    """A tensor of ``size`` random bytes."""
    return RawTensor(dtype, shape, random.Random(seed).randbytes(size))


def sample(session: str, pages: str = "ab", *, rows: int = 40, seq: int = 1) -> Sample:
    """A snapshot with one piece a letter; the letter decides its bytes."""
    pieces = {
        f"{letter}-{rows}": {
            "rows": made(f"{session}{letter}", "BF16", (rows, 5), rows * 10),
            "flags": made(f"{session}{letter}", "U8", (3,), 3),
            "none": RawTensor("F32", (0, 4), b""),
        }
        for letter in pages
    }
    head = {
        "recurrent": made(f"{session}{seq}", "F32", (2, 3), 24),
        "conv": made(f"{session}{seq}c", "BF16", (), 2),
    }
    manifest = Manifest(
        session=session,
        opened_at=1_700_000_000.25,
        engine={"weights": "w" * 16, "grid": 512},
        position=512 * seq,
        seq=seq,
        ids_hash="1d",
        digest=f"d{seq}",
        checkpoints=((512, "c0"), (1024, "c1")),
        pieces=tuple(
            Piece(name, at, at + 1, digests(tensors), sum(len(t.data) for t in tensors.values()))
            for at, (name, tensors) in zip(map(ord, pages), pieces.items(), strict=True)
        ),
        head_digests=digests(head),
    )
    return Sample(manifest, head, pieces)


def opened(
    root: Path,
    *,
    cap: int = 1 << 20,
    clock: Clock | None = None,
    disk: Disk | None = None,
    ttl_s: float = TTL_S,
) -> FileSnapshots:
    """The store in that folder."""
    limits = SnapshotLimits(cap_bytes=cap, ttl_s=ttl_s)
    return FileSnapshots.open(root, limits=limits, clock=clock or ManualClock(), disk=disk)


def spill(store: FileSnapshots, what: Sample) -> list[str]:
    """Write what is not there, head last; the names of the pieces written."""
    session = what.manifest.session
    written = []
    for piece in what.manifest.pieces:
        if not store.has_piece(session, piece.name):
            store.write_piece(session, piece, what.pieces[piece.name])
            written.append(piece.name)
    store.write_head(what.manifest, what.head)
    return written


def plain(tensors: Mapping[str, RawTensor]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors by value."""
    return {name: (t.dtype, t.shape, bytes(t.data)) for name, t in tensors.items()}


def restored(store: FileSnapshots, session: str) -> Sample | None:
    """Everything the store gives of the session, checked by the digests."""
    manifest = store.find(session)
    if manifest is None:
        return None
    head = store.read_head(manifest)
    assert digests(head) == manifest.head_digests
    pieces = {}
    for piece in manifest.pieces:
        pieces[piece.name] = store.read_piece(manifest, piece)
        assert digests(pieces[piece.name]) == piece.digests
    return Sample(manifest, head, pieces)


def same(one: Sample | None, other: Sample | None) -> bool:
    """Equal, bit for bit."""
    if one is None or other is None:
        return one is other
    return (
        one.manifest == other.manifest
        and plain(one.head) == plain(other.head)
        and {n: plain(t) for n, t in one.pieces.items()}
        == {n: plain(t) for n, t in other.pieces.items()}
    )


def files_of(root: Path) -> dict[str, int]:
    """Bytes of every file under the root, by its path in it."""
    return {
        str(path.relative_to(root)): path.lstat().st_size
        for path in sorted(root.rglob("*"))
        if not path.is_dir()
    }


def folder_of(root: Path, session: str) -> Path:
    """Where the session's files are."""
    return root / blake2b(session.encode(), digest_size=16).hexdigest()


def file_bytes(root: Path, session: str) -> int:
    """Of all files of the session."""
    return sum(files_of(folder_of(root, session)).values())


def names_in(folder: Path) -> list[str]:
    """What a folder holds, by name."""
    return sorted(path.name for path in folder.iterdir())
