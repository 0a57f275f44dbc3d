"""One error body, whatever went wrong: ``{"error": {"code", "message", "details"}}``.

Law: a typed error gives its own code and status; anything unexpected gives 500 ``internal`` with an
incident number that the log has too, and nothing of the traceback or the request in the reply.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import orjson
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from shadow_reader.errors import BusyError, ShadowError
from shadow_reader.http.meter import METER

RETRY_AFTER_S: Final = 1
"""What who was sent away by a bound is told to wait: most bounds are free again in milliseconds."""

LOG: Final = logging.getLogger("shadow_reader.http")


class NoRouteError(ShadowError):
    """Nothing is served at this path."""

    code = "not_found"
    status = 404


class MethodError(ShadowError):
    """The path is served, but not with this method; ``details.allowed`` says with which."""

    code = "method_not_allowed"
    status = 405


class SlowBodyError(ShadowError):
    """The request's body did not arrive in time."""

    code = "slow_body"
    status = 408


class StalledError(ShadowError):
    """A client that asked for a stream does not take it; its connection is cut."""

    code = "stalled"
    status = 408


class EncodingError(ShadowError):
    """The request's body is compressed; only plain bodies are read."""

    code = "unsupported_encoding"
    status = 415


class ExpectationError(ShadowError):
    """An ``Expect`` header other than ``100-continue``."""

    code = "expectation_failed"
    status = 417


class InternalError(ShadowError):
    """A bug of ours; ``details.incident`` is what to look for in the log."""

    code = "internal"


class AddressError(ShadowError):
    """The service cannot listen at the configured host and port."""

    code = "bad_address"


def error_data(error: ShadowError) -> dict[str, Any]:
    """What an error says, as the value of ``error`` in the body."""
    return {"code": error.code, "message": error.message, "details": error.details}


def error_response(error: ShadowError) -> web.Response:
    """The reply that carries one error."""
    response = web.Response(
        status=error.status,
        body=orjson.dumps({"error": error_data(error)}, default=repr),
        content_type="application/json",
    )
    if isinstance(error, MethodError):
        response.headers[hdrs.ALLOW] = ", ".join(error.details["allowed"])
    if isinstance(error, BusyError):
        response.headers[hdrs.RETRY_AFTER] = str(RETRY_AFTER_S)
    return response


def unexpected(error: Exception) -> InternalError:
    """Log a bug with its traceback, and give what the caller may know of it."""
    incident = uuid4().hex[:12]
    LOG.error("incident %s", incident, exc_info=error)
    return InternalError(f"unexpected error; the log has it as {incident}", incident=incident)


@web.middleware
async def errors_to_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into the one error body."""
    try:
        return await handler(request)
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001  (the outermost frame: _typed() logs what is no error of ours)
        return error_response(_typed(request, error))


@contextmanager
def cut_on_error(request: web.Request) -> Iterator[None]:
    """For a reply that has begun and cannot become an error body any more.

    On an error its connection is cut, so that nobody takes a part for the whole.
    """
    try:
        yield
    except ConnectionError:
        raise
    except Exception as error:
        typed = _typed(request, error)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(typed.message) from error


def _typed(request: web.Request, error: Exception) -> ShadowError:
    """The error as the reply says it; it is counted."""
    typed = _as_ours(request, error)
    request.app[METER].error(typed)
    return typed


def _as_ours(request: web.Request, error: Exception) -> ShadowError:
    if isinstance(error, ShadowError):
        return error
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = sorted({*error.allowed_methods, "OPTIONS"})
        return MethodError(
            f"{error.method} is not served at {request.path:.200}; {', '.join(allowed)} are",
            method=error.method,
            allowed=allowed,
        )
    if isinstance(error, web.HTTPNotFound):
        return NoRouteError(f"nothing is served at {request.path:.200}", path=request.path[:200])
    return unexpected(error)
