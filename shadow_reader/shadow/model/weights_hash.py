"""One hash for a model: configuration, and name, dtype, shape and bytes of every tensor.

Only tensors that the reader uses count, by canonical name and in name order: the same weights
give the same hash whether sharded, text-only or beside a vision tower.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import Executor

import torch

from shadow_reader.shadow.model.config import ModelConfig

_BLOCK_BYTES = 1 << 24


class WeightsHash:
    """Collects tensors in any order; ``hexdigest`` once all are in.

    Args:
        config: part of the hash, since it shapes the results as the weights do.
        pool: blocks of 16 MiB are hashed in its threads.
    """

    def __init__(self, config: ModelConfig, pool: Executor) -> None:
        self._config = config
        self._pool = pool
        self._digests: dict[str, bytes] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take in one tensor on the CPU, as stored (before any cast)."""
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        blocks = [data[i : i + _BLOCK_BYTES] for i in range(0, len(data), _BLOCK_BYTES)]
        whole = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for digest in self._pool.map(_digest, blocks):
            whole.update(digest)
        self._digests[name] = whole.digest()

    def hexdigest(self) -> str:
        """64 hex digits."""
        config = json.dumps(self._config.to_json(), sort_keys=True)
        whole = hashlib.sha256(config.encode())
        for name in sorted(self._digests):
            whole.update(name.encode() + b"\0" + self._digests[name])
        return whole.hexdigest()


def _digest(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()
