"""Fair turns on the event loop for work that could fill it.

Law: of all who take turns, one goes in each round of the event loop, in the order they came; so
whatever else waits for the loop waits for one turn, however many feeds are busy.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Hands out turns."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._handing_out = False

    async def next(self) -> None:
        """Wait for a turn; it lasts until the caller waits for anything."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._handing_out:
            self._handing_out = True
            loop.call_soon(self._hand_out)
        await turn

    def _hand_out(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self._handing_out = bool(self._waiting)
        if self._handing_out:
            asyncio.get_running_loop().call_soon(self._hand_out)
