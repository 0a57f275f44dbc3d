"""Who may come in, and how much they may bring.

Laws: a request is served only if its Host (and Origin, if a browser sent one) names this service,
so no web page can reach a loopback service under a name of its own; with a token set, everything
but ``/healthz`` needs it; no body is held past ``body_bytes``, whatever its headers promise.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from shadow_reader.config import LOOPBACK, Settings
from shadow_reader.errors import BadRequestError, BusyError, ForbiddenError, TooLargeError
from shadow_reader.http.errors import EncodingError, SlowBodyError

OPEN_PATHS: Final = frozenset({"/healthz"})
WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
BODY_S: Final = 30.0
"""Longest a whole request body may take to arrive, in seconds; a feed may take for ever."""

MAX_REQUESTS: Final = 1024
"""Requests served at once, open feeds and streams among them."""

MAX_STREAMS: Final = 256
"""Feeds and event streams open at once."""

MAX_EXPORTS: Final = 2
"""States handed out at once; each is held whole until its client has taken it."""


class Bound:
    """A count that must not pass a limit."""

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        self.used = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take one for the length of a block.

        Raises:
            BusyError: all are taken.
        """
        if self.used >= self.limit:
            raise BusyError(
                f"{self.used} {self.what} are open; the limit is {self.limit}",
                field=self.what,
                found=self.used,
                limit=self.limit,
            )
        self.used += 1
        try:
            yield
        finally:
            self.used -= 1


class Guard:
    """Checks that come before any route."""

    def __init__(self, settings: Settings) -> None:
        self._host = settings.host.lower().strip("[]")
        self._token = None if settings.token is None else settings.token.encode()
        self._requests = Bound("requests", MAX_REQUESTS)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, or raise what is wrong with it."""
        self.check(request)
        with self._requests.one():
            return await handler(request)

    def check(self, request: web.Request) -> None:
        """Host, Origin, token, encoding.

        Raises:
            ForbiddenError: not for us, or not allowed. EncodingError: a compressed body.
        """
        hosts = request.headers.getall(hdrs.HOST, [])
        if len(hosts) != 1 or not self._is_ours(_host_of(hosts[0])):
            raise ForbiddenError(
                f"Host {', '.join(hosts)[:100]!r} is not a name of this service",
                field="Host",
                found=", ".join(hosts)[:100],
            )
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and not self._is_ours(_host_of(origin.partition("://")[2])):
            raise ForbiddenError(
                f"Origin {origin[:100]!r} may not use this service",
                field="Origin",
                found=origin[:100],
            )
        if self._token is not None and request.path not in OPEN_PATHS:
            self._check_token(request.headers.get(hdrs.AUTHORIZATION, ""))
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise EncodingError(
                f"Content-Encoding {encoding[:40]!r} is not read; send the body as it is",
                field="Content-Encoding",
                found=encoding[:40],
            )

    def _is_ours(self, host: str) -> bool:
        """A wildcard bind is reached by names we cannot know; the settings make it need a token,
        which no foreign page has."""
        if not host:
            return False
        if host in LOOPBACK or host == self._host or self._host in WILDCARDS:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def _check_token(self, header: str) -> None:
        assert self._token is not None
        scheme, _, sent = header.partition(" ")
        given = sent.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._token):
            problem = "wrong" if header else "missing"
            raise ForbiddenError(
                f"the token is {problem}: send Authorization: Bearer <token>",
                field="Authorization",
                found=problem,
            )


async def read_body(request: web.Request, *, limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes.

    Raises:
        TooLargeError: more is announced, or more came. SlowBodyError: it took too long.
        BadRequestError: it broke off or its chunks are malformed.
    """
    announced = request.content_length
    if announced is not None and announced > limit:
        raise too_large("body", announced, limit)
    if not request.body_exists:
        return b""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            while part := await request.content.readany():
                size += len(part)
                if size > limit:
                    raise too_large("body", size, limit)
                parts.append(part)
    except TimeoutError:
        raise SlowBodyError(
            f"{size} bytes of the body came within {BODY_S:g} s", found=size, limit=BODY_S
        ) from None
    except web.RequestPayloadError as error:
        raise BadRequestError(f"the body is broken: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(field: str, found: int, limit: int) -> TooLargeError:
    """A body or a feed's line past the limit; ``found`` is at least what came."""
    return TooLargeError(
        f"{field} has {found} bytes or more; the limit is {limit}",
        field=field,
        found=found,
        limit=limit,
    )


def _host_of(authority: str) -> str:
    """The host of ``host``, ``host:port`` or ``[v6]:port``, in lower case."""
    text = authority.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")
