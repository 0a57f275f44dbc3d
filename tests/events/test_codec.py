"""The journal's format: golden lines that stay for ever, and what is refused on both ways."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import InvalidInputError, JournalFormatError, UnknownEventError
from shadow_reader.events import codec
from shadow_reader.events import types as t
from shadow_reader.events.codec import KINDS, UPCASTERS, VERSIONS, Row, decode, encode, kind_of
from shadow_reader.events.ids import Ids
from shadow_reader.events.shapes import checks_of
from tests.events.samples import SAMPLES

GOLDEN = Path(__file__).with_name("golden.jsonl")


def _golden_rows() -> list[Row]:
    rows = []
    for line in GOLDEN.read_text().splitlines():
        parts = orjson.loads(line)
        ids = None if parts["ids"] is None else bytes.fromhex(parts["ids"])
        rows.append(Row(parts["kind"], parts["version"], parts["data"].encode(), ids))
    return rows


ROWS = _golden_rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.version}")
def test_a_golden_line_is_read_and_written_again_byte_for_byte(row: Row) -> None:
    event = decode(row)
    assert event == SAMPLES[row.kind, row.version]
    if row.version == VERSIONS[row.kind]:
        assert encode(event) == row


def test_every_version_of_every_kind_has_one_golden_line() -> None:
    every = [
        (kind, version) for kind, newest in VERSIONS.items() for version in range(1, newest + 1)
    ]
    assert sorted((row.kind, row.version) for row in ROWS) == sorted(every)


def test_every_event_type_has_a_kind_and_every_old_version_an_upcaster() -> None:
    declared = set(typing.get_args(t.SessionEvent)) | set(typing.get_args(t.EngineEvent))
    assert set(KINDS.values()) == declared == {type(event) for event in SAMPLES.values()}
    assert len(set(KINDS.values())) == len(KINDS)
    old = {(kind, v) for kind, newest in VERSIONS.items() for v in range(1, newest)}
    assert set(UPCASTERS) == old
    assert [kind_of(event) for event in SAMPLES.values()] == [kind for kind, _ in SAMPLES]


def test_golden_values_differ_from_the_defaults_so_that_no_field_can_get_lost() -> None:
    newest = [event for (kind, version), event in SAMPLES.items() if version == VERSIONS[kind]]
    for event in newest:
        for field in dataclasses.fields(event):
            assert getattr(event, field.name) != field.default


def test_unknown_kinds_and_versions_are_errors() -> None:
    with pytest.raises(UnknownEventError, match=r"'session\.renamed'"):
        decode(Row("session.renamed", 1, b"{}", None))
    for version in (0, 2):
        with pytest.raises(UnknownEventError) as caught:
            decode(Row("first_token", version, b"{}", None))
        assert caught.value.details == {"kind": "first_token", "version": version, "limit": 1}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (Row("output", 1, b'{"offset":', b""), "broken JSON"),
        (Row("output", 1, b"[7]", b""), "list, not an object"),
        (Row("output", 1, b"{}", b""), "offset"),
        (Row("output", 1, b'{"offset":7,"colour":1}', b""), "colour"),
        (Row("output", 1, b'{"offset":7}', None), "lacks them"),
        (Row("read", 1, b"{}", None), "missing or extra fields"),
        (Row("first_token", 1, b"{}", b""), "ids where none belong"),
        (Row("output", 1, b'{"offset":7}', b"\1\2\3"), "3 bytes are no whole number of ids"),
        (Row("output", 1, b'{"offset":"7"}', b""), "offset cannot be '7'"),
        (Row("output", 1, b'{"offset":true}', b""), "offset cannot be True"),
        (Row("output", 1, b'{"offset":7.0}', b""), "offset cannot be 7.0"),
        (Row("turn.ended", 1, b'{"reason":"bored","unsure":false}', None), "reason cannot be"),
        (Row("turn.ended", 1, b'{"reason":"stop","unsure":0}', None), "unsure cannot be 0"),
        (Row("prompt", 1, b'{"keep":0,"router":5}', b""), "router cannot be 5"),
        (Row("engine.stopped", 1, b'{"reason":null}', None), "reason cannot be None"),
        (
            Row("question", 1, b'{"choices":"ab","kind":"k","position":0,"question":"q"}', b""),
            "choices cannot be 'ab'",
        ),
        (
            Row("question", 1, b'{"choices":["a",1],"kind":"k","position":0,"question":"q"}', b""),
            "choices cannot be",
        ),
    ],
)
def test_a_damaged_row_is_an_error_that_says_what_was_found(row: Row, says: str) -> None:
    with pytest.raises(JournalFormatError, match=says) as caught:
        decode(row)
    assert not isinstance(caught.value, UnknownEventError)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (t.Read(0, 512, "idle", float("nan")), "ms"),
        (t.Read(0, 512, "idle", float("inf")), "ms"),
        (t.Answer("q", "a", (0.5, float("nan")), 0, 0, 1.0, 1.0), "probabilities"),
        (t.Output(typing.cast("int", "7"), Ids.of([1])), "offset"),
        (t.Output(2**63, Ids.of([1])), "offset"),
        (t.TurnEnded(typing.cast("t.EndReason", "bored")), "reason"),
        (t.Question("q", "k", 0, Ids.of([1]), typing.cast("tuple[str, ...]", ["a"])), "choices"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(event: t.Event, field: str) -> None:
    with pytest.raises(InvalidInputError, match=field) as caught:
        encode(event)
    assert caught.value.details["field"] == field


def test_text_that_is_not_unicode_is_not_written() -> None:
    with pytest.raises(InvalidInputError, match=r"question\.ended event cannot be written"):
        encode(t.QuestionEnded("\ud800", "failed"))


def test_whole_numbers_are_fine_where_a_float_belongs() -> None:
    event = t.Read(0, 512, "idle", 3)
    assert decode(encode(event)) == event


def test_an_old_version_is_lifted_one_step_at_a_time() -> None:
    def first_to_second(data: dict[str, Any]) -> dict[str, Any]:
        return {"offset": data["start"], "steps": ["1>2"]}

    def second_to_third(data: dict[str, Any]) -> dict[str, Any]:
        assert data.pop("steps") == ["1>2"]
        return data

    upcasters = {("output", 1): first_to_second, ("output", 2): second_to_third}
    ids = Ids.of([3, 4])
    lifted = decode(
        Row("output", 1, b'{"start":9}', ids.to_bytes()),
        upcasters=upcasters,
        versions={"output": 3},
    )
    assert lifted == t.Output(9, ids)
    newest = decode(
        Row("output", 3, b'{"offset":9}', ids.to_bytes()),
        upcasters=upcasters,
        versions={"output": 3},
    )
    assert newest == lifted


def test_a_field_of_a_new_type_needs_a_check() -> None:
    @dataclasses.dataclass
    class Strange:
        when: complex

    with pytest.raises(TypeError, match="complex"):
        checks_of(Strange)


@given(st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 2**32 - 1), max_size=3))
def test_the_short_way_of_an_output_writes_what_the_long_one_does(
    offset: int, ids: list[int]
) -> None:
    event = t.Output(offset, Ids.of(ids))
    assert encode(event) == codec._encode(event)
