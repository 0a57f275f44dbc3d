"""The feed: one reply a line, in order, after the commit; bounded; robust to whoever sends."""

from __future__ import annotations

import asyncio
import itertools
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.bounds import Share
from shadow_reader.events import types as t
from shadow_reader.http import feed as feed_module
from shadow_reader.http.lines import LineSplitter
from tests.http_api.bare import Duplex, open_feed
from tests.http_api.serving import BODY_BYTES, Served, lines, serving, until

PROMPT = {"kind": "prompt", "session": "s", "turn": "t", "ids": [1, 2, 3]}
FIRST = {"kind": "first_token", "session": "s", "turn": "t"}
END = {"kind": "end", "session": "s", "turn": "t", "reason": "length", "produced": 4}


def output(offset: int, *ids: int, session: str = "s") -> dict[str, Any]:
    return {"kind": "output", "session": session, "turn": "t", "offset": offset, "ids": list(ids)}


async def test_replies_come_in_order_and_say_what_posts_say(served: Served) -> None:
    replies = await served.feed(lines(PROMPT, FIRST, output(0, 4, 5), output(2, 6, 7), END))
    assert [reply["line"] for reply in replies] == [1, 2, 3, 4, 5]
    assert all(reply["ok"] for reply in replies)
    assert [reply["known"] for reply in replies] == [3, 3, 5, 7, 7]
    assert [reply["output"] for reply in replies] == [0, 0, 2, 4, 4]
    assert [reply["seq"] for reply in replies] == [2, 3, 4, 5, 6]
    again = await served.ok("POST", "/v1/sessions/s/turns/t/output", {"offset": 2, "ids": [6, 7]})
    assert again == {"session": "s", "turn": "t", "known": 7, "output": 4, "seq": None}
    entries = [entry.event async for entry in served.runtime.journal_entries()]
    assert entries[-1] == t.TurnEnded("length", unsure=False)


async def test_an_empty_feed_has_no_replies(served: Served) -> None:
    assert await served.feed(b"") == []
    assert await served.feed(b"\n \r\n\n") == []


async def test_blank_lines_count_and_get_no_reply(served: Served) -> None:
    body = b"\n" + lines(PROMPT) + b"  \r\n" + lines(FIRST)[:-1] + b"\r\n\n"
    assert [reply["line"] for reply in await served.feed(body)] == [2, 4]


async def test_the_last_line_needs_no_end(served: Served) -> None:
    replies = await served.feed(lines(PROMPT, FIRST)[:-1])
    assert [reply["ok"] for reply in replies] == [True, True]


async def test_a_turn_is_named_by_the_server(served: Served) -> None:
    (reply,) = await served.feed(lines({"kind": "prompt", "session": "s", "ids": [1]}))
    assert reply["ok"]
    assert len(reply["turn"]) == 32


async def test_a_refused_message_does_not_stop_the_feed(served: Served) -> None:
    bad: list[tuple[Any, str, str]] = [
        (output(1, 9), "conflict", "offset"),
        (output(0, -1), "invalid_input", "ids"),
        ({"kind": "outputs", "session": "s"}, "invalid_input", "kind"),
        ({"session": "s"}, "invalid_input", "kind"),
        ({"kind": 7}, "invalid_input", "kind"),
        ({}, "invalid_input", "kind"),
        ({**output(0, 1), "at": 5}, "invalid_input", "at"),
        ({**output(0, 1), "offset": "0"}, "invalid_input", "offset"),
        ({**output(0, 1), "offset": True}, "invalid_input", "offset"),
        ({**output(0, 1), "session": ""}, "invalid_input", "session"),
        ({**output(0, 1), "session": "a\nb"}, "invalid_input", "session"),
        ({**output(0, 1), "turn": None}, "invalid_input", "turn"),
        ({"kind": "first_token", "session": "s"}, "invalid_input", "turn"),
        ({**END, "reason": "superseded"}, "invalid_input", "reason"),
        (output(0, 1, session="none"), "not_found", "session"),
        ({**PROMPT, "ids": [4]}, "conflict", "turn"),
    ]
    before = (await served.feed(lines(PROMPT)))[0]
    replies = await served.feed(lines(*(message for message, _, _ in bad), output(0, 4)))
    for reply, (message, code, field) in zip(replies, bad, strict=False):
        assert reply.keys() == {"line", "ok", "error"}, message
        assert reply["ok"] is False
        assert reply["error"]["code"] == code, (message, reply)
        assert reply["error"]["details"]["field"] == field, (message, reply)
    assert replies[-1]["ok"]
    assert replies[-1]["seq"] == before["seq"] + 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{broken", "bad_request"),
        (b"[1]", "bad_request"),
        (b'"text"', "bad_request"),
        (b"\xff", "bad_request"),
        (b"\xef\xbb\xbf{}", "bad_request"),
        (b'{"kind": "end", "kind": "end"}', "bad_request"),
        (b'{"x": "' + b"y" * BODY_BYTES + b'"}', "too_large"),
    ],
)
async def test_a_broken_line_ends_the_feed_and_the_lines_before_stand(
    served: Served, line: bytes, code: str
) -> None:
    body = lines(PROMPT, FIRST) + b"\n" + line + b"\n" + lines(output(0, 4))
    replies = await served.feed(body)
    assert [reply["ok"] for reply in replies] == [True, True, False]
    assert replies[-1]["line"] == 4
    assert replies[-1]["error"]["code"] == code
    status = await served.ok("GET", "/v1/sessions/s")
    assert (status["known"], status["output"]) == (3, 0)


