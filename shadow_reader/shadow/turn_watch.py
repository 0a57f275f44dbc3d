"""Ends turns that nobody speaks of any more. A client that is gone ends nothing itself.

Law: it needs no waking. A turn that began while it slept cannot be overdue before it wakes, since
it never sleeps longer than one timeout. It goes on whether or not there is a reader.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from shadow_reader.errors import ShadowError
from shadow_reader.shadow.sessions import Sessions

LEAST_SLEEP_S: Final = 0.001
RETRY_S: Final = 1.0

log = logging.getLogger(__name__)


async def watch_turns(sessions: Sessions, timeout_s: float) -> None:
    """End turns without news for ``timeout_s``, until cancelled."""
    while True:
        try:
            left = await sessions.end_stale_turns(timeout_s)
        except ShadowError as error:
            log.warning("a turn without news could not be ended: %s", error)
            left = min(RETRY_S, timeout_s)
        await asyncio.sleep(timeout_s if left is None else max(left, LEAST_SLEEP_S))
