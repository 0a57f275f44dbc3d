"""The end of the service, as the requests that wait or stream see it.

Law: what is written is finished, what only waits is interrupted. A wait inside ``interruptible``
ends with ShutDownError as soon as the service closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shadow_reader.errors import ShutDownError


class Closing:
    """Whether the service closes, and who must hear of it."""

    def __init__(self) -> None:
        self.closed = False
        self._waiting: set[asyncio.Timeout] = set()

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


def _shut_down() -> ShutDownError:
    return ShutDownError("the service is closing; nothing new is taken")
