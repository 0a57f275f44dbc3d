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

_BYTE: Final = torch.uint8

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
    """Fill each tensor (contiguous) with the raw one's bytes; dtype and shape must be the same.

    To a GPU it goes straight from where it lies, fastest from a ``host_buffer``; only memory that
    may not be written is staged.
    """
    moves = list(moves)
    for raw, into in moves:
        assert is_like(raw, into), f"{raw.dtype} {raw.shape} is not {into.dtype} {into.shape}"
        data = memoryview(raw.data)
        if into.device.type == "cpu":
            _bytes(into)[:] = np.frombuffer(data, dtype=np.uint8)
            continue
        source = _host_bytes(data.nbytes) if data.readonly else torch.frombuffer(data, dtype=_BYTE)
        if data.readonly:
            _bytes(source)[:] = np.frombuffer(data, dtype=np.uint8)
        into.view(-1).view(_BYTE).copy_(source, non_blocking=True)
    _wait_for(into for _, into in moves)


def host_buffer(size: int) -> memoryview:
    """``size`` bytes to read files into, pinned where there is a GPU; whatever is in them."""
    return _bytes(_host_bytes(size)).data


def page_lock(sizes: Iterable[int]) -> None:
    """Have host memory pinned for copies of these sizes at once; it is kept for later ones.

    The first time takes tens of milliseconds a hundred megabytes, which no spill should wait for.
    """
    held = [_host_bytes(size) for size in sizes]
    held.clear()


def is_like(raw: RawTensor, tensor: torch.Tensor) -> bool:
    """Whether the raw tensor can be copied into the other."""
    same = raw.dtype == DTYPES[tensor.dtype] and tuple(raw.shape) == tuple(tensor.shape)
    return same and memoryview(raw.data).nbytes == tensor.nbytes


def _host_like(tensor: torch.Tensor) -> torch.Tensor:
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)


def _host_bytes(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=_BYTE, pin_memory=torch.cuda.is_available())


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor on the host."""
    array: NDArray[np.uint8] = tensor.view(-1).view(_BYTE).numpy()
    return array


def _wait_for(tensors: Iterable[torch.Tensor]) -> None:
    for device in {tensor.device for tensor in tensors}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
