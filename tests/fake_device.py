"""The device thread under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
)
from typing import ParamSpec, TypeVar

from shadow_reader.errors import ShutDownError
from shadow_reader.shadow.job_thread import JobThread

P = ParamSpec("P")
T = TypeVar("T")


class InlineDevice(JobThread):
    """The device thread's laws without a thread: for virtual time.

    A job takes ``job_s`` of the loop's time and happens at its end; jobs go one at a time, in
    order. ``begun`` counts the jobs that got the device. ``costs`` has other times, by name.
    """

    def __init__(self, job_s: float = 0.0) -> None:
        self.job_s = job_s
        self.costs = {"drop": 0.0, "give_way": 0.0, "synchronise": 0.0}
        self.begun = 0
        self._line = asyncio.Lock()
        self._shut = False

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``job`` at the end of its time."""
        if self._shut:
            raise ShutDownError("the device thread is closed")
        async with self._line:
            self.begun += 1
            cost_s = self.costs.get(getattr(job, "__name__", ""), self.job_s)
            busy = asyncio.ensure_future(asyncio.sleep(cost_s))
            cancelled = False
            while not busy.done():
                try:
                    await asyncio.shield(busy)
                except asyncio.CancelledError:
                    cancelled = True
            try:
                return job(*args, **kwargs)
            finally:
                if cancelled:  # whatever came of the job, as on the thread
                    raise asyncio.CancelledError

    async def close(self) -> None:
        """Wait for the jobs that were given."""
        self._shut = True
        async with self._line:
            return
