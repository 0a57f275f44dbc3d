"""Whether a model fits: what it will take, and what is free where it would be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shadow_reader.config import Settings
from shadow_reader.errors import ModelError, OutOfRoomError


@dataclass(frozen=True, slots=True)
class Claim:
    """Bytes that the weights and all states up to the cap take, and bytes that are free."""

    claim_bytes: int
    free_bytes: int

    def check(self) -> None:
        """Raises:
        OutOfRoomError: it does not fit.
        """
        if self.claim_bytes > self.free_bytes:
            raise OutOfRoomError(
                f"weights and cap_gb take {self.claim_bytes} bytes, but {self.free_bytes} are free",
                field="cap_gb",
                found=self.claim_bytes,
                limit=self.free_bytes,
            )


def claim_of(settings: Settings) -> Claim:
    """What the model of the settings takes, where it would be loaded. Imports torch.

    Raises:
        ModelError: no such model, or no such device.
    """
    import torch

    from shadow_reader.shadow.model.facts import checked_config, weights_bytes

    config = checked_config(settings.model_spec())
    wanted = settings.device
    on_cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    if on_cuda and not torch.cuda.is_available():
        raise ModelError("device is cuda, but torch finds no CUDA here", field="device")
    itemsize = 2 if on_cuda else 4
    free = int(torch.cuda.mem_get_info()[0]) if on_cuda else free_memory()
    return Claim(weights_bytes(config, itemsize) + settings.cap_bytes, free)


def free_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this machine, or the process's control group if that has less, can still give.

    Where neither says, it is taken as unlimited.
    """
    left = [_available(proc / "meminfo"), _left_in_group(proc / "self" / "cgroup", cgroup)]
    return min([bytes_ for bytes_ in left if bytes_ is not None], default=2**63 - 1)


def _available(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _left_in_group(membership: Path, root: Path) -> int | None:
    """What the limit leaves, file pages that could be given back counted as free (cgroup v2)."""
    paths = [line.split("::", 1)[1] for line in _lines(membership) if line.startswith("0::")]
    if not paths:
        return None
    left = []
    folder = root / paths[0].strip().lstrip("/")
    for group in [folder, *folder.parents]:
        if not group.is_relative_to(root):
            break
        limit, used = _lines(group / "memory.max"), _lines(group / "memory.current")
        if limit and used and limit[0].isdigit():
            stat = dict(line.split() for line in _lines(group / "memory.stat"))
            left.append(int(limit[0]) - int(used[0]) + int(stat.get("inactive_file", 0)))
    return max(0, min(left)) if left else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
