"""Whether the fused kernels can read a model here: what is installed, and what shapes they take."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from shadow_reader.shadow.model.config import ModelConfig

_KNOWN = ("3.6.",)
"""Versions of triton whose code for these kernels was checked; with another one torch reads."""
_LEAST = 32
"""Smallest head: of 16 elements, triton 3.6 makes products that read past their tiles."""


@cache
def triton_version() -> str | None:
    """The installed triton, None without one."""
    if find_spec("triton") is None:
        return None
    try:
        return version("triton")
    except PackageNotFoundError:
        return "unknown"


def fused(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels read this model on this device; else plain torch does."""
    on_device = device.type == "cuda" and dtype == torch.bfloat16
    known = (triton_version() or "").startswith(_KNOWN)
    return on_device and known and fused_shapes(config)


def fused_shapes(config: ModelConfig) -> bool:
    """Whether heads are powers of two, large enough to multiply, and linear ones all alike."""
    sides = config.head_dim, config.linear_key_dim
    whole = all(side >= _LEAST and side & (side - 1) == 0 for side in sides)
    return whole and config.linear_key_dim == config.linear_value_dim


def arithmetic(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str:
    """What computes there, for the engine's identity: results of the two differ in their bits."""
    return f"triton {triton_version()}" if fused(config, device, dtype) else "plain"
