"""What every route has at hand, and what describes a route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

import orjson
from aiohttp import web

from shadow_reader.bounds import Bound
from shadow_reader.config import Settings
from shadow_reader.errors import InvalidInputError, ShadowError
from shadow_reader.http.bodies import Body, NoQuery, Query
from shadow_reader.http.closing import Closing
from shadow_reader.http.guard import read_body
from shadow_reader.http.meter import Meter
from shadow_reader.http.parse import Model, parse_body, parse_query
from shadow_reader.http.turns import Turns
from shadow_reader.runtime import Runtime

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"
BINARY: Final = "application/octet-stream"

BIG_BYTES: Final = 64 * 1024
"""From here on parsing takes a millisecond: others get the event loop before the ids are checked,
which takes as long again."""


@dataclass(slots=True, eq=False)
class Api:
    """One runtime as it is served.

    Attributes:
        document: the OpenAPI document, as JSON.
        closing: tells the waiting and streaming requests that the service closes.
        turns: of the feeds on the event loop.
        meter: counts what is served.
        requests: served at once.
        streams: feeds and event streams open at once.
        exports: states being handed out at once; each may hold ``export_bytes``.
        bodies: bytes of all bodies, from when they come until their handlers are done. The
            connections' own buffers, a few 64 KiB each, are not counted.
    """

    runtime: Runtime
    document: bytes = b"{}"
    closing: Closing = field(default_factory=Closing)
    turns: Turns = field(default_factory=Turns)
    meter: Meter = field(init=False)
    requests: Bound = field(init=False)
    streams: Bound = field(init=False)
    exports: Bound = field(init=False)
    bodies: Bound = field(init=False)

    def __post_init__(self) -> None:
        """Make the meter, and the bounds where the status finds them."""
        self.meter = Meter(self.runtime.clock)
        add, settings = self.runtime.bounds.add, self.settings
        self.requests = add(Bound("requests", settings.requests))
        self.streams = add(Bound("streams", settings.streams))
        self.exports = add(Bound("exports", settings.exports))
        self.bodies = add(Bound("bodies_bytes", settings.bodies_bytes))

    @property
    def settings(self) -> Settings:
        """The runtime's settings."""
        return self.runtime.settings


RouteHandler: TypeAlias = Callable[[Api, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One route: how it is served, and what the OpenAPI document says of it.

    Attributes:
        answer: the type of a 200 reply (of one line, for NDJSON); None for free JSON.
        media: the reply's content type.
        body: what is read as the request's body. lines: the type of one line of an NDJSON body.
        errors: the typed errors that are this route's own; those of every route are not repeated.
    """

    method: str
    path: str
    handler: RouteHandler
    summary: str
    answer: Any = None
    media: str = JSON
    body: type[Body] | None = None
    lines: Any = None
    query: type[Query] = NoQuery
    errors: tuple[type[ShadowError], ...] = ()


def json_response(value: object, *, status: int = 200) -> web.Response:
    """A reply of plain data or dataclasses."""
    return web.Response(status=status, body=orjson.dumps(value), content_type=JSON)


def name_in_path(request: web.Request, field_name: str) -> str:
    """The session or turn of the path, percent-decoded exactly once; ``%2F`` is a slash in it.

    Raises:
        InvalidInputError: it is no UTF-8.
    """
    position = {"session": 3, "turn": 5}[field_name]
    encoded = request.rel_url.raw_parts[position]
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise InvalidInputError(
            f"{field_name} {encoded[:80]!r} is not percent-encoded UTF-8",
            field=field_name,
            found=encoded[:80],
        ) from None


@asynccontextmanager
async def body_of(api: Api, request: web.Request, model: type[Model]) -> AsyncIterator[Model]:
    """The request's body as ``model``; any content type counts as JSON.

    Its bytes stay taken from the budget of all bodies until the block ends, because what was
    parsed out of them lives as long.
    """
    with api.bodies.share() as share:
        settings = api.settings
        raw = await read_body(request, share, limit=settings.body_bytes, limit_s=settings.body_s)
        body = parse_body(model, raw)
        if len(raw) >= BIG_BYTES:
            await asyncio.sleep(0)
        yield body


def query_of(request: web.Request, model: type[Model]) -> Model:
    """The request's query string as ``model``."""
    return parse_query(model, request.query)
