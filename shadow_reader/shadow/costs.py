"""What a chunk will cost, from what the last ones cost at that depth."""

from __future__ import annotations

from collections import deque
from typing import Final

DEPTH_IDS: Final = 8_192
"""Chunks whose positions lie in one such stretch count as equally deep."""

LAST: Final = 3
"""How many of the last chunks are looked at: the dearest of them is the estimate."""


class ChunkCosts:
    """Remembers the last chunks' costs by depth."""

    def __init__(self) -> None:
        self._last: dict[int, deque[float]] = {}
        self._dearest: dict[int, float] = {}
        self._least_s = 0.0

    def observe(self, position: int, seconds: float) -> None:
        """A chunk that began at ``position`` took so long."""
        depth = position // DEPTH_IDS
        last = self._last.setdefault(depth, deque(maxlen=LAST))
        last.append(seconds)
        self._dearest[depth] = max(last)
        self._least_s = min(self._dearest.values())

    def estimate_s(self, position: int) -> float | None:
        """Seconds that a chunk at ``position`` will take; None before any was read.

        Where none was read at that depth, the nearest one where some were.
        """
        depth = position // DEPTH_IDS
        dearest = self._dearest
        if depth not in dearest and dearest:
            depth = min(dearest, key=lambda known: (abs(known - depth), -known))
        return dearest.get(depth)

    def least_s(self) -> float:
        """The cheapest estimate at any depth; 0 before any chunk was read."""
        return self._least_s
