"""The feed is bounded, waits for who is slow, and survives whoever sends or goes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from shadow_reader.bounds import Share
from shadow_reader.http import feed as feed_module
from tests.http_api.bare import Duplex, open_feed
from tests.http_api.serving import BODY_BYTES, PROMPT, Served, lines, output, serving, until


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Every feed opened in the test."""
    opened: list[Watched] = []

    class Recorded(Watched):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            opened.append(self)

    monkeypatch.setattr(feed_module, "Feed", Recorded)
    return opened


class Watched(feed_module.Feed):
    """A feed that remembers the most it had in flight."""

    def __init__(
        self, api: Any, request: web.Request, response: web.StreamResponse, share: Share
    ) -> None:
        super().__init__(api, request, response, share)
        self.request = request
        self.most_lines = 0
        self.most_bytes = 0

    def _hold(self, size: int) -> None:
        super()._hold(size)
        self.most_lines = max(self.most_lines, self._lines)
        self.most_bytes = max(self.most_bytes, self._share.taken)

    def shrink_send_buffer(self) -> None:
        """Let the kernel hold a few kilobytes of replies and not megabytes."""
        assert self.request.transport is not None
        sock = self.request.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def is_stuck(self, served: Served) -> bool:
        """Its window is full of lines that are answered, but the client takes no replies."""
        transport = self.request.transport
        assert transport is not None
        low, _ = transport.get_write_buffer_limits()
        committed = served.runtime.journal.stats().pending == 0
        full = self._lines == feed_module.MAX_LINES
        return full and committed and transport.get_write_buffer_size() > low


async def test_who_reads_no_replies_is_not_read_from(tmp_path: Path, feeds: list[Watched]) -> None:
    """Taking stops by itself, far below what was sent; reading on lets all of it through."""
    total = 6_000
    async with (
        serving(tmp_path, body_bytes=1 << 20) as served,
        open_feed(served, read_buffer=4096) as duplex,
    ):
        feeds[0].shrink_send_buffer()
        sending = asyncio.create_task(send_outputs(duplex, total))
        await until(lambda: feeds[0].most_lines >= feed_module.MAX_LINES, "a full window")
        await until(lambda: feeds[0].is_stuck(served), "the feed to stop taking lines")
        assert served.runtime.journal.stats().last_seq < total
        replies = [await duplex.reply() for _ in range(total + 1)]
        await sending
    assert all(reply["ok"] for reply in replies)
    assert feeds[0].most_lines == feed_module.MAX_LINES


async def send_outputs(duplex: Duplex, total: int) -> None:
    await duplex.send(lines(PROMPT))
    for start in range(0, total, 500):
        await duplex.send(lines(*(output(k, k) for k in range(start, start + 500))))
    await duplex.finish()


async def test_big_lines_in_flight_are_bounded_by_their_bytes(
    served: Served, feeds: list[Watched]
) -> None:
    prompts = [
        {"kind": "prompt", "session": "s", "turn": f"t{n}", "ids": [n] * 10_000} for n in range(40)
    ]
    async with open_feed(served) as duplex:
        sending = asyncio.create_task(duplex.send(lines(*prompts)))
        replies = [await duplex.reply() for _ in prompts]
        await sending
    assert all(reply["ok"] for reply in replies)
    assert BODY_BYTES // 2 < feeds[0].most_bytes <= BODY_BYTES


async def test_a_client_that_vanishes_leaves_what_it_submitted_and_no_task(served: Served) -> None:
    tasks = len(asyncio.all_tasks())
    async with open_feed(served) as duplex:
        await duplex.send(lines(PROMPT, *(output(k, k) for k in range(200))) + b'{"kind": "out')
        await duplex.reply()
        duplex.abort()
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "the feed's tasks to end")
    status = await served.ok("GET", "/v1/sessions/s")
    assert status["known"] == 3 + status["output"]
    await served.feed(lines(*(output(k, k) for k in range(200))))
    assert (await served.ok("GET", "/v1/sessions/s"))["output"] == 200


async def test_a_body_with_broken_framing_ends_the_feed(
    served: Served, feeds: list[Watched]
) -> None:
    async with open_feed(served) as duplex:
        await duplex.send(lines(PROMPT))
        assert (await duplex.reply())["ok"]
        feeds[0].request.content.set_exception(web.RequestPayloadError("no chunk size"))
        reply = await duplex.reply()
        assert (reply["line"], reply["error"]["code"]) == (2, "bad_request")
        assert await duplex.ended()


async def test_garbage_between_chunks_ends_with_its_connection(served: Served) -> None:
    tasks = len(asyncio.all_tasks())
    async with open_feed(served) as duplex:
        await duplex.send(lines(PROMPT))
        assert (await duplex.reply())["ok"]
        duplex.writer.write(b"no chunk size\r\n")
        await duplex.writer.drain()
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "the feed's tasks to end")
    assert (await served.ok("GET", "/v1/sessions/s"))["known"] == 3


async def test_a_feed_waits_for_the_budget_of_all_bodies(
    tmp_path: Path, feeds: list[Watched]
) -> None:
    """A body that does not end holds nearly all of it; the feed goes on when it is gone."""
    limit = 1 << 16
    async with serving(tmp_path, body_bytes=limit, bodies_bytes=limit) as served:
        async with open_feed(served) as duplex:
            await duplex.send(lines(PROMPT))
            assert (await duplex.reply())["ok"]
            _reader, writer = await served.connect()
            head = (
                f"POST /v1/sessions/x/turns HTTP/1.1\r\nHost: localhost\r\nContent-Length: {limit}"
            )
            writer.write(head.encode() + b"\r\n\r\n" + bytes(limit - 8))
            await until(lambda: served.used("bodies_bytes") == limit - 8, "the body to be held")
            await duplex.send(lines(*(output(k, k) for k in range(10))))
            await until(lambda: feeds[0]._share.bound._waiting, "the feed to wait for the budget")
            assert served.runtime.journal.stats().last_seq == 2
            writer.transport.abort()
            assert all([(await duplex.reply())["ok"] for _ in range(10)])
        assert served.runtime.journal.stats().last_seq == 12
        await until(lambda: served.used("bodies_bytes") == 0, "the budget to be given back")


async def test_a_big_output_among_small_ones_is_taken_in_its_place(tmp_path: Path) -> None:
    big = [7] * 40_000
    async with serving(tmp_path, body_bytes=1 << 20) as served:
        replies = await served.feed(
            lines(PROMPT, output(0, 1), output(1, *big), output(40_001, 2), output(40_002, *big))
        )
        assert all(reply["ok"] for reply in replies)
        assert [reply["output"] for reply in replies] == [0, 1, 40_001, 40_002, 80_002]
        assert [reply["line"] for reply in replies] == [1, 2, 3, 4, 5]
