"""One short value for all bits of a state.

Laws: equal bits give equal digests on every device; any single flipped bit gives another one, for
certain. Minus zero and zero, or two NaNs with other payloads, are different bits.

A tensor is hashed where it lies, as little-endian int32 words: wrapping sums of words times odd
64-bit factors that depend on the place, within blocks of 1,024 words and then over the blocks,
twice with other factors. An odd factor keeps every difference alive modulo 2**64, and integer
sums do not care for their order. Only the two sums leave the device; blake2b joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

LAYOUT: Final = 1
"""Version of pages, states and this digest; part of every digest."""

HASH_BYTES: Final = 16
CHAIN_START: Final = bytes(HASH_BYTES)
"""The chain's value before the first chunk."""

_WORD_BYTES: Final = 4
_BLOCK: Final = 1024
_BLOCKS_A_PASS: Final = 1024
_LANES: Final = 2
_GOLDEN: Final = 0x9E3779B97F4A7C15
_LOW: Final = 0xFFFF_FFFF


def tensor_hash(tensor: torch.Tensor) -> bytes:
    """16 bytes over the raw bits, the shape and the dtype of ``tensor``."""
    return tensor_hashes([tensor])[0]


def tensor_hashes(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """``tensor_hash`` of each; one transfer from the device for all of them."""
    if not tensors:
        return []
    lanes = torch.stack([_lanes(tensor) for tensor in tensors]).cpu().numpy()
    return [_join(tensor, sums) for tensor, sums in zip(tensors, lanes, strict=True)]


def naive_tensor_hash(tensor: torch.Tensor) -> bytes:
    """Plain twin of ``tensor_hash``: the same sums in numpy, on the host."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    raw += bytes(-len(raw) % (_WORD_BYTES * _BLOCK))
    words = np.frombuffer(raw, dtype="<i4").astype(np.int64).view(np.uint64).reshape(-1, _BLOCK)
    sums = np.zeros(_LANES, dtype=np.uint64)
    for lane in range(_LANES):
        inner = (words * _factors(2 * lane, _BLOCK)).sum(axis=1, dtype=np.uint64)
        mixed = inner ^ (inner >> np.uint64(32))
        outer = _factors(2 * lane + 1, len(words))
        sums[lane] = (mixed * outer).sum(dtype=np.uint64)
    return _join(tensor, sums.view(np.int64))


def chain(previous: bytes, page_hash: bytes, ids: bytes) -> bytes:
    """The chain's next value: what was before, one page, and the ids (uint32) it was read from."""
    return blake2b(previous + page_hash + ids, digest_size=HASH_BYTES).digest()


def state_digest(
    chained: bytes, *, recurrent: torch.Tensor, conv: torch.Tensor, position: int
) -> str:
    """The digest of a whole state: 32 hex characters.

    Args:
        chained: the chain's value over all pages.
        recurrent, conv: the recurrent and the convolution state.
        position: the grid line the state stands at.
    """
    of_recurrent, of_conv = tensor_hashes([recurrent, conv])
    return joined_digest(chained, recurrent=of_recurrent, conv=of_conv, position=position)


def joined_digest(chained: bytes, *, recurrent: bytes, conv: bytes, position: int) -> str:
    """``state_digest`` from the hashes of the two tensors."""
    joined = blake2b(chained + recurrent + conv, digest_size=HASH_BYTES)
    joined.update(f"{position}/{LAYOUT}".encode())
    return joined.hexdigest()


def _lanes(tensor: torch.Tensor) -> torch.Tensor:
    """The two sums, int64 [2], on the tensor's device."""
    blocks = _blocks(tensor)
    sums = torch.zeros(_LANES, dtype=torch.int64, device=tensor.device)
    for start in range(0, blocks.shape[0], _BLOCKS_A_PASS):
        part = blocks[start : start + _BLOCKS_A_PASS].long()
        for lane in range(_LANES):
            within = _factor_tensor(2 * lane, _BLOCK, tensor.device)
            over = _factor_tensor(2 * lane + 1, blocks.shape[0], tensor.device)
            inner = (part * within).sum(dim=1)
            mixed = inner ^ ((inner >> 32) & _LOW)
            sums[lane] += (mixed * over[start : start + len(part)]).sum()
    return sums


def _blocks(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of ``tensor`` as int32 [blocks, 1024], zeros past the end."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    missing = -flat.numel() % (_WORD_BYTES * _BLOCK)
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    elif flat.storage_offset() % _WORD_BYTES:
        flat = flat.clone()
    return flat.view(torch.int32).view(-1, _BLOCK)


def _join(tensor: torch.Tensor, sums: NDArray[np.int64]) -> bytes:
    facts = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return blake2b(facts + sums.astype("<i8").tobytes(), digest_size=HASH_BYTES).digest()


def _factors(table: int, count: int) -> NDArray[np.uint64]:
    """``count`` odd 64-bit factors of one table, each a function of its place (SplitMix64)."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(table << 40)) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


@lru_cache(maxsize=64)
def _factor_tensor(table: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(_factors(table, count).view(np.int64)).to(device)
