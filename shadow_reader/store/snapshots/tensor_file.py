"""A safetensors file with a sealed header: eight bytes of length, JSON, then the tensors' bytes.

Laws: a header is accepted only if it is, byte for byte, what this build writes for what it says,
and if the file ends where the header says. ``about`` is text of the writer's own; it, the layout
version and the table of tensors are under a blake2b, which finds damage, not malice.

The safetensors library is not used: it wants whole files in memory or opens them itself, and here
each write can fail and must be seen by the tests. What is written is the format it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import orjson

from shadow_reader.events.snapshots import RawTensor
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.faults import from_system, refused

LAYOUT: Final = "1"
HEADER_LIMIT: Final = 16 << 20
ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of an element, by safetensors' name of the type; types below a byte are not known."""

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_SPEC_FIELDS: Final = ["data_offsets", "dtype", "shape"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's line in the header; it lies at [start, stop) of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says before its data.

    Attributes:
        about: the writer's text. specs: by tensor name, in the order of the data.
        data_bytes: of all tensors.
    """

    about: str
    specs: Mapping[str, Spec]
    data_bytes: int

    def encode(self) -> bytes:
        """The file up to its data, which begins at a multiple of eight."""
        table = _table(self.specs)
        seal = _seal(LAYOUT, self.about, table)
        metadata = {"layout": LAYOUT, "about": self.about, "blake2b": seal}
        text = orjson.dumps({_METADATA: metadata, **table})
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def lay_out(
    path: Path, about: str, tensors: Mapping[str, RawTensor]
) -> tuple[Header, tuple[memoryview, ...]]:
    """The header and the data, part by part, of a file to be written; nothing is copied.

    The widest elements come first, so that each tensor is aligned for its type.

    Raises:
        SnapshotError: an unknown type, or bytes that are not as many as the shape says.
    """
    specs: dict[str, Spec] = {}
    parts: list[memoryview] = []
    at = 0
    for name, tensor in sorted(tensors.items(), key=_widest_first):
        view = memoryview(tensor.data)
        size = _bytes_of(path, name, tensor.dtype, tensor.shape)
        if name == _METADATA or not view.c_contiguous or view.nbytes != size:
            raise refused(path, f"tensor {name}", expected=f"{size} bytes", found=view.nbytes)
        specs[name] = Spec(tensor.dtype, tuple(tensor.shape), at, at + size)
        if size:
            parts.append(view.cast("B"))
        at += size
    header = Header(about, specs, at)
    size = len(_encode(path, header)) - _LENGTH_BYTES
    if size > HEADER_LIMIT:
        raise refused(path, "header", expected=f"at most {HEADER_LIMIT} bytes", found=size)
    return header, tuple(parts)


def read_header(disk: Disk, path: Path) -> Header:
    """The header alone, checked in itself and against the file's size.

    Raises:
        SnapshotError: the file is refused, or cannot be read.
    """
    header, _ = _read(disk, path, with_data=False)
    return header


def read_file(disk: Disk, path: Path) -> tuple[Header, Mapping[str, RawTensor]]:
    """The header and the tensors, which are views on one buffer.

    Raises:
        SnapshotError: the file is refused, or cannot be read.
    """
    header, data = _read(disk, path, with_data=True)
    return header, {
        name: RawTensor(spec.dtype, spec.shape, data[spec.start : spec.stop])
        for name, spec in header.specs.items()
    }


def _read(disk: Disk, path: Path, *, with_data: bool) -> tuple[Header, memoryview]:
    try:
        descriptor = disk.open(path)
        try:
            size = disk.size(descriptor)
            length = int.from_bytes(disk.read(descriptor, _LENGTH_BYTES), "little")
            if length > min(HEADER_LIMIT, size - _LENGTH_BYTES):
                raise refused(path, "header length", expected=f"<= {size}", found=length)
            text = disk.read(descriptor, length).tobytes()
            header = parse_header(path, text, size - _LENGTH_BYTES - length)
            data = disk.read(descriptor, header.data_bytes if with_data else 0)
        finally:
            disk.close(descriptor)
    except OSError as error:
        raise from_system(error, path, doing="reading snapshot") from error
    if with_data and len(data) != header.data_bytes:
        raise refused(path, "data", expected=f"{header.data_bytes} bytes", found=len(data))
    return header, data


def parse_header(path: Path, text: bytes, data_bytes: int) -> Header:
    """The header from its JSON; ``data_bytes`` is how many bytes follow in the file.

    Raises:
        SnapshotError: names what is wrong with it.
    """
    try:
        table = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise refused(path, "header", expected="JSON", found=str(error)) from error
    metadata = table.pop(_METADATA, None) if isinstance(table, dict) else None
    if not isinstance(metadata, dict):
        raise refused(path, "header", expected=f"an object with {_METADATA}", found=table)
    layout = metadata.get("layout")
    if layout != LAYOUT:
        raise refused(path, "layout version", expected=LAYOUT, found=layout)
    about, seal = metadata.get("about"), metadata.get("blake2b")
    if len(metadata) != 3 or type(about) is not str or type(seal) is not str:
        raise refused(path, "metadata", expected="layout, about, blake2b", found=list(metadata))
    specs = {name: _spec(path, name, spec) for name, spec in table.items()}
    _check_order(path, specs, data_bytes)
    if seal != _seal(layout, about, _table(specs)):
        expected = _seal(layout, about, _table(specs))
        raise refused(path, "header altered, its blake2b", expected=expected, found=seal)
    header = Header(about, specs, data_bytes)
    if _encode(path, header)[_LENGTH_BYTES:] != text:
        raise refused(path, "header", expected="the bytes this build writes", found=text[-80:])
    return header


def _encode(path: Path, header: Header) -> bytes:
    try:
        return header.encode()
    except orjson.JSONEncodeError as error:
        raise refused(path, "header", expected="JSON values", found=str(error)) from error


def _spec(path: Path, name: str, spec: Any) -> Spec:
    if not isinstance(spec, dict) or sorted(spec) != _SPEC_FIELDS:
        raise refused(path, f"tensor {name}", expected=_SPEC_FIELDS, found=spec)
    dtype, shape, offsets = spec["dtype"], spec["shape"], spec["data_offsets"]
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise refused(path, f"tensor {name}", expected="counts", found=[shape, offsets])
    size = _bytes_of(path, name, dtype, shape)
    if offsets[1] - offsets[0] != size:
        raise refused(path, f"tensor {name}", expected=f"{size} bytes", found=offsets)
    return Spec(dtype, tuple(shape), *offsets)


def _check_order(path: Path, specs: Mapping[str, Spec], data_bytes: int) -> None:
    """Tensors lie one behind the other from the data's first byte to its last."""
    at = 0
    for name, spec in specs.items():
        if spec.start != at:
            raise refused(path, f"tensor {name}, its start", expected=at, found=spec.start)
        at = spec.stop
    if at != data_bytes:
        raise refused(path, "data", expected=f"{at} bytes", found=data_bytes)


def _bytes_of(path: Path, name: str, dtype: object, shape: Iterable[int]) -> int:
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise refused(path, f"tensor {name}, its dtype", expected=list(ITEM_BYTES), found=dtype)
    return math.prod(shape) * ITEM_BYTES[dtype]


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _widest_first(item: tuple[str, RawTensor]) -> tuple[int, str]:
    return -ITEM_BYTES.get(item[1].dtype, 0), item[0]


def _table(specs: Mapping[str, Spec]) -> dict[str, dict[str, object]]:
    return {
        name: {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [spec.start, spec.stop],
        }
        for name, spec in specs.items()
    }


def _seal(layout: str, about: str, table: Mapping[str, object]) -> str:
    return blake2b(orjson.dumps([layout, about, table]), digest_size=32).hexdigest()
