"""The application: the table of routes behind the guard, with one error body around it all."""

from __future__ import annotations

import functools
import re
from typing import Final

import orjson
from aiohttp import HttpVersion11, hdrs, web

from shadow_reader.http.api import Api, Route, query_of
from shadow_reader.http.bodies import NoQuery
from shadow_reader.http.errors import ExpectationError, error_response, errors_to_bodies
from shadow_reader.http.guard import Guard
from shadow_reader.http.meter import METER
from shadow_reader.http.openapi import openapi
from shadow_reader.http.table import ROUTES
from shadow_reader.runtime import Runtime

API: Final = web.AppKey("api", Api)

_PARAMETER: Final = re.compile(r"\{(\w+)\}")


def make_app(runtime: Runtime) -> web.Application:
    """Serve a running runtime.

    The application must stop before the runtime does; ``serve.listening`` sees to it.
    """
    api = Api(runtime, document=_document())
    guard = Guard(runtime.settings, api.requests)
    app = web.Application(
        middlewares=[api.meter.middleware, errors_to_bodies, guard.middleware],
    )
    app[API], app[METER] = api, api.meter
    for route in ROUTES:
        _serve(app, api, route)
    for path in dict.fromkeys(route.path for route in ROUTES):
        _serve_options(app, path)
    app.on_shutdown.append(_close)
    return app


@functools.cache
def _document() -> bytes:
    return orjson.dumps(openapi(ROUTES))


def _serve(app: web.Application, api: Api, route: Route) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if route.query is NoQuery and request.query_string:
            query_of(request, NoQuery)
        return await route.handler(api, request)

    app.router.add_route(route.method, _pattern(route.path), handler, expect_handler=_expect)
    if route.method == hdrs.METH_GET:
        app.router.add_route(hdrs.METH_HEAD, _pattern(route.path), handler, expect_handler=_expect)


def _serve_options(app: web.Application, path: str) -> None:
    methods = {hdrs.METH_OPTIONS}
    for route in ROUTES:
        if route.path == path:
            methods |= {route.method} | ({hdrs.METH_HEAD} if route.method == "GET" else set())
    allowed = ", ".join(sorted(methods))

    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={hdrs.ALLOW: allowed})

    app.router.add_route(hdrs.METH_OPTIONS, _pattern(path), handler, expect_handler=_expect)


def _pattern(path: str) -> str:
    """A name may hold anything but a bare slash; what it may really hold, the decisions know."""
    return _PARAMETER.sub(r"{\1:[^/]+}", path)


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Runs before the guard, so it only says "go on" to what the guard will see next."""
    expected = request.headers.get(hdrs.EXPECT, "")
    if expected.lower() != "100-continue":
        error = ExpectationError(
            f"Expect {expected[:40]!r} cannot be met", field="Expect", found=expected[:40]
        )
        request.app[METER].error(error)
        return error_response(error)
    if request.version >= HttpVersion11:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return None


async def _close(app: web.Application) -> None:
    app[API].closing.close()
