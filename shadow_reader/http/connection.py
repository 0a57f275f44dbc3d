"""A connection that has our error body also for what never becomes a request.

Law: aiohttp answers a malformed request line or header by itself, before any route or middleware;
what it would say as plain text is said as every other error is, and the connection is closed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from aiohttp import http_exceptions, web
from aiohttp.web_protocol import RequestHandler

from shadow_reader.errors import BadRequestError, ShadowError
from shadow_reader.http.errors import LOG, error_response, unexpected
from shadow_reader.http.meter import METER, Meter

MESSAGE_CHARS: Final = 200


class Connection(RequestHandler):
    """One connection.

    Args:
        meter: counts its errors.
    """

    __slots__ = ("_meter",)

    def __init__(self, *of_the_server: Any, meter: Meter, **options: Any) -> None:
        super().__init__(*of_the_server, **options)
        self._meter = meter

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The reply to what could not be read, or to a bug outside every handler."""
        if request.writer.output_size > 0:
            raise ConnectionError("a reply has begun: it cannot become another one")
        error: ShadowError
        if isinstance(exc, http_exceptions.HttpProcessingError):
            LOG.debug("a request that cannot be read", exc_info=exc)
            error = _unreadable(message or exc.message)
        else:
            error = unexpected(exc if isinstance(exc, Exception) else TimeoutError(status))
        self._meter.error(error)
        response = error_response(error)
        response.force_close()
        return response


class Runner(web.AppRunner):
    """Runs an application on such connections.

    Args:
        options: of every connection, as ``RequestHandler`` takes them.
    """

    __slots__ = ("_meter", "_options")

    def __init__(self, app: web.Application, *, shutdown_s: float, **options: Any) -> None:
        super().__init__(app, handler_cancellation=True, shutdown_timeout=shutdown_s)
        self._options = options
        self._meter = app[METER]

    @property
    def server(self) -> Any:
        """What a site makes its connections with; None before ``setup``."""
        manager = super().server
        if manager is None:
            return None
        return partial(
            Connection,
            manager,
            loop=asyncio.get_running_loop(),
            meter=self._meter,
            **self._options,
        )


def _unreadable(message: str) -> BadRequestError:
    """aiohttp's own words, which quote what came, on one line and of a bounded length."""
    words = " ".join(message.split()).removesuffix(" ^")[:MESSAGE_CHARS]
    return BadRequestError(f"the request cannot be read: {words}", field="request")
