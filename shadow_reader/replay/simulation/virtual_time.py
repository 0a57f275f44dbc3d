"""An event loop whose time is virtual: sleeping costs nothing, and sleeping for ever is an error.

Law: time goes on only when nothing is left to run, and then exactly to the next timer. Nothing from
outside the process is waited for, so a run depends on its input alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

DAY_S: Final = 86_400.0
"""asyncio sleeps so long at most, and then looks again."""


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's own loop without files, sockets and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = math.ulp(0.0)  # a timer never runs before its time
        self._selector = self

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        """What the loop calls when nothing is ready: go on to the next timer, or a day at most.

        Raises:
            RuntimeError: there is no timer, so every task would wait for ever.
        """
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will ever wake it")
        if timeout > 0:
            timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # asyncio's own
            self._now_s = max(self._now_s, min(timers[0].when(), self._now_s + DAY_S))
            self._clock_resolution = math.ulp(self._now_s)
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""


class VirtualClock:
    """The running loop's time, as both clocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_s: float) -> None:
        self._loop = loop
        self._epoch_s = epoch_s

    def wall(self) -> float:
        """Unix seconds: the epoch and the loop's time."""
        return self._epoch_s + self._loop.time()

    def monotonic(self) -> float:
        """The loop's seconds."""
        return self._loop.time()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to its end under virtual time.

    Raises:
        RuntimeError: it waits for something that will never come. Whatever ``main`` raises.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
