"""The feed: one reply a line, in order, after the commit, wherever its body is cut."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.events import types as t
from shadow_reader.http.lines import LineSplitter
from tests.http_api.bare import open_feed
from tests.http_api.serving import BODY_BYTES, PROMPT, Served, lines, output

FIRST = {"kind": "first_token", "session": "s", "turn": "t"}


END = {"kind": "end", "session": "s", "turn": "t", "reason": "length", "produced": 4}


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


def test_lines_are_json_objects_on_one_line() -> None:
    assert orjson.loads(lines(PROMPT)) == PROMPT
