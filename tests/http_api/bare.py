"""A feed spoken by hand, byte by byte, with both directions open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.http_api.serving import PATIENCE_S, Served

HEAD = (
    b"POST /v1/feed HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: application/x-ndjson\r\n\r\n"
)


@dataclass
class Duplex:
    """One open feed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _rest: bytes = b""
    _rows: list[Any] = field(default_factory=list)
    _over: bool = False

    async def send(self, data: bytes) -> None:
        """Send a piece of the body."""
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def finish(self) -> None:
        """End the body."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def reply(self) -> Any:
        """The next reply."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._rows:
                assert await self._more(), "the feed ended without a reply"
            return self._rows.pop(0)

    async def ended(self) -> bool:
        """Whether the replies end in order, with none left."""
        async with asyncio.timeout(PATIENCE_S):
            while await self._more():
                pass
        return self._over and not self._rows

    def abort(self) -> None:
        """Vanish."""
        self.writer.transport.abort()

    async def _more(self) -> bool:
        """Read one chunk of the reply; False at its orderly end."""
        if self._over:
            return False
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        self._over = size == 0
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rows += [orjson.loads(line) for line in whole]
        return not self._over


@asynccontextmanager
async def open_feed(served: Served, *, read_buffer: int | None = None) -> AsyncIterator[Duplex]:
    """Begin a feed; the reply's head has come when the block begins."""
    sock = socket.socket()
    sock.setblocking(False)
    if read_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_buffer)
    address = served.address.host, served.address.port
    await asyncio.get_running_loop().sock_connect(sock, address)
    reader, writer = await asyncio.open_connection(sock=sock, limit=read_buffer or 2**16)
    writer.write(HEAD)
    async with asyncio.timeout(PATIENCE_S):
        status = await reader.readline()
        assert status.startswith(b"HTTP/1.1 200"), status
        while await reader.readline() != b"\r\n":
            pass
    try:
        yield Duplex(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
