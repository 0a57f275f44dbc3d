"""Replies that are written as they come.

Law: what a client does not take piles up nowhere: whoever writes waits, and a client that takes
nothing for ``STALL_S`` is cut off.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import hdrs, web

from shadow_reader.http.errors import StalledError

STALL_S: Final = 60.0


async def begin_stream(request: web.Request, media: str) -> web.StreamResponse:
    """Send the head of a reply whose length nobody knows yet."""
    response = web.StreamResponse(
        headers={hdrs.CONTENT_TYPE: media, hdrs.CACHE_CONTROL: "no-store"}
    )
    await response.prepare(request)
    return response


async def write_block(response: web.StreamResponse, block: bytes) -> None:
    """Write, and wait until the client has taken most of it.

    Raises:
        StalledError: it took nothing for ``STALL_S``.
    """
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(block)
    except TimeoutError:
        raise StalledError(f"the client took nothing for {STALL_S:g} s", limit=STALL_S) from None
