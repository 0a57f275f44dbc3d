"""Journal queries and the event stream."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from shadow_reader.errors import JournalError, UnknownEventError
from shadow_reader.events import types as t
from shadow_reader.events.codec import KINDS
from shadow_reader.events.ids import Ids
from shadow_reader.events.rows import entry_row
from shadow_reader.http import journal_routes, streaming
from tests.http_api.serving import PATIENCE_S, Served, lines, until

COLUMNS = {"seq", "at", "session", "turn", "kind"}


@pytest.fixture
async def filled(served: Served) -> Served:
    """Sessions a and b, a turn each with two outputs: seqs 1 to 11."""
    for name in ("a", "b"):
        head = {"session": name, "turn": f"{name}1"}
        await served.feed(
            lines(
                {"kind": "prompt", **head, "ids": [1, 2, 3]},
                {"kind": "output", **head, "offset": 0, "ids": [4, 5]},
                {"kind": "output", **head, "offset": 2, "ids": [6]},
            )
        )
    await served.ok("POST", "/v1/sessions/a/turns/a1/end", {})
    return served


async def rows(served: Served, query: str = "") -> list[Any]:
    async with served.http.get(f"{served.address.url}/v1/journal?{query}") as reply:
        assert reply.status == 200, await reply.text()
        assert reply.content_type == "application/x-ndjson"
        return [orjson.loads(line) async for line in reply.content]


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("", list(range(1, 10))),
        ("session=a", [1, 2, 3, 4, 9]),
        ("session=b", [5, 6, 7, 8]),
        ("session=none", []),
        ("turn=b1", [6, 7, 8]),
        ("kind=prompt", [2, 6]),
        ("kind=prompt&kind=turn.ended", [2, 6, 9]),
        ("kind=prompt,turn.ended", [2, 6, 9]),
        ("kind=output&session=b", [7, 8]),
        ("after=7", [8, 9]),
        ("after=9", []),
        ("limit=2", [1, 2]),
        ("limit=2&after=3", [4, 5]),
        ("order=desc", list(range(9, 0, -1))),
        ("order=desc&limit=2&kind=output", [8, 7]),
        ("since=0", list(range(1, 10))),
        ("until=0", []),
        ("since=4102444800", []),
        ("until=4102444800.5&limit=1", [1]),
    ],
)
async def test_filters(filled: Served, query: str, seqs: list[int]) -> None:
    assert [row["seq"] for row in await rows(filled, query)] == seqs


async def test_since_and_until_cut_between_entries(filled: Served) -> None:
    at = [row["at"] for row in await rows(filled)]
    middle = at[4]
    since = await rows(filled, f"since={middle!r}")
    until_ = await rows(filled, f"until={middle!r}")
    assert [row["at"] for row in since] == [moment for moment in at if moment >= middle]
    assert [row["at"] for row in until_] == [moment for moment in at if moment < middle]


async def test_ids_are_counted_or_given(filled: Served) -> None:
    counted = await rows(filled, "kind=output&session=a")
    assert [row["ids"] for row in counted] == [{"count": 2}, {"count": 1}]
    given = await rows(filled, "kind=output&session=a&ids=true")
    assert [row["ids"] for row in given] == [[4, 5], [6]]
    assert given[0].keys() == COLUMNS | {"offset", "ids"}


def test_every_event_has_a_row_with_all_its_fields() -> None:
    samples: dict[Any, Any] = {"int": 7, "float": 1.5, "bool": True, "str": "x"}
    for kind, cls in KINDS.items():
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values[field.name] = samples.get(field.type, "x")
            if field.name == "ids":
                values[field.name] = Ids.of([1, 2])
            if field.name in ("choices", "probabilities", "prior"):
                values[field.name] = ("x", "y")
        row = entry_row(t.Entry(1.5, "s", "t", cls(**values), 3), with_ids=True)
        assert row["kind"] == kind
        assert len(row) == len(COLUMNS) + len(values), "a field hides another"
        loaded = json.loads(orjson.dumps(row))
        for name, value in values.items():
            shown = loaded["question_kind" if name == "kind" else name]
            assert shown == (list(value) if isinstance(value, tuple | Ids) else value)


async def test_a_long_query_is_streamed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_routes, "BLOCK_BYTES", 100)
    head = {"session": "s", "turn": "t"}
    outputs = ({"kind": "output", **head, "offset": k, "ids": [k]} for k in range(2000))
    await served.feed(lines({"kind": "prompt", **head, "ids": [1]}, *outputs))
    found = await rows(served, "kind=output&ids=true")
    assert [row["ids"] for row in found] == [[k] for k in range(2000)]


async def test_a_journal_that_cannot_be_read_is_said_before_the_first_line(
    filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = filled.runtime.journal_entries

    async def broken(**filters: Any) -> AsyncIterator[t.Entry]:
        async for entry in whole(**filters):
            if entry.seq == 2:
                raise UnknownEventError("unknown event kind 'x'", kind="x")
            yield entry

    monkeypatch.setattr(filled.runtime, "journal_entries", broken)
    status, body = await filled.call("GET", "/v1/journal")
    assert (status, body["error"]["code"]) == (503, "unknown_event")


async def test_a_query_that_breaks_midway_is_cut_off(
    filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client must not take the part that came for the whole."""
    monkeypatch.setattr(journal_routes, "BLOCK_BYTES", 1)
    whole = filled.runtime.journal_entries

    async def broken(**filters: Any) -> AsyncIterator[t.Entry]:
        async for entry in whole(**filters):
            if entry.seq == 4:
                raise JournalError("the disk is gone")
            yield entry

    monkeypatch.setattr(filled.runtime, "journal_entries", broken)
    with pytest.raises(aiohttp.ClientError):
        await rows(filled)


