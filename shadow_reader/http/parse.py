"""Bytes and query strings to checked models; nothing is guessed, nothing is dropped.

Laws: what is not one JSON object is BadRequestError (400), with a key given twice among it; an
object of the wrong shape is InvalidInputError (422) that names the first wrong field and lists all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import orjson
from multidict import MultiMapping
from pydantic import BaseModel, TypeAdapter, ValidationError

from shadow_reader.errors import BadRequestError, InvalidInputError

Model = TypeVar("Model", bound=BaseModel)
Message = TypeVar("Message")

MAX_PROBLEMS = 16
"""Problems listed in one error."""


def parse_object(raw: bytes, *, what: str = "body") -> dict[str, Any]:
    """One JSON object; an empty ``raw`` counts as ``{}``.

    Raises:
        BadRequestError: not JSON (NaN, a byte order mark, broken UTF-8 and too deep nesting
            among it), not an object, or an object with a key given twice.
    """
    if not raw:
        return {}
    return checked_object(parse_json(raw, what=what), raw, what=what)


def parse_json(raw: bytes, *, what: str) -> object:
    """Any JSON value.

    Raises:
        BadRequestError: not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(
            f"{what} is not JSON: {error}", field=what, line=error.lineno, column=error.colno
        ) from None


def checked_object(value: object, raw: bytes, *, what: str) -> dict[str, Any]:
    """``value``, parsed from ``raw``, if it is an object that gives no key twice.

    Raises:
        BadRequestError: it is not.
    """
    if type(value) is not dict:
        raise BadRequestError(
            f"{what} must be a JSON object, not {_json_type(value)}",
            field=what,
            found=_json_type(value),
        )
    if raw.count(b'"') != _quotes(value):
        _refuse_doubled_keys(raw, what)
    return value


def parse_body(model: type[Model], raw: bytes) -> Model:
    """A body as its model.

    Raises:
        BadRequestError: not one JSON object. InvalidInputError: of another shape.
    """
    value = parse_object(raw)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error) from None


def parse_message(adapter: TypeAdapter[Message], value: Mapping[str, Any]) -> Message:
    """A feed's line, parsed already, as one of its messages.

    Raises:
        InvalidInputError: of another shape.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise invalid(error, tagged=True) from None


def parse_query(model: type[Model], query: MultiMapping[str]) -> Model:
    """A query string as its model; fields that are tuples may be repeated, or hold commas but for
    those that the model calls ``WHOLE``.

    Raises:
        InvalidInputError: an unknown, repeated or malformed parameter.
    """
    values: dict[str, Any] = {}
    for name in query:
        given = query.getall(name)
        field = model.model_fields.get(name)
        if field is not None and isinstance(field.default, tuple):
            whole = name in getattr(model, "WHOLE", ())
            values[name] = tuple(p for t in given for p in ([t] if whole else t.split(",")))
        elif len(given) > 1:
            raise InvalidInputError(
                f"{name} is given {len(given)} times", field=name, found=len(given), limit=1
            )
        else:
            values[name] = given[0]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError, *, tagged: bool = False) -> InvalidInputError:
    """What pydantic found wrong, in our words: field, problem, what was found, the limit.

    ``tagged``: the model was chosen by its ``kind``, which then leads every path.
    """
    found = error.errors(include_url=False)[:MAX_PROBLEMS]
    problems = [_problem(item, skip=int(tagged)) for item in found]
    first = problems[0]
    text = "; ".join(f"{p['field']}: {p['problem']}" for p in problems)
    return InvalidInputError(text, **first, problems=problems)


def _problem(item: Mapping[str, Any], *, skip: int) -> dict[str, Any]:
    path = [str(part) for part in item["loc"][skip:]]
    context: dict[str, Any] = item.get("ctx", {})
    found = repr(item["input"])[:80]
    problem: dict[str, Any] = {"field": ".".join(path) or "body"}
    match item["type"]:
        case "union_tag_not_found":
            return {"field": "kind", "problem": "is missing"}
        case "union_tag_invalid":
            kinds, kind = context["expected_tags"], context["tag"]
            problem = {"field": "kind", "problem": f"must be one of {kinds}", "limit": kinds}
            return {**problem, "found": str(kind)[:80]}
        case "missing":
            problem["problem"] = "is missing"
            return problem
        case "extra_forbidden":
            problem["problem"] = "is not a known field"
        case "value_error":
            problem["problem"] = str(context["error"])
        case _:
            text = str(item["msg"]).removeprefix("Input ")
            problem["problem"] = f"{text}, not {found}"
    for name in ("ge", "gt", "le", "lt", "expected", "max_length", "min_length"):
        if name in context:
            problem["limit"] = context[name]
    problem["found"] = found
    return problem


def _quotes(value: Mapping[str, Any]) -> int:
    """Quotation marks that an object of ours has in JSON: two a key, two a string.

    Strings deeper than one list are not counted, so a key given twice always leaves more marks in
    the text than are counted here, and equal numbers prove that there is none.
    """
    strings = len(value)
    for name, item in value.items():
        if type(item) is str:
            strings += 1
        elif name == "choices" and type(item) is list:
            strings += sum(type(choice) is str for choice in item)
    return 2 * strings


def _refuse_doubled_keys(raw: bytes, what: str) -> None:
    """The slow look, only where the count of marks left a doubt."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, item in pairs:
            if name in seen:
                _refuse(f"{what} gives {name[:80]!r} twice", field=name[:80])
            seen[name] = item
        return seen

    try:
        json.loads(raw, object_pairs_hook=unique, parse_int=str)
    except RecursionError:
        _refuse(f"{what} is nested too deeply", field=what)


def _refuse(message: str, **details: Any) -> NoReturn:
    raise BadRequestError(message, **details)


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
