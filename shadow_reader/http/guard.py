"""Who may come in, and how much they may bring.

Laws: a request is served only if its Host (and Origin, if a browser sent one) names this service,
so no web page can reach a loopback service under a name of its own; with a token set, everything
but ``/healthz`` needs it; no body is held past ``body_bytes``, whatever its headers promise, and
all bodies together not past ``bodies_bytes``.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from typing import Final

from aiohttp import StreamReader, hdrs, web
from aiohttp.typedefs import Handler

from shadow_reader.bounds import Bound, Share
from shadow_reader.config import LOOPBACK, Settings
from shadow_reader.errors import BadRequestError, ForbiddenError, TooLargeError
from shadow_reader.http.errors import EncodingError, SlowBodyError

OPEN_PATHS: Final = frozenset({"/healthz"})
WILDCARDS: Final = frozenset({"0.0.0.0", "::"})


class Guard:
    """Checks that come before any route.

    Args:
        requests: served at once.
    """

    def __init__(self, settings: Settings, requests: Bound) -> None:
        self._host = settings.host.lower().strip("[]")
        self._token = None if settings.token is None else settings.token.encode()
        self._requests = requests

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


async def read_body(request: web.Request, share: Share, *, limit: int, limit_s: float) -> bytes:
    """The whole body, at most ``limit`` bytes within ``limit_s`` seconds.

    Args:
        share: of the budget of all bodies; it grows as bytes come. What is only announced is
            looked at and not taken, so who sends slowly holds what was sent.

    Raises:
        TooLargeError: more is announced, or more came. SlowBodyError: it took too long.
        BusyError: the other bodies leave no room for it.
        BadRequestError: it broke off or its chunks are malformed.
    """
    announced = request.content_length or 0
    if announced > limit:
        raise too_large("body", announced, limit)
    share.bound.check(announced)
    if not request.body_exists:
        return b""
    parts: list[bytes] = []
    try:
        if request.content.is_eof():  # all of it is here, as of most bodies: no clock is needed
            await _take_parts(request.content, parts, share, limit)
        else:
            async with asyncio.timeout(limit_s):
                await _take_parts(request.content, parts, share, limit)
    except TimeoutError:
        raise SlowBodyError(
            f"{share.taken} bytes of the body came within {limit_s:g} s (body_s)",
            field="body_s",
            found=share.taken,
            limit=limit_s,
        ) from None
    except web.RequestPayloadError as error:
        raise BadRequestError(f"the body is broken: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _take_parts(content: StreamReader, parts: list[bytes], share: Share, limit: int) -> None:
    while part := await content.readany():
        if share.taken + len(part) > limit:
            raise too_large("body", share.taken + len(part), limit)
        share.take(len(part))
        parts.append(part)


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
