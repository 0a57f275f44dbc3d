"""The journal over HTTP: queries as NDJSON, and what is appended as server-sent events.

Law: entries are pulled as fast as the client takes them and never pile up here, so a slow client
holds one block of lines (see ``streaming``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, NoReturn, TypeVar

import orjson
from aiohttp import hdrs, web

from shadow_reader.errors import InvalidInputError, ShutDownError
from shadow_reader.events.codec import kind_of
from shadow_reader.events.queries import RowQuery
from shadow_reader.events.rows import Row, entry_row
from shadow_reader.events.types import Entry
from shadow_reader.http.api import EVENT_STREAM, NDJSON, Api, query_of
from shadow_reader.http.bodies import MAX_SEQ, EntryFilter, JournalQuery, RowsQuery, StreamQuery
from shadow_reader.http.errors import cut_on_error
from shadow_reader.http.streaming import begin_stream, write_block

T = TypeVar("T")

BLOCK_BYTES: Final = 64 * 1024
GATHER_S: Final = 0.02
"""How long a stream lets entries gather after it looked: what comes in quick succession is read
from the journal together."""

BEAT_S: Final = 15.0
"""A stream that has nothing to say says so this often."""


async def get_journal(api: Api, request: web.Request) -> web.StreamResponse:
    """A line an entry, by ``seq``."""
    query = query_of(request, JournalQuery)

    def line(entry: Entry) -> bytes:
        row = entry_row(entry, with_ids=query.ids)
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

    entries = api.runtime.journal_entries(
        **_filters(query),
        after=query.after,
        limit=query.limit,
        newest_first=query.order == "desc",
    )
    return await _lines(api, request, entries, line)


async def _lines(
    api: Api, request: web.Request, found: AsyncIterator[T], line: Callable[[T], bytes]
) -> web.StreamResponse:
    """What was found, a line each, as fast as the client takes it."""
    async with aclosing(_blocks(found, line)) as blocks:
        async with api.closing.interruptible():
            first = await anext(blocks, b"")  # what goes wrong until here gets its error body
        response = await begin_stream(request, NDJSON)
        if request.method == hdrs.METH_HEAD:
            return response
        with cut_on_error(request):
            async with api.closing.interruptible():
                await write_block(response, first)
                async for block in blocks:
                    await write_block(response, block)
            await response.write_eof()
    return response


async def get_rows(api: Api, request: web.Request) -> web.StreamResponse:
    """Flat rows that meet conditions, or groups of them, a line each."""
    asked = query_of(request, RowsQuery)
    query = RowQuery(
        kinds=asked.kind,
        where=asked.where,
        session=asked.session,
        turn=asked.turn,
        since=asked.since,
        until=asked.until,
        limit=asked.limit,
        newest_first=asked.order == "desc",
        by=asked.by,
        of=asked.of,
        ids=asked.ids,
        seen=asked.after,
    )
    return await _lines(api, request, query.rows(api.runtime.journal_entries), _row_line)


def _row_line(row: Row) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


async def get_journal_stream(api: Api, request: web.Request) -> web.StreamResponse:
    """An event an entry, from ``Last-Event-ID`` or ``after`` on, or from now on."""
    query = query_of(request, StreamQuery)
    after = _begin_after(api, request, query)
    with api.streams.one():
        response = await begin_stream(request, EVENT_STREAM)
        if request.method == hdrs.METH_HEAD:
            return response
        with cut_on_error(request):
            try:
                async with api.closing.interruptible():
                    await _follow(api, response, query, after)
            except ShutDownError:
                await response.write_eof()
    return response


async def _follow(
    api: Api, response: web.StreamResponse, query: StreamQuery, after: int
) -> NoReturn:
    """Write what is committed behind ``after``, for ever."""
    loop = asyncio.get_running_loop()
    seen = after

    def event(entry: Entry) -> bytes:
        nonlocal seen
        seen = entry.seq
        row = orjson.dumps(entry_row(entry, with_ids=query.ids))
        kind = kind_of(entry.event).encode()
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (entry.seq, kind, row)

    await write_block(response, b": from %d\n\n" % after)
    beat = loop.time() + BEAT_S
    while True:
        newest = api.runtime.journal.stats().last_seq
        if newest > seen:
            entries = api.runtime.journal_entries(**_filters(query), after=seen)
            async with aclosing(_blocks(entries, event)) as blocks:
                async for block in blocks:
                    await write_block(response, block)
                    beat = loop.time() + BEAT_S
            seen = max(seen, newest)
            await asyncio.sleep(GATHER_S)
        else:
            # No await since the look: the next commit of a session tells us. Entries of no session
            # are written before the service listens and after it has stopped.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(beat):
                    await api.runtime.changes.next()
        if loop.time() >= beat:
            await write_block(response, b": beat\n\n")
            beat = loop.time() + BEAT_S


async def _blocks(
    entries: AsyncIterator[T], encode: Callable[[T], bytes]
) -> AsyncGenerator[bytes, None]:
    """The entries' bytes in blocks of about ``BLOCK_BYTES``; the last may be smaller."""
    parts: list[bytes] = []
    size = 0
    async with _closed_after(entries):
        async for entry in entries:
            part = encode(entry)
            parts.append(part)
            size += len(part)
            if size >= BLOCK_BYTES:
                yield b"".join(parts)
                parts.clear()
                size = 0
    if parts:
        yield b"".join(parts)


@asynccontextmanager
async def _closed_after(entries: AsyncIterator[Any]) -> AsyncIterator[None]:
    """Whatever a query holds open is let go at once, not when the collector comes by."""
    try:
        yield
    finally:
        if isinstance(entries, AsyncGenerator):
            await entries.aclose()


def _filters(query: EntryFilter) -> dict[str, Any]:
    return {
        "session": query.session,
        "turn": query.turn,
        "kinds": query.kind or None,
        "since": query.since,
        "until": query.until,
    }


def _begin_after(api: Api, request: web.Request, query: StreamQuery) -> int:
    """Where a stream begins: behind the last event the client saw, if it says which."""
    last = request.headers.get("Last-Event-ID")
    if last is None:
        newest = api.runtime.journal.stats().last_seq
        return newest if query.after is None else query.after
    if not (last.isascii() and last.isdigit() and int(last) <= MAX_SEQ):
        raise InvalidInputError(
            f"Last-Event-ID must be a journal seq, not {last[:40]!r}",
            field="Last-Event-ID",
            found=last[:40],
            limit=MAX_SEQ,
        )
    return int(last)
