"""What a snapshot of a state says of itself, and when it is refused: no tensors, no files.

Laws: a snapshot made by anything that may round differently is refused, and so is one that
contradicts itself; the refusal names the fact, what was expected and what was found. Nothing is
allocated before all of this was looked at.

A piece holds one tensor a page, ``page.N``. The head holds ``ids`` (uint32) and, for the line the
state stands at and each checkpoint's line L, ``recurrent.L`` and ``conv.L``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Final

from shadow_reader.errors import SnapshotError
from shadow_reader.events.ids import ID_BYTES, Ids
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor, Span
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.shadow.engine import EngineIdentity

PIECE_PAGES: Final = 16
"""Pages a piece at most; no piece goes over a multiple of it."""
MOST_PARTS: Final = 4
"""Pieces that so many pages are written as at most, when they come to the disk little by little."""

IDS: Final = "ids"
_HASH_BYTES: Final = 16


def page_name(index: int) -> str:
    """The tensor that holds page number ``index``."""
    return f"page.{index}"


def state_names(line: int) -> tuple[str, str]:
    """The tensors that hold the recurrent and the convolution state at ``line``."""
    return f"recurrent.{line}", f"conv.{line}"


def piece_name(start: int, stop: int, link: bytes) -> str:
    """The file's stem for pages [start, stop), when ``link`` is the digest chain after them."""
    return f"{start}-{stop}-{link.hex()}"


def hash_of_ids(ids: Ids) -> str:
    """Hex hash of the ids, little-endian uint32."""
    return blake2b(ids.to_bytes(), digest_size=_HASH_BYTES).hexdigest()


def engine_facts(identity: EngineIdentity) -> dict[str, str | int]:
    """What must be equal for a state to be taken over: the identity but the model's name."""
    facts: dict[str, str | int] = asdict(identity)
    del facts["model"]
    return facts


def spans(pages: int, written: Iterable[Span] = ()) -> tuple[Span, ...]:
    """Pages [start, stop) of each piece of a state of so many pages.

    Args:
        written: those of an earlier snapshot, in order: they stay pieces, so that only what is new
            is written, but for a last one that would come to be in more than ``MOST_PARTS``.
    """
    found: list[Span] = []
    at = 0
    for span in written:
        if span[0] != at or span[1] > pages:
            break
        found.append(span)
        at = span[1]
    full = at // PIECE_PAGES * PIECE_PAGES
    if at < pages and sum(start >= full for start, _ in found) >= MOST_PARTS:
        found = [span for span in found if span[0] < full]
        at = full
    while at < pages:
        stop = min(at // PIECE_PAGES * PIECE_PAGES + PIECE_PAGES, pages)
        found.append((at, stop))
        at = stop
    return tuple(found)


def lines_of(manifest: Manifest) -> tuple[int, ...]:
    """The lines that the head has a state for, lowest first."""
    return tuple(sorted({position for position, _ in manifest.checkpoints} | {manifest.position}))


def check_manifest(manifest: Manifest, identity: EngineIdentity) -> None:
    """Refuse what this engine did not make, or what contradicts itself.

    Raises:
        SnapshotError: with the first such fact.
    """
    for fact, expected in engine_facts(identity).items():
        _equal(manifest, fact, manifest.engine.get(fact), expected)
    unknown = sorted(manifest.engine.keys() - engine_facts(identity).keys())
    _equal(manifest, "unknown engine facts", unknown, [])
    grid, position = identity.grid, manifest.position
    if position <= 0 or position % grid:
        raise refusal(manifest, "position", position, f"a grid line above 0 (grid {grid})")
    marks = [line for line, _ in manifest.checkpoints]
    inside = all(0 < line <= position and line % grid == 0 for line in marks)
    if not inside or marks != sorted(set(marks)) or len(marks) > MAX_CHECKPOINTS:
        expected = f"at most {MAX_CHECKPOINTS} grid lines up to {position}, in order"
        raise refusal(manifest, "checkpoints", marks, expected)
    found = [(piece.start, piece.stop) for piece in manifest.pieces]
    if not _covers(found, position // grid):
        expected = f"pages 0 to {position // grid} in order, {PIECE_PAGES} a piece at most"
        raise refusal(manifest, "pieces", found, expected)
    for piece in manifest.pieces:
        names = [page_name(index) for index in range(piece.start, piece.stop)]
        _equal(manifest, f"tensors of piece {piece.name}", sorted(piece.digests), sorted(names))
    states = [name for line in lines_of(manifest) for name in state_names(line)]
    _equal(manifest, "head tensors", sorted(manifest.head_digests), sorted([IDS, *states]))


def read_ids(manifest: Manifest, head: Mapping[str, RawTensor], vocabulary: int) -> Ids:
    """The ids that the snapshot's state has read.

    Raises:
        SnapshotError: they are missing, not ids, or not those that the manifest means.
    """
    raw = head.get(IDS)
    if raw is None:
        raise refusal(manifest, IDS, None, "a tensor of the head")
    shape, size = (manifest.position,), manifest.position * ID_BYTES
    found = raw.dtype, tuple(raw.shape), memoryview(raw.data).nbytes
    _equal(manifest, IDS, found, ("U32", shape, size))
    ids = Ids.from_bytes(bytes(raw.data))
    _equal(manifest, "ids_hash", hash_of_ids(ids), manifest.ids_hash)
    _equal(manifest, "digest of ids", hash_of_ids(ids), manifest.head_digests.get(IDS))
    highest = int(ids.array().max())
    if highest >= vocabulary:
        raise refusal(manifest, "highest id", highest, f"below {vocabulary}")
    return ids


def check_names(
    manifest: Manifest, what: str, tensors: Mapping[str, RawTensor], expected: Iterable[str]
) -> None:
    """Refuse a file with a tensor too many or too few.

    Raises:
        SnapshotError: the names differ.
    """
    _equal(manifest, f"tensors of {what}", sorted(tensors), sorted(expected))


def restorable_position(manifest: Manifest, ids: Ids, known: Ids) -> int:
    """Up to which line a restore pays when ``known`` is what is known now; 0: not at all.

    The newest line that the snapshot has a state for, at or below the first id that differs from
    ``ids``, those that it has read.
    """
    cut = ids.common_prefix(known)
    return max((line for line in lines_of(manifest) if line <= cut), default=0)


def needed_pieces(manifest: Manifest, grid: int, position: int, held: int) -> tuple[Piece, ...]:
    """The pieces to read for a state at ``position`` when its first ``held`` pages are there."""
    pages = position // grid
    return tuple(p for p in manifest.pieces if max(p.start, held) < min(p.stop, pages))


def refusal(manifest: Manifest, field: str, found: object, expected: object) -> SnapshotError:
    """The error that says why the snapshot is refused."""
    return SnapshotError(
        f"the snapshot of session {manifest.session!r} is refused: "
        f"{field} is {_short(found)}, expected {_short(expected)}",
        session=manifest.session,
        field=field,
        found=_short(found),
        expected=_short(expected),
    )


def _covers(found: Sequence[Span], pages: int) -> bool:
    """Whether the pieces lie side by side from the first page to the last, each within one slab."""
    ends = [0, *(stop for _, stop in found)]
    inside = all(
        start < stop and (stop - 1) // PIECE_PAGES == start // PIECE_PAGES for start, stop in found
    )
    return inside and [start for start, _ in found] == ends[:-1] and ends[-1] == pages


def _equal(manifest: Manifest, field: str, found: object, expected: object) -> None:
    if found != expected:
        raise refusal(manifest, field, found, expected)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
