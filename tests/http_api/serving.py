"""A runtime that is served on a free port of this machine, and a plain client beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from yarl import URL

from shadow_reader.config import Settings
from shadow_reader.events.journal import Journal
from shadow_reader.http.serve import Address, listening
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.vocabulary import Vocabulary

PATIENCE_S = 20.0
BODY_BYTES = 64 * 1024

TURNS = "/v1/sessions/s1/turns"
OUTPUT = f"{TURNS}/t1/output"

PROMPT = {"kind": "prompt", "session": "s", "turn": "t", "ids": [1, 2, 3]}


@dataclass(frozen=True, slots=True)
class Served:
    """A service under test."""

    runtime: Runtime
    address: Address
    http: aiohttp.ClientSession

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and body (JSON) of one request; ``path`` is sent as it stands."""
        data = raw if body is None else orjson.dumps(body)
        url = URL(self.address.url + path, encoded=True)
        async with self.http.request(method, url, data=data, headers=headers) as reply:
            content = await reply.read()
            return reply.status, json.loads(content) if content else None

    async def ok(self, method: str, path: str, body: object = None) -> Any:
        """The body of a request that must succeed."""
        status, answer = await self.call(method, path, body)
        assert status == 200, answer
        return answer

    async def feed(self, body: bytes) -> list[Any]:
        """The replies to a whole feed."""
        async with self.http.post(self.address.url + "/v1/feed", data=body) as reply:
            assert reply.status == 200, await reply.text()
            return [orjson.loads(line) async for line in reply.content]

    async def everything(self) -> Any:
        """All that a refused message must leave as it was."""
        status = await self.ok("GET", "/v1/conductor/shadow/status")
        sessions = sorted(status["sessions"], key=lambda session: str(session["session"]))
        return status["journal"]["last_seq"], status["totals"], sessions

    def used(self, bound: str) -> int:
        """How much of a bound is in use."""
        return next(limit.used for limit in self.runtime.bounds.limits() if limit.name == bound)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection."""
        return await asyncio.open_connection(self.address.host, self.address.port)


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    engine: Engine | None = None,
    journal: Journal | None = None,
    vocabulary: Vocabulary | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve a new runtime with its journal in ``folder``."""
    values = {"journal": folder / "shadow.db", "port": 0, "body_bytes": BODY_BYTES, **settings}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with (
        Runtime(
            Settings(**values), engine=engine, journal=journal, vocabulary=vocabulary
        ) as runtime,
        listening(runtime) as address,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        yield Served(runtime, address, http)


def lines(*messages: object) -> bytes:
    """Messages as the body of a feed."""
    return b"".join(orjson.dumps(message) + b"\n" for message in messages)


def output(offset: int, *ids: int, session: str = "s") -> dict[str, Any]:
    """Output of the turn that ``PROMPT`` begins, as a feed's message."""
    return {"kind": "output", "session": session, "turn": "t", "offset": offset, "ids": list(ids)}


async def until(condition: Any, what: str) -> None:
    """Wait for something that is about to happen; fail if it does not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not condition():
        assert loop.time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.005)
