"""A model folder's safetensors, checked whole before the first tensor is read.

Names, shapes and dtypes are compared both ways with what the configuration asks for; one
``ModelError`` lists everything that is missing, extra, misshapen or doubled. The vision tower
and the draft head of a multimodal model are not the reader's and are passed over. Torch is imported
only when a tensor is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.names import EMBED, HEAD, Shape, tensor_shapes

if TYPE_CHECKING:
    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_PASSED_OVER = ("model.visual.", "visual.", "mtp.", "model.mtp.", "model.language_model.mtp.")
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_DTYPES = ("F32", "BF16", "F16")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where one tensor lies, as its file's header says."""

    file: Path
    name: str
    shape: Shape
    dtype: str


@dataclass(slots=True)
class _Report:
    """Everything wrong with a folder's tensors, by kind."""

    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)

    def raise_if_any(self, path: Path) -> None:
        kinds: dict[str, list[str]] = {
            "missing": self.missing,
            "extra": self.extra,
            "misshapen": self.misshapen,
            "doubled": self.doubled,
        }
        if not any(kinds.values()):
            return
        parts = []
        for kind, names in kinds.items():
            if names:
                rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                parts.append(f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{rest}")
        raise ModelError(
            f"{path} does not hold this model's tensors; {'; '.join(parts)}",
            path=str(path),
            **kinds,
        )


class WeightsFile:
    """Source of the weights of one model folder.

    Args:
        path: a folder with config.json and model.safetensors, or its index and shards.

    Raises:
        ModelError: the folder is missing, incomplete, broken, or of another architecture or
            shape; nothing was read but headers.
    """

    def __init__(self, path: Path) -> None:
        self.config = ModelConfig.from_folder(path)
        self.files = _weight_files(path)
        self._stored = _match(path, self.config, self.files)

    def read(self, name: str) -> torch.Tensor:
        """The tensor of one canonical name, on the CPU as stored.

        Raises:
            ModelError: the file broke since it was checked, or a tied model's separate head
                differs from its embeddings.
        """
        tensor = self._load(self._stored[name])
        if name == EMBED and self.config.tied and HEAD in self._stored:
            head = self._stored[HEAD]
            if not self._load(head).equal(tensor):
                raise ModelError(
                    f"{head.file} has a {head.name} that differs from the embeddings, "
                    "but tie_word_embeddings is true",
                    path=str(head.file),
                )
        return tensor

    @staticmethod
    def _load(stored: _Stored) -> torch.Tensor:
        try:
            with safe_open(stored.file, framework="pt", device="cpu") as opened:
                tensor: torch.Tensor = opened.get_tensor(stored.name)
        except (OSError, SafetensorError) as error:
            raise _unreadable(stored.file, error) from error
        return tensor


def canonical_name(stored: str) -> str | None:
    """Canonical name of a tensor as stored; None for parts that the reader passes over."""
    if stored.startswith(_PASSED_OVER):
        return None
    for prefix in _PREFIXES:
        if stored.startswith(prefix):
            return stored.removeprefix(prefix)
    return stored


def _weight_files(path: Path) -> tuple[Path, ...]:
    """The folder's safetensors files, in name order; all of them exist."""
    index = path / INDEX
    if not index.exists():
        if not (path / SINGLE).is_file():
            raise ModelError(f"{path} holds neither {SINGLE} nor {INDEX}", path=str(path))
        return (path / SINGLE,)
    names = sorted(set(_weight_map(index).values()))
    inside = [name for name in names if Path(name).name == name]
    if inside != names:
        outside = sorted(set(names) - set(inside))
        raise ModelError(f"{index} names files outside the folder: {outside}", path=str(index))
    absent = [name for name in names if not (path / name).is_file()]
    if absent:
        raise ModelError(f"{path} lacks {absent}, which {INDEX} names", path=str(path))
    return tuple(path / name for name in names)


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        loaded: Any = json.loads(index.read_bytes())
    except (OSError, ValueError) as error:
        raise _unreadable(index, error) from error
    found = loaded.get("weight_map") if isinstance(loaded, dict) else None
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{index} has no weight_map", path=str(index))
    if not all(isinstance(file, str) for file in found.values()):
        raise ModelError(f"{index} has a weight_map that is not names to names", path=str(index))
    return found


def _match(path: Path, config: ModelConfig, files: Sequence[Path]) -> dict[str, _Stored]:
    """Canonical name to place of every tensor the model needs; raises on any difference."""
    wanted = tensor_shapes(config)
    optional = {} if HEAD in wanted else {HEAD: wanted[EMBED]}
    found: dict[str, _Stored] = {}
    report = _Report()
    for stored in (entry for file in files for entry in _headers(file)):
        name = canonical_name(stored.name)
        if name is None:
            continue
        shape = wanted.get(name, optional.get(name))
        if shape is None:
            report.extra.append(stored.name)
        elif name in found:
            report.doubled.append(stored.name)
        else:
            found[name] = stored
            if stored.shape != shape:
                report.misshapen.append(f"{stored.name} {list(stored.shape)}, not {list(shape)}")
            elif stored.dtype not in _DTYPES:
                report.misshapen.append(f"{stored.name} in {stored.dtype}, not {_DTYPES}")
    report.missing.extend(name for name in wanted if name not in found)
    report.raise_if_any(path)
    return found


def _headers(file: Path) -> list[_Stored]:
    try:
        with safe_open(file, framework="np") as opened:  # torch need not be there for that
            entries = []
            for name in opened.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                part = opened.get_slice(name)
                entries.append(_Stored(file, name, tuple(part.get_shape()), part.get_dtype()))
            return entries
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> ModelError:
    return ModelError(f"{file} cannot be read: {error}", path=str(file))
