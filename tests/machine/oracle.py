"""What a fresh prefill gives, by plain forwards: no pool, no shared pages, no engine.

It keeps the rows and the state after each beginning of ids that was asked for, so that a digest
costs only the chunks that nobody asked for before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from shadow_reader.events.ids import Ids
from shadow_reader.shadow.digest import CHAIN_START, chain, joined_digest, tensor_hashes
from shadow_reader.shadow.model.qwen35 import RecurrentState
from tests.shadow.models import Watched

MOST_NODES: Final = 4_000


@dataclass(frozen=True)
class _Node:
    """After some chunks of ids: the rows of each, the state, the digest chain, the digest."""

    rows: tuple[torch.Tensor, ...]
    state: RecurrentState
    link: bytes
    digest: str


class Oracle:
    """Digests and answers of the model on a grid."""

    def __init__(self, model: Watched, grid: int) -> None:
        self.model = model
        self.grid = grid
        self._nodes: OrderedDict[tuple[int, ...], _Node] = OrderedDict()

    def digest(self, read: Sequence[int]) -> str:
        """The state digest after a whole number of chunks, at least one."""
        assert read
        assert len(read) % self.grid == 0
        return self._node(tuple(read)).digest

    def odds(
        self, known: Sequence[int], question: Sequence[int], letters: Sequence[int]
    ) -> tuple[float, ...]:
        """The probabilities of ``letters`` after known ids and a question."""
        line = len(known) // self.grid * self.grid
        node = self._node(tuple(known[:line]))
        with torch.inference_mode():
            step = self.model.forward(
                torch.tensor([*known[line:], *question]),
                position=line,
                past=node.rows,
                state=node.state,
            )
            logits = self.model.logits(step.hidden[-1:], torch.tensor(list(letters)))[0]
            return tuple(torch.softmax(logits.double(), dim=0).tolist())

    def _node(self, read: tuple[int, ...]) -> _Node:
        if not read:
            return _Node((), self.model.empty_state(), CHAIN_START, "")
        found = self._nodes.get(read)
        if found is None:
            found = self._nodes[read] = self._after(self._node(read[: -self.grid]), read)
            if len(self._nodes) > MOST_NODES:
                self._nodes.popitem(last=False)
        return found

    def _after(self, below: _Node, read: tuple[int, ...]) -> _Node:
        position = len(read) - self.grid
        chunk = read[position:]
        with torch.inference_mode():
            step = self.model.forward(
                torch.tensor(chunk), position=position, past=below.rows, state=below.state
            )
            rows = step.rows.clone()
            page, recurrent, conv = tensor_hashes([rows, step.state.recurrent, step.state.conv])
        link = chain(below.link, page, Ids.of(chunk).to_bytes())
        digest = joined_digest(link, recurrent=recurrent, conv=conv, position=len(read))
        return _Node((*below.rows, rows), step.state, link, digest)
