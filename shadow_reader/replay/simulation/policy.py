"""Policies: the settings of the reader that a simulation compares, and those with a name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from shadow_reader.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Policy:
    """When the reader reads, and what reading costs.

    Attributes:
        poll_s: idle windows are looked for so often; 0: as soon as one begins.
        share: of the time since a turn's first id that its rounds may use, from 0 to 1.
        burst_s: longest time of an idle burst. slice_s: most that is used in one round.
        grid: ids a chunk. read_ms_per_1000: milliseconds that 1,000 ids take.
        shared_ids: so many ids every prompt begins with, whichever session it is of; states are
            shared there. An assumption: no ledger says it.
        cap_gb: most GB (10^9 bytes) of states and rows, of the 0.8B in bfloat16; 0: no cap.
        restore_ms: time that a state takes to come back which left for the cap; 0: there is no
            disk, and it is read again.
    """

    name: str
    poll_s: float = 0.0
    share: float = 0.02
    burst_s: float = 2.0
    slice_s: float = 0.15
    grid: int = 512
    read_ms_per_1000: float = 87.0
    shared_ids: int = 0
    cap_gb: float = 0.0
    restore_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what the reader's settings would refuse.

        Raises:
            InvalidInputError: names the field and its limit.
        """
        for field, (low, high) in _LIMITS.items():
            value = getattr(self, field)
            if not (math.isfinite(value) and low <= value <= high):
                raise InvalidInputError(
                    f"{field} of policy {self.name!r} must be from {low:g} to {high:g}, "
                    f"found {value:g}",
                    field=field,
                    found=value,
                    limit=high if value > high else low,
                )

    @property
    def chunk_s(self) -> float:
        """Seconds that a chunk takes."""
        return self.read_ms_per_1000 * self.grid / 1_000_000


_LIMITS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "poll_s": (0, 60),
        "share": (0, 1),
        "burst_s": (0.001, 60),
        "slice_s": (0.001, 60),
        "grid": (1, 65_536),
        "read_ms_per_1000": (0.001, 1_000_000),
        "shared_ids": (0, 1_000_000),
        "cap_gb": (0, 1_000_000),
        "restore_ms": (0, 1_000_000),
    }
)

SHARED_IDS: Final = 10_000
"""What ``shared`` and ``best`` assume that all prompts begin with: the least first prompt of the
made ledger."""

PRESETS: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Policy("original-idle", poll_s=0.2, share=0.0),
            Policy("original", poll_s=0.2),
            Policy("events", poll_s=0.0),
            Policy("shared", poll_s=0.0, shared_ids=SHARED_IDS),
            Policy("best", poll_s=0.0, shared_ids=SHARED_IDS, grid=128),
        )
    }
)
"""The policies with a name."""


def parse_policy(text: str) -> Policy:
    """``NAME`` or ``NAME:FIELD=VALUE,...``: a preset, and what is otherwise about it.

    Raises:
        InvalidInputError: no such preset or field, or a value that is no number or out of range.
    """
    name, _, changes = text.partition(":")
    if name not in PRESETS:
        raise InvalidInputError(
            f"no policy is called {name!r:.80}; there are {', '.join(PRESETS)}",
            field="policy",
            found=name[:80],
        )
    if not changes:
        return PRESETS[name]
    kinds = {f.name: type(getattr(PRESETS[name], f.name)) for f in fields(Policy)}
    values: dict[str, int | float] = {}
    for change in changes.split(","):
        field, _, value = change.partition("=")
        if field not in _LIMITS:
            raise InvalidInputError(
                f"policy field {field!r:.80} is unknown; known are {', '.join(_LIMITS)}",
                field="policy",
                found=field[:80],
            )
        try:
            values[field] = kinds[field](value)
        except ValueError as error:
            raise InvalidInputError(
                f"{field} of policy {text!r:.80} must be a number, found {value!r:.80}",
                field=field,
                found=value[:80],
            ) from error
    return replace(PRESETS[name], name=text, **values)  # type: ignore[arg-type]  # by its field's kind
