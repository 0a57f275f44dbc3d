"""The OpenAPI 3.1 document, made from the table of routes and the types behind it.

Law: nothing is described by hand that a type says already; a route that is served and not
described, or the other way round, fails a test.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from shadow_reader.errors import BusyError, ForbiddenError, ShadowError
from shadow_reader.http.api import BINARY, JSON, NDJSON, Route
from shadow_reader.http.bodies import Name, Query
from shadow_reader.http.errors import EncodingError, InternalError
from shadow_reader.http.guard import OPEN_PATHS
from shadow_reader.http.replies import ErrorBody

Json: TypeAlias = dict[str, Any]

API_VERSION: Final = "1"
EVERYWHERE: Final[tuple[type[ShadowError], ...]] = (
    ForbiddenError,
    EncodingError,
    BusyError,
    InternalError,
)
"""Errors that any route may give."""

_PARAMETER: Final = re.compile(r"\{(\w+)\}")


def openapi(routes: Iterable[Route]) -> Json:
    """The document of these routes, as plain JSON values."""
    table = tuple(routes)
    schemas = _Schemas(table)
    paths: dict[str, Json] = defaultdict(dict)
    for route in table:
        paths[route.path][route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shadow reader",
            "version": API_VERSION,
            "description": "Feed it what a serving model reads and writes; ask it about that.",
        },
        "paths": dict(paths),
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The schemas of all types that the routes name, with their shared definitions."""

    def __init__(self, routes: Iterable[Route]) -> None:
        wanted: dict[tuple[str, JsonSchemaMode], tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = {}
        for found, mode in _types(routes):
            wanted[repr(found), mode] = (repr(found), mode, TypeAdapter(found))
        self._schemas, shared = TypeAdapter.json_schemas(
            wanted.values(), ref_template="#/components/schemas/{model}"
        )
        self.definitions: Json = shared.get("$defs", {})

    def read(self, found: object) -> Json:
        """The schema of something that comes in."""
        return self._schemas[repr(found), "validation"]

    def written(self, found: object) -> Json:
        """The schema of something that goes out."""
        return self._schemas[repr(found), "serialization"]


def _types(routes: Iterable[Route]) -> Iterable[tuple[Any, JsonSchemaMode]]:
    yield ErrorBody, "serialization"
    for route in routes:
        if route.answer is not None:
            yield route.answer, "serialization"
        for read in (route.body, route.lines):
            if read is not None:
                yield read, "validation"


def _operation(route: Route, schemas: _Schemas) -> Json:
    operation: Json = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "parameters": [*_path_parameters(route.path), *_query_parameters(route.query)],
        "responses": _responses(route, schemas),
        "security": [] if route.path in OPEN_PATHS else [{"token": []}, {}],
    }
    if route.body is not None:
        content = {JSON: {"schema": schemas.read(route.body)}}
        operation["requestBody"] = {"required": _has_required(route.body), "content": content}
    if route.lines is not None:
        line = {NDJSON: {"schema": schemas.read(route.lines)}}
        operation["requestBody"] = {
            "required": True,
            "description": "A line each.",
            "content": line,
        }
    return operation


def _path_parameters(path: str) -> list[Json]:
    schema = TypeAdapter(Name).json_schema()
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name in _PARAMETER.findall(path)
    ]


def _query_parameters(query: type[Query]) -> list[Json]:
    properties: Json = query.model_json_schema().get("properties", {})
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in properties.items()
    ]


def _responses(route: Route, schemas: _Schemas) -> Json:
    content: Json
    if route.media == BINARY:
        content = {"schema": {"type": "string", "format": "binary"}}
    elif route.answer is None:
        content = {"schema": {"type": "object"}}
    else:
        content = {"schema": schemas.written(route.answer)}
    responses: Json = {"200": {"description": route.summary, "content": {route.media: content}}}
    codes: dict[int, list[str]] = defaultdict(list)
    for error in (*route.errors, *EVERYWHERE):
        if error.code not in codes[error.status]:
            codes[error.status].append(error.code)
    for status, names in sorted(codes.items()):
        responses[str(status)] = {
            "description": ", ".join(names),
            "content": {JSON: {"schema": schemas.written(ErrorBody)}},
        }
    return responses


def _has_required(body: type[Any]) -> bool:
    return any(field.is_required() for field in body.model_fields.values())