async def test_a_line_at_the_limit_is_taken_and_one_byte_more_is_not(served: Served) -> None:
    line = lines(PROMPT)[:-1]
    padded = line + b" " * (BODY_BYTES - len(line))
    assert (await served.feed(padded + b"\n"))[0]["ok"]
    (reply,) = await served.feed(padded + b" \n")
    assert reply["error"]["details"] == {
        "field": "line",
        "found": BODY_BYTES + 1,
        "limit": BODY_BYTES,
    }


async def test_a_line_without_end_is_refused_before_it_has_ended(served: Served) -> None:
    async with open_feed(served) as duplex:
        await duplex.send(b"x" * (BODY_BYTES + 1))
        reply = await duplex.reply()
        assert reply["error"]["code"] == "too_large"
        assert await duplex.ended()


async def test_replies_come_while_the_body_is_still_open(served: Served) -> None:
    async with open_feed(served) as duplex:
        for message in (PROMPT, FIRST, output(0, 4), output(1, 5)):
            await duplex.send(lines(message))
            assert (await duplex.reply())["ok"]
            newest = served.runtime.journal.stats()
            assert newest.pending == 0
        await duplex.finish()
        assert await duplex.ended()


async def test_a_line_in_pieces(served: Served) -> None:
    async with open_feed(served) as duplex:
        for byte in lines(PROMPT, FIRST):
            await duplex.send(bytes([byte]))
        assert [(await duplex.reply())["line"] for _ in range(2)] == [1, 2]


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_where_the_body_is_cut_changes_nothing(cuts: list[int]) -> None:
    body = b"\n" + lines(PROMPT, FIRST) + b"\r\n" + lines(output(0, 4, 5), output(3, 1), END)[:-1]
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    parts = [body[a:b] for a, b in itertools.pairwise(edges)]
    splitter = LineSplitter(limit=BODY_BYTES)
    found = [
        (splitter.number, line.strip())
        for part in (*parts, b"")
        for line in splitter.take(part)
        if line.strip()
    ]
    assert found == [
        (2, lines(PROMPT)[:-1]),
        (3, lines(FIRST)[:-1]),
        (5, lines(output(0, 4, 5))[:-1]),
        (6, lines(output(3, 1))[:-1]),
        (7, lines(END)[:-1]),
    ]


async def test_two_feeds_of_one_session_interleave(served: Served) -> None:
    async with open_feed(served) as one, open_feed(served) as two:
        await one.send(lines(PROMPT))
        await one.reply()
        for offset in range(0, 40, 2):
            await one.send(lines(output(offset, offset)))
            assert (await one.reply())["output"] == offset + 1
            await two.send(lines(output(offset + 1, offset + 1), output(offset, offset)))
            assert (await two.reply())["output"] == offset + 2
            assert (await two.reply())["seq"] is None
    status = await served.ok("GET", "/v1/sessions/s")
    assert status["output"] == 40


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


def test_lines_are_json_objects_on_one_line() -> None:
    assert orjson.loads(lines(PROMPT)) == PROMPT


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
