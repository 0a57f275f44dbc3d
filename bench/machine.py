"""What the figures were measured on: one line for people, one object for programs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and build behind a figure."""

    device: str
    cpu: str
    cores: int
    threads: int
    torch: str
    python: str
    day: str

    def to_json(self) -> dict[str, str | int]:
        """Every field, for a bench's JSON object."""
        return asdict(self)

    def line(self) -> str:
        """One line that goes with every table of figures."""
        return (
            f"{self.device}; {self.cpu}, {self.cores} cores, {self.threads} threads; "
            f"torch {self.torch}, Python {self.python}; {self.day}"
        )


def this_machine(device: str = "cpu") -> Machine:
    """Describe this machine; ``device`` is the one the bench runs on."""
    on_gpu = torch.device(device).type == "cuda"
    return Machine(
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        day=time.strftime("%Y-%m-%d"),
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_ms(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call, the device idle before and after."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return (time.perf_counter() - start) * 1e3


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine gives in the same run: the two sides of a floor."""

    flops: float  # floating-point operations a second in one large matrix product
    bytes: float  # bytes a second of one large copy, read and written both counted

    def best(self, other: Rates) -> Rates:
        """The better of each: a floor is what the machine can do, not what it was left."""
        return Rates(max(self.flops, other.flops), max(self.bytes, other.bytes))


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Measure a square matrix product and a copy, best of five."""
    side, size = (8192, 1 << 30) if device.type == "cuda" else (1536, 1 << 26)
    left = torch.randn(side, side, device=device).to(dtype)
    right = torch.randn(side, side, device=device).to(dtype)
    product = torch.empty(side, side, device=device, dtype=dtype)
    source = torch.ones(size, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    multiply = _best_ms(lambda: torch.mm(left, right, out=product), device)
    copy = _best_ms(lambda: target.copy_(source), device)
    return Rates(flops=2 * side**3 / multiply * 1e3, bytes=2 * size / copy * 1e3)


def _best_ms(work: Callable[[], object], device: torch.device) -> float:
    work()
    return min(time_ms(work, device) for _ in range(5))
