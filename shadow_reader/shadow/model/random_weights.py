"""Seeded random weights in the published shapes: ``random:tiny``, ``random:0.8B`` and so on.

The same name gives the same bytes on every machine: each block of a tensor has its own seed,
made from its name, and only exact arithmetic follows the generator (uniform, not normal).
The answers of such a model mean nothing; its speed and its exactness are those of a real one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import torch

from shadow_reader.shadow.model.names import EMBED, HEAD, Shape, tensor_shapes
from shadow_reader.shadow.model.published import PREFIX, published_config

_GENERATION = "1"
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class _Range:
    """Uniform values in ``low .. high``."""

    low: float
    high: float


class RandomWeights:
    """Source of the weights of one random model.

    Args:
        spec: ``random:`` and a name of ``SHAPES``.
        pool: blocks are made in its threads.

    Raises:
        ModelError: no such name.
    """

    def __init__(self, spec: str, pool: Executor) -> None:
        self.config = published_config(spec)
        self._seed = f"{_GENERATION}/{spec.removeprefix(PREFIX)}"
        self._pool = pool
        self._shapes = tensor_shapes(self.config)

    def read(self, name: str) -> torch.Tensor:
        """The tensor of one canonical name: float32 on the CPU."""
        return random_tensor(
            name, self._shapes[name], seed=self._seed, layers=self.config.layers, pool=self._pool
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors by canonical name."""
        return ((name, self.read(name)) for name in self._shapes)


def random_tensor(
    name: str, shape: Shape, *, seed: str, layers: int, pool: Executor
) -> torch.Tensor:
    """One tensor, drawn from the range that its name calls for."""
    span = _range(name, shape, layers)
    flat = torch.empty(math.prod(shape), dtype=torch.float32)

    def fill(start: int) -> None:
        digest = hashlib.sha256(f"{seed}/{name}/{start}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
        block = flat[start : start + _BLOCK].uniform_(0, 1, generator=generator)
        block.mul_(span.high - span.low).add_(span.low)

    for _ in pool.map(fill, range(0, flat.numel(), _BLOCK)):
        pass
    return flat.view(shape)


def _range(name: str, shape: Shape, layers: int) -> _Range:
    """Keeps activations near one, gates between long and short memory."""
    if name.endswith("A_log"):
        return _Range(-4.0, 2.0)
    if name.endswith("dt_bias"):
        return _Range(-4.0, 1.0)
    if name.endswith("linear_attn.norm.weight"):
        return _Range(0.8, 1.2)
    if name.endswith("norm.weight"):
        return _Range(-0.2, 0.2)
    deviation = 1 / math.sqrt(shape[-1])
    if name in (EMBED, HEAD):
        deviation *= 2
    elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
        deviation /= math.sqrt(2 * layers)
    reach = deviation * math.sqrt(3)
    return _Range(-reach, reach)
