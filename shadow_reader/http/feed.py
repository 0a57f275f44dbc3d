"""The feed: many messages on one connection, one reply a line, in order, while lines still come.

Laws:

1. A reply is written only after its message is committed; replies have the order of the lines.
2. A refused message is a reply like any other. A line that cannot be read at all (not one JSON
   object, or longer than ``body_bytes``) gets its reply and ends the feed; the lines before stand.
3. Memory is bounded by lines and bytes in flight, the bytes of all feeds and bodies together too:
   who does not read the replies is not read from.
4. Whatever ends the feed (the client, the service, an error), what was submitted is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from shadow_reader.bounds import Share
from shadow_reader.errors import BadRequestError, ShadowError, ShutDownError
from shadow_reader.http.api import BIG_BYTES, NDJSON, Api
from shadow_reader.http.bodies import (
    FEED_MESSAGE,
    EndMessage,
    FeedMessage,
    FirstTokenMessage,
    OutputMessage,
    PromptMessage,
    is_plain_output,
)
from shadow_reader.http.errors import cut_on_error
from shadow_reader.http.feed_replies import Pending, PendingRun, Run
from shadow_reader.http.lines import LineSplitter
from shadow_reader.http.parse import checked_object, parse_json, parse_message
from shadow_reader.shadow.sessions import Receipt, RunReceipt

MAX_LINES: Final = 1024
"""Lines of one feed that are read and not yet answered. Fixed: it is by their bytes that they could
take memory, and those are a setting."""

LINES_A_TURN: Final = 128
"""Lines taken in one turn on the event loop: two or three milliseconds."""

REPLIES_A_TURN: Final = 128
"""Replies written before others get the event loop."""

LINGER_S: Final = 1.0
"""How long what a client still sends is read and thrown away, so that it gets its last replies."""


async def post_feed(api: Api, request: web.Request) -> web.StreamResponse:
    """Serve one feed until its body ends."""
    with api.streams.one(), api.bodies.share() as share:
        response = web.StreamResponse(headers={"Content-Type": NDJSON})
        response.enable_chunked_encoding()
        await response.prepare(request)
        with cut_on_error(request):
            await Feed(api, request, response, share).run()
        return response


class Feed:
    """One open feed: a task that takes lines in, and the handler's own that gives replies out."""

    def __init__(
        self, api: Api, request: web.Request, response: web.StreamResponse, share: Share
    ) -> None:
        self._sessions = api.runtime.sessions
        self._closing = api.closing
        self._turns = api.turns
        self._meter = api.meter
        self._limit = api.settings.body_bytes
        self._splitter = LineSplitter(limit=self._limit)
        self._content = request.content
        self._response = response
        self._run = Run()
        self._pending: deque[Pending | PendingRun] = deque()
        self._lines = 0
        self._share = share
        self._ended = False
        self._came = asyncio.Event()
        self._went = asyncio.Event()

    async def run(self) -> None:
        """Until all lines that were taken are answered."""
        taking = asyncio.create_task(self._take_lines(), name="feed")
        try:
            await self._give_replies()
            await taking
            await self._response.write_eof()
            await self._linger()
        finally:
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([taking])

    # -- lines in ---------------------------------------------------------------------------------

    async def _take_lines(self) -> None:
        try:
            block = b"..."
            while block:
                block = await self._block()
                await self._turns.next()
                for raw in self._splitter.take(block):
                    if line := raw.strip():
                        value = parse_json(line, what="line")
                        if not self._takes(value, line):
                            await self._take(value, line)
                    if self._splitter.number % LINES_A_TURN == 0 or len(raw) >= BIG_BYTES:
                        await self._submit_run()
                        await self._turns.next()
                await self._submit_run()
        except ShadowError as error:
            await self._submit_run()
            self._hold(0)
            told = f"{error.message}; the feed ends here, what follows is not taken"
            self._put(Pending(self._splitter.number, 0, type(error)(told, **error.details)))
        finally:
            self._ended = True
            self._came.set()

    def _takes(self, value: object, line: bytes) -> bool:
        """Lengthen the run by a line, if that is what it does and there is room; whether it did."""
        if (
            not is_plain_output(value, line)
            or value["turn"] != self._run.turn
            or value["session"] != self._run.session
            or not self._has_room(len(line))
        ):
            return False
        self._lengthen(value, len(line))
        return True

    async def _take(self, value: object, line: bytes) -> None:
        """Take in any line's message: into a new run, or for itself behind the run.

        Raises:
            BadRequestError: the line is no JSON object: the end of the feed.
        """
        await self._submit_run()
        await self._room(len(line))
        if is_plain_output(value, line):
            self._run = Run(value["session"], value["turn"])
            self._lengthen(value, len(line))
        else:
            self._hold(len(line))
            outcome = await self._outcome(checked_object(value, line, what="line"))
            self._put(Pending(self._splitter.number, len(line), outcome))

    def _lengthen(self, value: dict[str, Any], size: int) -> None:
        run = self._run
        run.lines.append(self._splitter.number)
        run.deltas.append((value["offset"], value["ids"]))
        run.size += size
        self._hold(size)

    async def _submit_run(self) -> None:
        run = self._run
        if not run.lines:
            return
        self._run = Run(run.session, run.turn)
        try:
            receipt = await self._sessions.outputs(run.session, run.turn, run.deltas)
        except ShadowError as error:
            receipt = RunReceipt([error] * len(run.lines), None, is_new=False)
        run.deltas.clear()
        self._put(PendingRun(run, receipt))

    async def _outcome(self, value: dict[str, Any]) -> Receipt | ShadowError:
        try:
            return await self._submit(value)
        except ShadowError as error:
            return error

    async def _submit(self, value: dict[str, Any]) -> Receipt:
        message: FeedMessage = parse_message(FEED_MESSAGE, value)
        match message:
            case OutputMessage():
                return await self._sessions.output(
                    message.session, message.turn, offset=message.offset, ids=message.ids
                )
            case PromptMessage():
                return await self._sessions.prompt(
                    message.session,
                    message.ids,
                    turn=message.turn,
                    keep=message.keep,
                    keep_of=message.keep_of,
                    router=message.router,
                    decided=message.decided,
                    profile=message.profile,
                )
            case FirstTokenMessage():
                return await self._sessions.first_token(message.session, message.turn)
            case EndMessage():
                return await self._sessions.end(
                    message.session,
                    message.turn,
                    reason=message.reason,
                    produced=message.produced,
                )

    async def _block(self) -> bytes:
        """What has come of the body; empty at its end.

        Raises:
            ShutDownError: the service closes. BadRequestError: the body's framing is broken.
        """
        try:
            async with self._closing.interruptible():
                return await self._content.readany()
        except ShutDownError:
            self._splitter.number += 1
            raise
        except web.RequestPayloadError as error:
            self._splitter.number += 1
            raise BadRequestError(f"the body is broken: {error}", field="body") from None

    async def _room(self, size: int) -> None:
        """Wait until a line of ``size`` bytes may be taken."""
        while not self._has_room(size):
            if self._run.lines:
                await self._submit_run()
            elif self._lines:
                self._went.clear()
                await self._went.wait()
            else:
                await self._share.bound.room(size)

    def _has_room(self, size: int) -> bool:
        """Among the lines of this feed, and in the budget of all bodies."""
        share = self._share
        mine = self._lines < MAX_LINES and (not self._lines or share.taken + size <= self._limit)
        return mine and share.bound.used + size <= share.bound.limit

    def _hold(self, size: int) -> None:
        self._share.take(size)
        self._lines += 1

    def _put(self, pending: Pending | PendingRun) -> None:
        self._pending.append(pending)
        self._came.set()

    # -- replies out ------------------------------------------------------------------------------

    async def _give_replies(self) -> None:
        while self._pending or not self._ended:
            if not self._pending:
                self._came.clear()
                await self._came.wait()
                continue
            replies: list[bytes] = []
            count = size = 0
            while self._pending and count < REPLIES_A_TURN:
                if replies and not self._pending[0].settled:
                    break
                pending = self._pending.popleft()
                replies.append(await pending.replies(self._meter.refused_line))
                count += pending.count
                size += pending.size
            await self._response.write(b"".join(replies))
            self._meter.lines += count
            self._lines -= count
            self._share.give(size)
            self._went.set()
            await asyncio.sleep(0)

    async def _linger(self) -> None:
        """Closing a connection with unread bytes resets it, and takes the last replies along."""
        with suppress(TimeoutError, web.RequestPayloadError):
            async with asyncio.timeout(LINGER_S):
                while await self._content.readany():
                    pass
