"""A thread of its own for the device, and one for the snapshots' files.

Whoever awaits a job never leaves it half-watched.

Law: jobs run one at a time in the order they were given. A caller that is cancelled waits for its
running job to finish before the cancellation goes on, so nobody can meet a state in mid-change; a
job of its that has not begun never will.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from shadow_reader.errors import ShutDownError

P = ParamSpec("P")
T = TypeVar("T")


class JobThread:
    """Runs plain functions on one worker thread, for asyncio callers.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str = "shadow-device") -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._last: asyncio.Future[None] | None = None

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``job`` and give its result.

        Raises:
            ShutDownError: the thread is closed. Whatever the job raises.
        """
        if self._last is not None:
            raise ShutDownError(f"the thread {self._name} is closed")
        given = self._pool.submit(job, *args, **kwargs)
        future = asyncio.wrap_future(given)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not given.cancel():
                await _settle(future)
            raise

    async def close(self) -> None:
        """Finish the jobs that were given, then end the thread. May be called again."""
        if self._last is None:
            self._last = asyncio.wrap_future(self._pool.submit(_nothing))
        try:
            await asyncio.shield(self._last)
        finally:
            # The last job is done, so there is nothing to wait for; or the closing was cancelled,
            # and the thread ends by itself after the jobs it has.
            self._pool.shutdown(wait=self._last.done())


async def _settle(future: asyncio.Future[T]) -> None:
    """Wait until the job is over, however often the waiter is cancelled."""
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()


def _nothing() -> None:
    """The job behind all others."""
