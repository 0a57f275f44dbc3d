"""What decides the bits of a state, found out from the model and the machine.

Law: whatever may round differently is in the identity. Two processes with equal identities make
equal states of equal ids; anything less sure must make the identities differ.
"""

from __future__ import annotations

import platform
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Final

import torch

from shadow_reader.shadow.digest import LAYOUT
from shadow_reader.shadow.engine import EngineIdentity
from shadow_reader.shadow.model.qwen35 import Qwen35


def _model_code() -> str:
    hashed = blake2b(digest_size=6)
    sources = list(files("shadow_reader.shadow.model").iterdir())
    for file in sorted(sources, key=lambda file: file.name):
        if file.name.endswith(".py"):
            hashed.update(file.name.encode() + file.read_bytes())
    return hashed.hexdigest()


MODEL_CODE: Final = _model_code()
"""A hash of the forward's own source: a version number does not change with every edit."""


def identify(model: Qwen35, grid: int) -> EngineIdentity:
    """The identity of states that this process makes with ``model`` on a grid of ``grid`` ids."""
    if model.device.type == "cuda":
        place = f"cuda {torch.cuda.get_device_name(model.device)}"
        precision = torch.get_float32_matmul_precision()
        arithmetic = f"cuda {torch.version.cuda} {precision} {model.arithmetic}"
    else:
        place = f"cpu {_processor()}"
        arithmetic = f"{torch.backends.cpu.get_cpu_capability()} threads {torch.get_num_threads()}"
    return EngineIdentity(
        model=model.name,
        weights=model.weights_hash,
        grid=grid,
        dtype=str(model.dtype).removeprefix("torch."),
        device=place,
        build=f"model {MODEL_CODE} torch {torch.__version__} {arithmetic}",
        layout=LAYOUT,
    )


@cache
def _processor() -> str:
    """The processor's name: libraries choose their kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
