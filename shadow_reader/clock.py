"""The clock is injected: nothing else in the package reads the time.

Two readings with one meaning each: ``wall`` is what the journal stores, ``monotonic`` is what
durations are taken from. A wall clock that jumps therefore never bends a duration.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for everything that measures or stamps."""

    def wall(self) -> float:
        """Unix time in seconds; may jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to; for tests and simulation."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self._monotonic = 0.0

    def wall(self) -> float:
        """Unix time in seconds, as set."""
        return self._wall

    def monotonic(self) -> float:
        """Seconds advanced since the start."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both readings forward by ``seconds`` (>= 0)."""
        assert seconds >= 0, "time goes forward; use jump() for the wall clock"
        self._wall += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock off by ``seconds``, either way; durations do not notice."""
        self._wall += seconds
