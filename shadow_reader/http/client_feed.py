"""The sending half of a feed: messages become lines, and no more than a window goes unanswered.

Law: memory is bounded by the window, whatever the source or the server does. Lines that are ready
together travel together; a line never waits for one that is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from shadow_reader.errors import ShadowError, UnreachableError
from shadow_reader.shadow.sessions import Accepted

BLOCK_BYTES: Final = 64 * 1024
_READY_LINES: Final = 256


@dataclass(frozen=True, slots=True)
class FeedReply:
    """The answer to one message: exactly one of ``accepted`` and ``error`` is there.

    Attributes:
        line: which message, counted from 1.
        accepted: the acknowledgement; the message is in the journal.
        error: why the message was refused; it changed nothing.
    """

    line: int
    accepted: Accepted | None
    error: ShadowError | None


class FeedBody:
    """The request body of one feed.

    Args:
        messages: what to send; read only as fast as the window allows.
        window: most messages sent and not answered.

    Attributes:
        failure: what ``messages`` raised, if it did.
    """

    def __init__(self, messages: AsyncIterable[Mapping[str, Any]], *, window: int) -> None:
        assert window >= 1, f"window is {window}"
        self.failure: BaseException | None = None
        self._messages = messages
        self._window = asyncio.Semaphore(window)
        self._ready: asyncio.Queue[bytes | None] = asyncio.Queue(_READY_LINES)
        self._pump: asyncio.Task[None] | None = None
        self._sent = 0
        self._answers = 0
        self._exhausted = False
        self._last_error: ShadowError | None = None

    async def stream(self) -> AsyncIterator[bytes]:
        """Blocks of whole lines, until the messages end."""
        self._pump = asyncio.create_task(self._fill(), name="feed-body")
        while (line := await self._ready.get()) is not None:
            block = [line]
            size = len(line)
            while size < BLOCK_BYTES and not self._ready.empty():
                more = self._ready.get_nowait()
                if more is None:
                    yield b"".join(block)
                    return
                block.append(more)
                size += len(more)
            yield b"".join(block)

    def answered(self, reply: FeedReply) -> FeedReply:
        """Note that the next reply came, and hand it on."""
        self._answers += 1
        self._window.release()
        self._last_error = reply.error
        return reply

    def check_complete(self, url: str) -> None:
        """The server ended its replies: every message must have one by now.

        Raises:
            ShadowError: the refusal that ended the feed. UnreachableError: it just ended.
            Whatever the messages raised.
        """
        if self.failure is not None:
            raise self.failure
        if self._exhausted and self._answers >= self._sent:
            return
        if self._last_error is not None:
            raise self._last_error
        raise UnreachableError(
            f"{url} ended the feed after {self._answers} replies to {self._sent} messages",
            url=url,
            found=self._answers,
            expected=self._sent,
        )

    async def close(self) -> None:
        """Stop reading the messages."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    async def _fill(self) -> None:
        try:
            async for message in self._messages:
                await self._window.acquire()
                self._sent += 1
                await self._ready.put(orjson.dumps(message) + b"\n")
            self._exhausted = True
        except Exception as error:  # noqa: BLE001 - handed on by check_complete(), see ``failure``
            self.failure = error
        await self._ready.put(None)
