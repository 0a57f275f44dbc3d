"""Spilling and restoring as ``tests.fakes.FakeEngine`` does it: by the real rules, without tensors.

A page is its chunk of ids, a state is its line; whoever flips a bit of either is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import numpy as np

from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor, Span
from shadow_reader.shadow.engine import EngineIdentity
from shadow_reader.shadow.snapshot_rules import (
    IDS,
    check_names,
    engine_facts,
    hash_of_ids,
    lines_of,
    needed_pieces,
    page_name,
    piece_name,
    refusal,
    spans,
    state_names,
)

Step = Callable[[str], None]
"""Told of each call by name; may raise or block."""


def raw_ids(ids: Sequence[int]) -> RawTensor:
    """The ids as a tensor."""
    return RawTensor("U32", (len(ids),), np.array(ids, dtype="<u4").tobytes())


def hex_of(raw: RawTensor) -> str:
    """The digest of a tensor."""
    return blake2b(raw.data, digest_size=8).hexdigest()


class FakePinned:
    """A state held still."""

    def __init__(
        self,
        identity: EngineIdentity,
        ids: Ids,
        checkpoints: Sequence[int],
        digest: Callable[[Ids], str],
        step: Step,
        written: Sequence[Span] = (),
    ) -> None:
        self._identity, self._ids, self._digest = identity, ids, digest
        self._spans = spans(len(ids) // identity.grid, written)
        self._checkpoints = tuple(checkpoints)
        self._step = step
        self.released = False

    @property
    def position(self) -> int:
        return len(self._ids)

    @property
    def pieces(self) -> int:
        return len(self._spans)

    def piece(self, index: int) -> Piece:
        self._held("piece")
        start, stop = self._spans[index]
        grid, tensors = self._identity.grid, self._pages(index)
        link = bytes.fromhex(hash_of_ids(self._ids.take(stop * grid)))
        digests = {name: hex_of(raw) for name, raw in tensors.items()}
        size = sum(len(raw.data) for raw in tensors.values())
        return Piece(piece_name(start, stop, link), start, stop, digests, size)

    def copy_piece(self, index: int) -> dict[str, RawTensor]:
        self._held("copy_piece")
        return self._pages(index)

    def copy_head(self) -> dict[str, RawTensor]:
        self._held("copy_head")
        return self._head()

    def manifest(self, *, session: str, opened_at: float, seq: int) -> Manifest:
        self._held("manifest")
        digests = {name: hex_of(raw) for name, raw in self._head().items()}
        hashed = hash_of_ids(self._ids)
        return Manifest(
            session=session,
            opened_at=opened_at,
            engine=engine_facts(self._identity),
            position=self.position,
            seq=seq,
            ids_hash=hashed,
            digest=self._digest(self._ids),
            checkpoints=tuple((c, self._digest(self._ids.take(c))) for c in self._checkpoints),
            pieces=tuple(self.piece(index) for index in range(self.pieces)),
            head_digests=digests | {IDS: hashed},
        )

    def release(self) -> None:
        self.released = True

    def _pages(self, index: int) -> dict[str, RawTensor]:
        start, stop = self._spans[index]
        grid = self._identity.grid
        return {
            page_name(i): raw_ids(self._ids.array(i * grid, (i + 1) * grid).tolist())
            for i in range(start, stop)
        }

    def _head(self) -> dict[str, RawTensor]:
        lines = sorted({*self._checkpoints, self.position})
        states = {name: raw_ids([line]) for line in lines for name in state_names(line)}
        return {IDS: raw_ids(self._ids.array().tolist())} | states

    def _held(self, call: str) -> None:
        assert not self.released, "the pin was released"
        self._step(call)


class FakeRestore:
    """A state on its way back.

    Attributes:
        units: what it holds until it is over, as ``FakeEngine`` counts.
    """

    def __init__(
        self,
        manifest: Manifest,
        head: Mapping[str, RawTensor],
        *,
        ids: Ids,
        line: int,
        grid: int,
        room: Callable[[int], None],
        install: Callable[[Ids, list[int]], None],
        step: Step,
    ) -> None:
        self._manifest, self._ids, self._grid = manifest, ids.take(line), grid
        self._room, self._install, self._step = room, install, step
        self._done = False
        self.pieces = needed_pieces(manifest, grid, line, 0)
        check_names(manifest, "the head", head, manifest.head_digests)
        lines = [position for position in lines_of(manifest) if position <= line]
        for name in (name for position in lines for name in state_names(position)):
            self._same(name, head[name], manifest.head_digests[name])
        room(len(lines))
        self.units = len(lines)

    @property
    def position(self) -> int:
        return len(self._ids)

    def put(self, piece: Piece, tensors: Mapping[str, RawTensor]) -> None:
        assert piece in self.pieces, f"piece {piece.name} is not to be put"
        self._step("put")
        pages = min(piece.stop, self.position // self._grid) - piece.start
        self._room(pages)
        try:
            check_names(self._manifest, f"piece {piece.name}", tensors, piece.digests)
            for name, digest in piece.digests.items():
                self._same(name, tensors[name], digest)
        except BaseException:
            self.abort()
            raise
        self.units += pages
        self.pieces = tuple(other for other in self.pieces if other is not piece)

    def finish(self) -> int:
        assert not self._done, "the restore is over"
        assert not self.pieces, "pieces were not put"
        try:
            self._step("finish")
        except BaseException:
            self.abort()
            raise
        self._done, self.units = True, 0
        marks = [line for line, _ in self._manifest.checkpoints if line <= self.position]
        self._install(self._ids, marks)
        return self.position

    def abort(self) -> None:
        if not self._done:
            self._done, self.units, self.pieces = True, 0, ()

    def _same(self, name: str, raw: RawTensor, digest: str) -> None:
        if hex_of(raw) != digest:
            raise refusal(self._manifest, f"digest of {name}", hex_of(raw), digest)
