"""Tensors as bytes on the host, and back onto the device.

Law: nothing but bits is moved. What comes out is a copy that nobody else writes; both ways return
when the device is done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from shadow_reader.events.snapshots import RawTensor

DTYPES: Final = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint32: "U32",
}
"""The names that safetensors has for what a state is made of."""

assert sys.byteorder == "little", "a state's bytes are written as they lie in memory"


def to_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, RawTensor]:
    """A copy of each tensor; from a GPU into pinned memory, all in flight at once."""
    copies = {
        name: _host_like(tensor).copy_(tensor, non_blocking=True)
        for name, tensor in tensors.items()
    }
    _wait_for(tensors.values())
    return {
        name: RawTensor(DTYPES[copy.dtype], tuple(copy.shape), _bytes(copy).data.toreadonly())
        for name, copy in copies.items()
    }


def from_host(moves: Iterable[tuple[RawTensor, torch.Tensor]]) -> None:
    """Fill each tensor (contiguous) with the raw one's bytes; dtype and shape must be the same."""
    moves = list(moves)
    for raw, into in moves:
        assert is_like(raw, into), f"{raw.dtype} {raw.shape} is not {into.dtype} {into.shape}"
        data = np.frombuffer(raw.data, dtype=np.uint8)
        if into.device.type == "cpu":
            _bytes(into)[:] = data
        else:
            staging = _host_like(into)
            _bytes(staging)[:] = data
            into.copy_(staging, non_blocking=True)
    _wait_for(into for _, into in moves)


def is_like(raw: RawTensor, tensor: torch.Tensor) -> bool:
    """Whether the raw tensor can be copied into the other."""
    same = raw.dtype == DTYPES[tensor.dtype] and tuple(raw.shape) == tuple(tensor.shape)
    return same and memoryview(raw.data).nbytes == tensor.nbytes


def _host_like(tensor: torch.Tensor) -> torch.Tensor:
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor on the host."""
    array: NDArray[np.uint8] = tensor.view(-1).view(torch.uint8).numpy()
    return array


def _wait_for(tensors: Iterable[torch.Tensor]) -> None:
    for device in {tensor.device for tensor in tensors}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
