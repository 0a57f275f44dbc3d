"""Parsing strictly: the fast paths agree with the slow ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from shadow_reader.errors import BadRequestError, ShadowError
from shadow_reader.http.bodies import FEED_MESSAGE, OutputBody, OutputMessage, is_plain_output
from shadow_reader.http.parse import parse_body, parse_object

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.one_of(st.sampled_from(["ids", "choices", "offset", "a", 'a"b', "\\", ""]), TEXT)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), TEXT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.booleans())
def test_every_object_is_read_as_it_is(value: dict[str, Any], ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_object(raw) == value


@given(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4), st.data())
@example([("choices", ["a"]), ("ids", [1])], None)
def test_a_key_given_twice_is_always_found(pairs: list[tuple[str, Any]], data: Any) -> None:
    doubled = pairs[0] if data is None else data.draw(st.sampled_from(pairs))
    other = 1 if data is None else data.draw(VALUES)
    items = [*pairs, (doubled[0], other)]
    raw = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in items) + "}"
    with pytest.raises(BadRequestError) as caught:
        parse_object(raw.encode())
    assert "twice" in caught.value.message


@given(st.binary(max_size=40))
def test_any_bytes_give_an_object_or_a_typed_error(raw: bytes) -> None:
    try:
        assert isinstance(parse_object(raw), dict)
    except BadRequestError as error:
        json.dumps(error.details)


FIELD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**64 - 1),
    st.floats(),
    st.sampled_from(["", "s", "s" * 200, "s" * 201, "output", "end"]),
    st.lists(st.one_of(st.integers(-1, 5), TEXT), max_size=3),
    st.dictionaries(TEXT, st.integers(), max_size=1),
)


@given(
    st.fixed_dictionaries(
        {
            "kind": st.one_of(st.just("output"), FIELD_VALUES),
            "session": FIELD_VALUES,
            "turn": FIELD_VALUES,
            "offset": FIELD_VALUES,
            "ids": FIELD_VALUES,
        },
        optional={"at": FIELD_VALUES},
    )
)
@example({"kind": "output", "session": "s", "turn": "t", "offset": 0, "ids": []})
@example({"kind": "output", "session": "s" * 200, "turn": "t", "offset": 2**64 - 1, "ids": [1]})
@example({"kind": "output", "session": "s" * 201, "turn": "t", "offset": 0, "ids": [1]})
@example({"kind": "output", "session": "s", "turn": "t", "offset": -1, "ids": [1]})
def test_the_fast_look_at_an_output_agrees_with_its_model(value: dict[str, Any]) -> None:
    is_plain = is_plain_output(value, json.dumps(value).encode())
    try:
        message = FEED_MESSAGE.validate_python(value)
    except ValidationError:
        assert not is_plain
    else:
        names = '"' in value["session"] + value.get("turn", "")  # escaped: the model looks at it
        assert is_plain == (isinstance(message, OutputMessage) and not names)


@pytest.mark.parametrize("key", ["kind", "session", "turn", "offset", "ids"])
def test_the_fast_look_sees_a_key_given_twice(key: str) -> None:
    value = {"kind": "output", "session": "s", "turn": "t", "offset": 0, "ids": [1]}
    raw = json.dumps(value)
    assert is_plain_output(value, raw.encode())
    doubled = f'{{"{key}": {json.dumps(value[key])}, {raw[1:]}'
    assert not is_plain_output(json.loads(doubled), doubled.encode())


@given(st.dictionaries(st.sampled_from(["offset", "ids", "x"]), FIELD_VALUES, max_size=3))
def test_a_body_gives_its_model_or_a_typed_error_that_is_json(value: dict[str, Any]) -> None:
    error = refusal(json.dumps(value).encode())
    whole = {"kind": "output", "session": "s", "turn": "t", **value}
    fits = value.keys() == {"offset", "ids"} and is_plain_output(whole, json.dumps(whole).encode())
    assert (error is None) == fits
    if error is not None:
        assert error.status in (400, 422)
        assert error.details["field"]
        json.dumps(error.details)


def refusal(raw: bytes) -> ShadowError | None:
    try:
        parse_body(OutputBody, raw)
    except ShadowError as error:
        return error
    return None
