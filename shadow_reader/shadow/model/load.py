"""From a name or a folder to a model in memory; the only door to the weights."""

from __future__ import annotations

import os
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import torch

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.hash_cache import HashCache, files_key
from shadow_reader.shadow.model.parameters import ParameterBuilder, Read
from shadow_reader.shadow.model.published import PREFIX
from shadow_reader.shadow.model.qwen35 import Qwen35
from shadow_reader.shadow.model.random_weights import RandomWeights
from shadow_reader.shadow.model.weights_file import WeightsFile
from shadow_reader.shadow.model.weights_hash import WeightsHash


def load_model(
    spec: str,
    *,
    device: str,
    dtype: torch.dtype | None = None,
    cache_dir: Path | None = None,
) -> Qwen35:
    """Load a model.

    Args:
        spec: ``random:tiny``, ``random:0.8B``, ``random:2B``, ``random:4B``, or a model folder.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: of the weights and activations; float32 on the CPU and bfloat16 on CUDA if None.
        cache_dir: where a folder's hash is remembered by file size and time; None: nowhere.

    Raises:
        ModelError: unknown name or device; a folder that is missing, incomplete, broken, or of
            another architecture or shape.
    """
    target = _device(device)
    if dtype is None:
        dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if spec.startswith(PREFIX):
            return _load_random(spec, target, dtype, pool)
        return _load_folder(Path(spec), target, dtype, cache_dir, pool)


def _load_random(spec: str, device: torch.device, dtype: torch.dtype, pool: Executor) -> Qwen35:
    source = RandomWeights(spec, pool)
    hashed = WeightsHash(source.config, pool)
    builder = ParameterBuilder(
        source.config, _hashing(source.read, hashed), device=device, dtype=dtype
    )
    return Qwen35(
        config=source.config,
        parameters=builder.build(),
        device=device,
        dtype=dtype,
        name=spec,
        weights_hash=hashed.hexdigest(),
    )


def _load_folder(
    path: Path, device: torch.device, dtype: torch.dtype, cache_dir: Path | None, pool: Executor
) -> Qwen35:
    source = WeightsFile(path)
    key = files_key(source.config, source.files)
    cache = HashCache(cache_dir) if cache_dir is not None else None
    digest = cache.get(key) if cache is not None else None
    hashed = WeightsHash(source.config, pool)
    read = source.read if digest is not None else _hashing(source.read, hashed)
    parameters = ParameterBuilder(source.config, read, device=device, dtype=dtype).build()
    if files_key(source.config, source.files) != key:
        raise ModelError(f"{path} was changed while it was read", path=str(path))
    if digest is None:
        digest = hashed.hexdigest()
        if cache is not None:
            cache.put(key, digest)
    return Qwen35(
        config=source.config,
        parameters=parameters,
        device=device,
        dtype=dtype,
        name=path.resolve().name,
        weights_hash=digest,
    )


def _hashing(read: Read, hashed: WeightsHash) -> Read:
    def read_and_hash(name: str) -> torch.Tensor:
        tensor = read(name)
        hashed.add(name, tensor)
        return tensor

    return read_and_hash


def _device(device: str) -> torch.device:
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device {device!r} is not one: {error}", device=device) from error
    if target.type not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is neither cpu nor cuda", device=device)
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r} is asked for, but there is no CUDA", device=device)
    return target
