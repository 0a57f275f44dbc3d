"""The end of the service, as the requests that wait or stream see it.

Law: what is written is finished, what only waits is interrupted. A wait inside ``interruptible``
ends with ShutDownError as soon as the service closes; work inside ``finish`` goes on to its end
even if its client has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from shadow_reader.errors import ShutDownError

T = TypeVar("T")


class Closing:
    """Whether the service closes, and who must hear of it."""

    def __init__(self) -> None:
        self.closed = False
        self._waiting: set[asyncio.Timeout] = set()
        self._unfinished: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        """Interrupt every wait, now and from now on. May be called again."""
        self.closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._waiting:
            scope.reschedule(now)

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """Run a wait that a closing service ends.

        Raises:
            ShutDownError: the service closes; what was awaited has been cancelled.
        """
        if self.closed:
            raise _shut_down()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waiting.add(scope)
                try:
                    yield
                finally:
                    self._waiting.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise _shut_down() from None

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``; if the waiter is cancelled, the work is not."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def drained(self) -> None:
        """Wait for all work that ``finish`` took on."""
        while self._unfinished:
            await asyncio.wait(tuple(self._unfinished))

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # seen: its waiter may have gone


def _shut_down() -> ShutDownError:
    return ShutDownError("the service is closing; nothing new is taken")
