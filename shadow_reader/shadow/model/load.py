"""From a name or a folder to a model in memory; the only door to the weights."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.parameters import ParameterBuilder
from shadow_reader.shadow.model.qwen35 import Qwen35
from shadow_reader.shadow.model.random_weights import PREFIX, RandomWeights
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
        cache_dir: where weight hashes are remembered by file size and time; None: nowhere.

    Raises:
        ModelError: unknown name or device; a folder that is missing, incomplete, broken, or of
            another architecture or shape.
    """
    target = _device(device)
    if dtype is None:
        dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if not spec.startswith(PREFIX):
            raise ModelError(f"no model folder at {spec}", path=spec)
        source = RandomWeights(spec, pool)
        hashed = WeightsHash(source.config, pool)

        def read(name: str) -> torch.Tensor:
            tensor = source.read(name)
            hashed.add(name, tensor)
            return tensor

        builder = ParameterBuilder(source.config, read, device=target, dtype=dtype)
        parameters = builder.build()
    return Qwen35(
        config=source.config,
        parameters=parameters,
        device=target,
        dtype=dtype,
        name=spec,
        weights_hash=hashed.hexdigest(),
    )


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
