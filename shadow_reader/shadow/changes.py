"""That something was committed, for those who wait for whatever comes next.

Law: look, then wait, with no await in between; nothing is missed then. What was committed is for
the journal to say: this says only that it is worth a look.
"""

from __future__ import annotations

import asyncio


class Changes:
    """Wakes all who wait at each change."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()

    def tell(self, _session: str = "") -> None:
        """Something changed."""
        self._moved.set()
        self._moved.clear()

    async def next(self) -> None:
        """Wait for the next change."""
        await self._moved.wait()
