"""Exported states as files, compared bit by bit.

Law: equal means that every byte of every tensor is equal, and nothing else does: minus zero is not
zero, and a NaN is equal to the same NaN. No torch here; tensors are bytes with a shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shadow_reader.errors import InvalidInputError

Bytes: TypeAlias = NDArray[np.uint8]

_HEAD_BYTES: Final = 8
_HEAD_LIMIT: Final = 16 * 1024**2
_BLOCK_BYTES: Final = 16 * 1024**2
_ORDER: Final = ("ids", "rows", "recurrent", "conv")
"""Compared first: ids that differ explain everything that follows."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it lies in the file: safetensors' dtype name, shape, uint8 [bytes]."""

    dtype: str
    shape: tuple[int, ...]
    raw: Bytes

    def index_of(self, byte: int) -> tuple[int, ...]:
        """The index of the element that holds ``byte``."""
        size = len(self.raw) // max(1, math.prod(self.shape))
        return tuple(int(i) for i in np.unravel_index(byte // size, self.shape))


@dataclass(frozen=True, slots=True)
class StateFile:
    """An exported state.

    Attributes:
        metadata: the engine's identity, ``position`` and ``digest``, all text.
    """

    metadata: Mapping[str, str]
    tensors: Mapping[str, RawTensor]

    @property
    def position(self) -> int:
        """The grid line that the state stands at."""
        return int(self.metadata["position"])

    @property
    def digest(self) -> str:
        """The state digest that the file claims."""
        return self.metadata["digest"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two states differ.

    Attributes:
        tensor: its name. index: of the element; empty when the tensors cannot be compared at all.
        why: what was found and what a fresh prefill gives, in words.
    """

    tensor: str
    index: tuple[int, ...]
    why: str


def read_state(file: Path) -> StateFile:
    """Map an exported state; nothing is copied.

    Raises:
        InvalidInputError: it cannot be read, or is no exported state.
    """
    try:
        raw = np.memmap(file, dtype=np.uint8, mode="r")
    except OSError as error:
        raise InvalidInputError(
            f"state {file} cannot be read: {error.strerror}", field="state", found=str(file)
        ) from error
    except ValueError as error:  # an empty file cannot be mapped
        raise _no_state(str(file), str(error)) from error
    return parse_state(raw, str(file))


def parse_state(raw: Bytes, source: str) -> StateFile:
    """Read the bytes of an exported state; ``source`` names it in errors."""
    if len(raw) < _HEAD_BYTES:
        raise _no_state(source, f"{len(raw)} bytes are too few")
    size = int.from_bytes(raw[:_HEAD_BYTES].tobytes(), "little")
    body = _HEAD_BYTES + size
    if size > _HEAD_LIMIT or body > len(raw):
        raise _no_state(source, f"its header would take {size} bytes")
    try:
        head: dict[str, Any] = orjson.loads(raw[_HEAD_BYTES:body].tobytes())
        metadata = dict(head.pop("__metadata__"))
        tensors = {name: _tensor(raw[body:], spec) for name, spec in head.items()}
        found = StateFile(metadata, tensors)
        _ = found.position, found.digest
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_state(source, f"{type(error).__name__} {error}") from error
    return found


def compare(found: StateFile, fresh: StateFile) -> Difference | None:
    """The first difference of ``found`` from ``fresh``; None when every bit is equal."""
    names = found.tensors.keys() | fresh.tensors.keys()
    for name in sorted(names, key=lambda n: (_ORDER.index(n) if n in _ORDER else 99, n)):
        difference = _compare_tensor(name, found.tensors.get(name), fresh.tensors.get(name))
        if difference is not None:
            return difference
    return None


def _compare_tensor(
    name: str, found: RawTensor | None, fresh: RawTensor | None
) -> Difference | None:
    if found is None or fresh is None:
        return Difference(name, (), "only one of the two states has it")
    if (found.dtype, found.shape) != (fresh.dtype, fresh.shape):
        return Difference(
            name,
            (),
            f"{found.dtype} {list(found.shape)} instead of {fresh.dtype} {list(fresh.shape)}",
        )
    byte = _first_difference(found.raw, fresh.raw)
    if byte is None:
        return None
    index = found.index_of(byte)
    return Difference(name, index, f"{_word(found, byte)} instead of {_word(fresh, byte)}")


def _first_difference(one: Bytes, other: Bytes) -> int | None:
    for start in range(0, len(one), _BLOCK_BYTES):
        differs = one[start : start + _BLOCK_BYTES] != other[start : start + _BLOCK_BYTES]
        if differs.any():
            return start + int(differs.argmax())
    return None


def _word(tensor: RawTensor, byte: int) -> str:
    """The element's bits in hexadecimal, the highest byte first."""
    size = len(tensor.raw) // max(1, math.prod(tensor.shape))
    start = byte - byte % size
    return "0x" + tensor.raw[start : start + size][::-1].tobytes().hex()


def _tensor(body: Bytes, spec: Mapping[str, Any]) -> RawTensor:
    start, stop = (int(offset) for offset in spec["data_offsets"])
    shape = tuple(int(size) for size in spec["shape"])
    elements = math.prod(shape)
    if not 0 <= start <= stop <= len(body) or min(shape, default=0) < 0:
        raise ValueError(f"data_offsets {start}..{stop} of {len(body)} bytes")
    if (stop - start) % max(1, elements) or (elements == 0) != (start == stop):
        raise ValueError(f"{stop - start} bytes for shape {list(shape)}")
    return RawTensor(str(spec["dtype"]), shape, body[start:stop])


def _no_state(source: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"state {source} is no exported state: {why}", field="state", found=source
    )