class Stream:
    """Server-sent events, one at a time."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def block(self) -> dict[str, str]:
        """The next block: its fields, a comment under the empty name."""
        found: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_S):
            while (line := (await self._content.readline()).decode()) not in ("\n", ""):
                name, _, value = line.rstrip("\n").partition(":")
                found[name] = value.strip()
        return found

    async def event(self) -> Any:
        """The next entry, its envelope checked."""
        while "data" not in (block := await self.block()):
            assert block, "the stream ended"
        row = json.loads(block["data"])
        assert (block["id"], block["event"]) == (str(row["seq"]), row["kind"])
        return row


@asynccontextmanager
async def stream(served: Served, query: str = "", last: int | None = None) -> AsyncIterator[Stream]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    url = f"{served.address.url}/v1/journal/stream?{query}"
    async with served.http.get(url, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        assert reply.content_type == "text/event-stream"
        yield Stream(reply.content)


async def test_a_stream_begins_now(filled: Served) -> None:
    async with stream(filled) as events:
        assert await events.block() == {"": "from 9"}
        await filled.ok("POST", "/v1/sessions/b/turns/b1/end", {})
        row = await events.event()
        assert (row["seq"], row["kind"], row["session"]) == (10, "turn.ended", "b")


async def test_a_stream_goes_on_where_the_client_was(filled: Served) -> None:
    async with stream(filled, "after=2", last=7) as events:
        assert [(await events.event())["seq"] for _ in range(2)] == [8, 9]
        await filled.ok("POST", "/v1/sessions/b/turns/b1/end", {})
        assert (await events.event())["seq"] == 10


async def test_a_stream_from_the_beginning_with_filters(filled: Served) -> None:
    query = "after=0&kind=output&kind=turn.ended&session=b&ids=true"
    async with stream(filled, query) as events:
        assert [(await events.event())["ids"] for _ in range(2)] == [[4, 5], [6]]
        await filled.ok("POST", "/v1/sessions/c/turns", {"ids": [1]})
        await filled.ok("POST", "/v1/sessions/b/turns/b1/end", {})
        assert (await events.event())["kind"] == "turn.ended"


async def test_every_entry_comes_once_while_many_are_written(served: Served) -> None:
    head = {"session": "s", "turn": "t"}
    outputs = [{"kind": "output", **head, "offset": k, "ids": [k]} for k in range(3000)]
    async with stream(served, "after=0") as events:
        body = lines({"kind": "prompt", **head, "ids": [1]}, *outputs)
        feeding = asyncio.create_task(served.feed(body))
        seqs = [(await events.event())["seq"] for _ in range(3002)]
        await feeding
    assert seqs == list(range(1, 3003))


async def test_a_quiet_stream_beats(filled: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_routes, "BEAT_S", 0.01)
    async with stream(filled) as events:
        assert await events.block() == {"": "from 9"}
        assert await events.block() == {"": "beat"}
        assert await events.block() == {"": "beat"}


async def test_a_stream_ends_with_its_client(filled: Served) -> None:
    tasks = len(asyncio.all_tasks())
    async with stream(filled) as events:
        await events.block()
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "the stream's task to end")


async def test_a_client_that_takes_nothing_is_cut_off_and_pulls_nothing(
    filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "STALL_S", 0.2)
    pulled, ended = 0, asyncio.Event()
    entry = t.Entry(1.0, "s", "t", t.Output(0, Ids.of(range(1000))), 1)

    async def endless(**_filters: Any) -> AsyncIterator[t.Entry]:
        nonlocal pulled
        try:
            while True:
                pulled += 1
                yield entry
        finally:
            ended.set()

    monkeypatch.setattr(filled.runtime, "journal_entries", endless)
    tasks = len(asyncio.all_tasks())
    reader, writer = await filled.connect()
    writer.write(b"GET /v1/journal?ids=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readline()
    async with asyncio.timeout(PATIENCE_S):
        await ended.wait()
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "the query's task to end")
    assert pulled < 20_000  # some 4 kB each: what kernel buffers take, and one block
    writer.close()
