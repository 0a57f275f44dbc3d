"""A client of a server that a test plays, and messages for its feed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from shadow_reader.http.client import ShadowClient

Message = dict[str, Any]


@contextlib.asynccontextmanager
async def answering(handler: Any) -> AsyncIterator[ShadowClient]:
    """A client of a server that answers everything with ``handler``."""
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with ShadowClient(f"http://{host}:{port}", reply_s=2.0) as client:
            yield client
    finally:
        await runner.cleanup()


async def stream(*messages: Message) -> AsyncIterator[Message]:
    for message in messages:
        yield message


def prompt(ids: list[int], turn: str = "t1", session: str = "s") -> Message:
    return {"kind": "prompt", "session": session, "turn": turn, "ids": ids}


def output(offset: int, ids: list[int], turn: str = "t1") -> Message:
    return {"kind": "output", "session": "s", "turn": turn, "offset": offset, "ids": ids}
