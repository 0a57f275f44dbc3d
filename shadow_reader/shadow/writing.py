"""A fork that writes: ids that the model would say next, one at a time, on scratch of its own.

Laws: nothing of the session changes, whatever becomes of the writing. What it stands on is held
until it is let go of, so the session may read on, go back, be spilled or be erased meanwhile. The
likeliest id is taken each time, so the same ids below give the same ids above, however the writing
is cut into slices.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from shadow_reader.errors import ModelError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.memory import Memory
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState
from shadow_reader.shadow.standing import Standing


class WritingFork:
    """The ``Writing`` of a state; see ``engine.Writing``.

    Args:
        standing: what it stands on; held from now on.
        ids: read above it before anything is written, at least one.
        most: ids that may be written. row_bytes: of one KV row.

    Raises:
        OutOfRoomError: its rows and state would pass the cap; nothing is held.
    """

    def __init__(
        self,
        model: Qwen35,
        memory: Memory,
        standing: Standing,
        *,
        ids: Ids,
        most: int,
        row_bytes: int,
    ) -> None:
        self._model = model
        self._memory = memory
        self._standing = standing
        self._ids = ids
        self._left = most
        # While a row is put behind the others, both the old and the new ones are there.
        self._bytes = 2 * ((len(ids) + most) * row_bytes + memory.state_bytes)
        memory.account.take(self._bytes, f"writing {most} ids above {len(ids)}")
        memory.hold(standing.pages, standing.states)
        self._position = len(standing.ids)
        self._rows: torch.Tensor | None = None
        self._state: RecurrentState | None = None
        self._next: int | None = None
        self._released = False

    @torch.inference_mode()
    def next(self, count: int, stops: Collection[int]) -> tuple[int, ...]:
        """Write so many ids, or up to one of ``stops``, which is not among them.

        The first call reads the ids below first. Fewer than ``count``: it is over.

        Raises:
            ModelError: the model gave no finite numbers.
        """
        assert not self._released, "the writing was let go of"
        written: list[int] = []
        if self._next is None:
            self._read(self._ids.array())
        while len(written) < count and self._left:
            found = self._next
            assert found is not None
            if found in stops:
                self._left = 0
                break
            written.append(found)
            self._left -= 1
            if self._left:
                self._read(np.array([found], dtype=np.uint32))
        return tuple(written)

    @torch.inference_mode()
    def release(self) -> None:
        """Let go of everything. May be called again."""
        if not self._released:
            self._released = True
            self._rows = self._state = None
            self._memory.let_go(self._standing.pages, self._standing.states)
            self._memory.account.give(self._bytes)
            self._standing = Standing()

    def _read(self, ids: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
        model, standing = self._model, self._standing
        state = self._state
        if state is None:
            state = model.empty_state() if standing.state is None else standing.state.state
        scratch = [] if self._rows is None else [self._rows]
        step = model.forward(
            torch.from_numpy(ids.astype(np.int64)).to(model.device),
            position=self._position,
            past=[*(page.rows for page in standing.pages), *scratch],
            state=state,
        )
        self._position += len(ids)
        self._state = step.state
        self._rows = step.rows if self._rows is None else torch.cat((self._rows, step.rows), dim=3)
        logits = model.logits(step.hidden[-1:])[0]
        best = int(torch.argmax(logits))
        if not bool(torch.isfinite(logits[best])):
            raise ModelError(f"{model.name} gives no finite logits", model=model.name)
        self._next = best
