"""A committed state held still while it is copied out.

Law: what is copied is the state as it was when it was pinned. A pin is a hold on pages and state
tensors that never change, so the session may read on, go back, be dropped or be erased meanwhile;
the bytes stay counted until the pin is released.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from shadow_reader.events.snapshots import Manifest, Piece, RawTensor, Span
from shadow_reader.shadow.engine import EngineIdentity
from shadow_reader.shadow.memory import HeldState, Memory
from shadow_reader.shadow.raw import to_host
from shadow_reader.shadow.snapshot_rules import (
    IDS,
    engine_facts,
    hash_of_ids,
    page_name,
    piece_name,
    spans,
    state_names,
)
from shadow_reader.shadow.standing import Standing, chained, digest_of


class PinnedState:
    """The ``Pinned`` of a standing above 0; see ``engine.Pinned``."""

    def __init__(
        self,
        memory: Memory,
        standing: Standing,
        identity: EngineIdentity,
        written: Sequence[Span] = (),
    ) -> None:
        assert standing.pages, "a state at 0 is not spilled"
        self._memory = memory
        self._standing = standing
        self._identity = identity
        self._spans = spans(len(standing.pages), written)
        self._released = False
        memory.hold(standing.pages, standing.states)

    @property
    def position(self) -> int:
        """The grid line of the state."""
        return len(self._standing.ids)

    @property
    def pieces(self) -> int:
        """How many pieces its pages make."""
        return len(self._spans)

    @torch.inference_mode()
    def piece(self, index: int) -> Piece:
        """What piece ``index`` is; hashes its pages if nobody has, and those before it."""
        standing, (start, stop) = self._held(), self._spans[index]
        link = chained(standing.pages[:stop])
        fingerprints = [page.fingerprint or b"" for page in standing.pages[start:stop]]
        return Piece(
            name=piece_name(start, stop, link),
            start=start,
            stop=stop,
            digests={page_name(start + i): f.hex() for i, f in enumerate(fingerprints)},
            bytes=(stop - start) * self._memory.pool.page_bytes,
        )

    @torch.inference_mode()
    def copy_piece(self, index: int) -> dict[str, RawTensor]:
        """Its pages, each [full_layers, 2, kv_heads, grid, head_dim] in the model dtype."""
        pages, (start, stop) = self._held().pages, self._spans[index]
        return to_host({page_name(i): pages[i].rows for i in range(start, stop)})

    @torch.inference_mode()
    def copy_head(self) -> dict[str, RawTensor]:
        """The ids, uint32, and the state of every line, as in ``RecurrentState``."""
        standing = self._held()
        tensors = {IDS: torch.from_numpy(np.array(standing.ids.array()))}
        for line, held in self._states().items():
            recurrent, conv = state_names(line)
            tensors |= {recurrent: held.state.recurrent, conv: held.state.conv}
        return to_host(tensors)

    @torch.inference_mode()
    def manifest(self, *, session: str, opened_at: float, seq: int) -> Manifest:
        """What the head says of it all; hashes whatever nobody has hashed yet."""
        standing = self._held()
        assert standing.state is not None
        ids_hash = hash_of_ids(standing.ids)
        digests = {IDS: ids_hash}
        for line, held in self._states().items():
            hashes = (part.hex() for part in held.hashes())
            digests |= dict(zip(state_names(line), hashes, strict=True))
        return Manifest(
            session=session,
            opened_at=opened_at,
            engine=engine_facts(self._identity),
            position=self.position,
            seq=seq,
            ids_hash=ids_hash,
            digest=digest_of(standing.pages, standing.state, self.position),
            checkpoints=tuple((c.position, c.digest) for c in standing.checkpoints),
            pieces=tuple(self.piece(index) for index in range(self.pieces)),
            head_digests=digests,
        )

    @torch.inference_mode()
    def release(self) -> None:
        """Let go. May be called again; nothing else may follow."""
        if not self._released:
            self._released = True
            self._memory.let_go(self._standing.pages, self._standing.states)
            self._standing = Standing()

    def _states(self) -> dict[int, HeldState]:
        """Every line's state; a checkpoint where the state stands is the state itself."""
        standing = self._standing
        states = {c.position: c.held for c in standing.checkpoints}
        assert standing.state is not None
        return states | {self.position: standing.state}

    def _held(self) -> Standing:
        assert not self._released, "the pin was released"
        return self._standing
