"""The client's feed: replies in order while it is open, a bounded window, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest
from aiohttp import web

from shadow_reader.errors import (
    ConflictError,
    InvalidInputError,
    RecordError,
    ShadowError,
    UnreachableError,
)
from shadow_reader.http.client import ShadowClient
from shadow_reader.http.client_feed import FeedReply
from shadow_reader.shadow.sessions import Accepted
from tests.http_api.clients import Message, answering, output, prompt, stream
from tests.http_api.serving import BODY_BYTES


async def collect(replies: AsyncIterator[FeedReply], into: list[FeedReply]) -> None:
    """Keep what came, also when the feed then fails."""
    async for reply in replies:
        into.append(reply)


async def test_a_feed_answers_every_message_in_order(client: ShadowClient) -> None:
    messages = [prompt([1, 2]), *(output(n, [n]) for n in range(1000))]
    replies = [reply async for reply in client.feed(stream(*messages), window=8)]
    assert [reply.line for reply in replies] == list(range(1, 1002))
    assert replies[-1].accepted == Accepted("s", "t1", 1002, 1000, 1002)
    assert all(reply.error is None for reply in replies)


async def test_a_refusal_is_a_reply_and_the_feed_goes_on(client: ShadowClient) -> None:
    messages = [prompt([1]), output(5, [1]), output(0, [1]), {"kind": "nonsense"}]
    replies = [reply async for reply in client.feed(stream(*messages))]
    assert [type(reply.error) for reply in replies] == [
        type(None),
        ConflictError,
        type(None),
        InvalidInputError,
    ]
    assert replies[1].accepted is None


async def test_replies_come_while_the_feed_is_open(client: ShadowClient) -> None:
    answered = asyncio.Event()

    async def talk() -> AsyncIterator[Message]:
        yield prompt([1])
        await answered.wait()
        yield output(0, [2])

    known = []
    async for reply in client.feed(talk(), window=1):
        assert reply.accepted is not None
        known.append(reply.accepted.known)
        answered.set()
    assert known == [1, 2]


async def test_no_more_than_the_window_is_read_ahead() -> None:
    """A server that never answers gets ``window`` messages, and no more are taken."""
    taken = 0
    stop, full = asyncio.Event(), asyncio.Event()

    async def mute(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await stop.wait()
        return response

    async def endless() -> AsyncIterator[Message]:
        nonlocal taken
        while True:
            taken += 1
            if taken == 5:
                full.set()
            yield output(0, [1])

    async with answering(mute) as client:
        feed = client.feed(endless(), window=4)
        waiting = asyncio.ensure_future(anext(feed))
        await full.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert taken == 5  # four sent, one in hand
        stop.set()
        with pytest.raises(UnreachableError, match="ended the feed after 0 replies to 4 messages"):
            await waiting


async def test_what_the_source_raises_is_raised_after_the_replies_before_it(
    client: ShadowClient,
) -> None:
    async def broken() -> AsyncIterator[Message]:
        yield prompt([1])
        raise RecordError("line 2 is broken")

    replies: list[FeedReply] = []
    with pytest.raises(RecordError, match="line 2"):
        await collect(client.feed(broken()), replies)
    assert [reply.line for reply in replies] == [1]
    assert (await client.session("s")).known == 1


async def test_a_line_over_the_limit_ends_the_feed_with_its_error(client: ShadowClient) -> None:
    messages = [prompt([1]), output(0, [1] * BODY_BYTES), output(0, [2]), output(1, [3])]
    replies: list[FeedReply] = []
    with pytest.raises(ShadowError, match="the limit is") as caught:
        await collect(client.feed(stream(*messages)), replies)
    assert [reply.error is None for reply in replies] == [True, False]
    assert replies[-1].error is caught.value
    assert (await client.session("s")).known == 1


async def test_a_feed_that_is_left_early_leaves_nothing_behind(client: ShadowClient) -> None:
    async def endless() -> AsyncIterator[Message]:
        yield prompt([1])
        for number in range(1_000_000):
            yield output(number, [1])

    async with contextlib.aclosing(client.feed(endless(), window=16)) as replies:
        async for reply in replies:
            if reply.line == 10:
                break
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert "feed-body" not in names
    assert (await client.session("s")).known >= 9


async def test_a_server_that_dies_in_the_middle_of_a_feed() -> None:
    async def dying(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        line = {"line": 1, "ok": True, "session": "s", "turn": "t1", "known": 1, "output": 0}
        await response.write(orjson.dumps({**line, "seq": 1}) + b"\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def endless() -> AsyncIterator[Message]:
        yield prompt([1])
        while True:
            await asyncio.sleep(0.001)
            yield output(0, [1])

    replies: list[FeedReply] = []
    async with answering(dying) as client:
        with pytest.raises(UnreachableError, match="does not answer"):
            await collect(client.feed(endless()), replies)
    assert [reply.accepted for reply in replies] == [Accepted("s", "t1", 1, 0, 1)]
