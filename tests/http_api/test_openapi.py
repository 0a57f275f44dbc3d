"""The document and the service agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from shadow_reader.errors import ShadowError
from shadow_reader.http.openapi import EVERYWHERE, openapi
from shadow_reader.http.table import ROUTES
from tests.http_api.serving import Served

DOCUMENT = openapi(ROUTES)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


async def test_every_route_is_described_and_every_description_served(served: Served) -> None:
    described = {(method, path) for method, path, _ in operations()}
    assert described == {(route.method, route.path) for route in ROUTES}
    document = await served.ok("GET", "/openapi.json")
    assert document == DOCUMENT
    for method, path in described:
        served_path = re.sub(r"\{\w+\}", "x", path)
        async with served.http.options(served.address.url + served_path) as reply:
            assert method in reply.headers["Allow"].split(", ")


def test_every_reference_leads_somewhere() -> None:
    known = DOCUMENT["components"]["schemas"]
    found = set(re.findall(r"'\$ref': '#/components/schemas/([^']+)'", repr(DOCUMENT)))
    assert found
    assert found <= known.keys()
    assert known.keys() <= found, "a schema that nothing uses"


def test_operations_are_named_and_their_parameters_declared() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    for _, path, operation in operations():
        declared = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert declared == re.findall(r"\{(\w+)\}", path)


def test_bodies_are_strict_and_say_what_they_need() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    output = schemas["OutputBody"]
    assert output["required"] == ["offset", "ids"]
    assert output["additionalProperties"] is False
    assert output["properties"]["ids"]["items"]["type"] == "integer"
    feed = DOCUMENT["paths"]["/v1/feed"]["post"]["requestBody"]["content"]
    kinds = feed["application/x-ndjson"]["schema"]["discriminator"]["mapping"]
    assert set(kinds) == {"prompt", "first_token", "output", "end"}


def test_errors_of_a_route_are_listed_by_status() -> None:
    for route in ROUTES:
        responses = DOCUMENT["paths"][route.path][route.method.lower()]["responses"]
        for error in (*route.errors, *EVERYWHERE):
            assert error.code in responses[str(error.status)]["description"].split(", ")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/sessions/{session}/turns", {"ids": [1]}),
        ("GET", "/v1/sessions/{session}", None),
        ("GET", "/v1/sessions", None),
        ("GET", "/v1/conductor/shadow/status", None),
        ("GET", "/healthz", None),
        ("GET", "/readyz", None),
    ],
)
async def test_replies_have_the_described_fields(
    served: Served, method: str, path: str, body: Any
) -> None:
    await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1, 2]})
    answer = await served.ok(method, path.replace("{session}", "s"), body)
    operation = DOCUMENT["paths"][path][method.lower()]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer.keys() == resolved(schema)["properties"].keys()


async def test_the_error_body_is_as_described(served: Served) -> None:
    _, body = await served.call("GET", "/v1/sessions/none")
    schema = DOCUMENT["paths"]["/v1/sessions/{session}"]["get"]["responses"]["404"]
    described = resolved(schema["content"]["application/json"]["schema"])
    assert body.keys() == described["properties"].keys()
    inner = resolved(described["properties"]["error"])
    assert body["error"].keys() == inner["properties"].keys()


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema
    if "$ref" in schema:
        found = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def test_codes_are_stable_words() -> None:
    for route in ROUTES:
        for error in (*route.errors, *EVERYWHERE):
            assert issubclass(error, ShadowError)
            assert re.fullmatch(r"[a-z_]+", error.code)
