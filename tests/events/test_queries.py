"""Rows, conditions and groups: the same rows whatever they are asked of, and errors that help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import InvalidInputError
from shadow_reader.events import types as t
from shadow_reader.events.codec import KINDS
from shadow_reader.events.conditions import Condition, parse_condition
from shadow_reader.events.groups import Groups
from shadow_reader.events.ids import Ids
from shadow_reader.events.queries import RowQuery
from shadow_reader.events.rows import COLUMNS, FlatRows, fields_of, schema
from tests.events.samples import SAMPLES

ANSWERS = ("low", "high", "high", "low")


def entries() -> list[t.Entry]:
    """Two sessions with two answers each, and what the router said."""
    found: list[t.Entry] = []

    def add(session: str, event: t.Event) -> None:
        found.append(t.Entry(float(len(found)), session, "t", event, len(found) + 1))

    for number, label in enumerate(ANSWERS):
        session, question = f"s{number % 2}", f"q{number}"
        choices = ("low", "high")
        odds = (0.75, 0.25) if label == "low" else (0.25, 0.75)
        behind = (0, 600, 5000, 100_000)[number]
        add(session, t.Question(question, "router", 9, Ids.of([1, 2]), choices, 8))
        add(session, t.Answer(question, label, odds, 8, behind, 10.0 * number, 2.0))
        agree = None if number == 3 else label == "high"
        add(
            session,
            t.RouterAnswer(question, label, 0.75, "high", None, agree, 8, behind, 10.0 * number),
        )
    return found


def ask(given_: list[t.Entry] | None = None, **asked: Any) -> list[dict[str, Any]]:
    everything = entries() if given_ is None else given_

    async def found(**filters: Any) -> AsyncIterator[t.Entry]:
        kinds, after, session = filters["kinds"], filters["after"], filters["session"]
        for entry in everything:
            tag = next(kind for kind, cls in KINDS.items() if isinstance(entry.event, cls))
            wanted = (kinds is None or tag in kinds) and session in (None, entry.session)
            since, turn = filters["since"], filters["turn"]
            wanted = wanted and turn in (None, entry.turn) and (since is None or entry.at >= since)
            if wanted and entry.seq > after:
                yield entry

    async def main() -> list[dict[str, Any]]:
        return [row async for row in RowQuery(**asked).rows(found)]

    return asyncio.run(main())


def test_an_answer_s_row_says_what_was_asked() -> None:
    rows = ask(kinds=["answer"])
    assert [row["label"] for row in rows] == list(ANSWERS)
    first = rows[0]
    assert (first["question_kind"], first["choices"], first["about"]) == (
        "router",
        ("low", "high"),
        8,
    )
    assert (first["probability"], first["asked_at"]) == (0.75, 0.0)
    assert first.keys() == set(fields_of(["answer"]))
    assert not any(isinstance(value, dict) for value in first.values()), "flat"


def test_every_kind_s_rows_have_the_fields_that_are_said() -> None:
    for (kind, _), event in SAMPLES.items():
        row = FlatRows().row(t.Entry(1.0, "s", "t", event, 1))
        assert row.keys() == set(fields_of([kind])), kind
        assert set(dict(schema()[kind])) == row.keys() - set(COLUMNS), kind


@pytest.mark.parametrize(
    ("where", "seqs"),
    [
        (["agree=false"], [3]),
        (["agree = true"], [6, 9]),
        (["agree=null"], [12]),
        (["behind>=512", "label=high"], [6, 9]),
        (["behind > 600"], [9, 12]),
        (["label in (low, other)"], [3, 12]),
        (['label in ["low"]', "behind<1"], [3]),
        (["label!=low"], [6, 9]),
        (["router == high", "lag_ms<=10"], [3, 6]),
        (["probability>0.8"], []),
        (["label < lower"], [3, 6, 9, 12]),
    ],
)
def test_conditions_choose_rows(where: list[str], seqs: list[int]) -> None:
    rows = ask(kinds=["router.answer"], where=where)
    assert [row["seq"] for row in rows] == seqs


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("agrees=false", "there are seq, at, session, turn, kind, agree"),
        ("agree", "is no condition"),
        ("= 3", "is no condition"),
        ("label in low", "behind in comes a list"),
        ("label in ()", "behind in comes a list"),
    ],
)
def test_what_is_no_condition_is_an_error_that_helps(where: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ask(kinds=["router.answer"], where=[where])
    assert said in caught.value.message
    assert caught.value.details["field"] == "where"


@given(
    st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
)
def test_a_condition_and_its_opposite_never_both_hold(operator: Any, left: Any, right: Any) -> None:
    row = {"x": left}
    opposite: Any = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}[operator]
    both = [Condition("x", one, right).holds(row) for one in (operator, opposite)]
    assert sum(both) <= 1
    if operator in ("=", "!="):
        assert sum(both) == 1


def test_parsed_values_are_json_or_text() -> None:
    for text, value in (("3", 3), ("3.5", 3.5), ('"3"', "3"), ("null", None), ("a b", "a b")):
        assert parse_condition(f"label = {text}", ["label"]).value == value


def test_groups_count_agree_and_sum_up() -> None:
    rows = ask(kinds=["router.answer"], by="label", of="lag_ms")
    assert rows == [
        {"label": "high", "count": 2, "compared": 2, "agree": 1.0}
        | {"mean": 15.0, "p50": 10.0, "p90": 20.0},
        {"label": "low", "count": 2, "compared": 1, "agree": 0.0}
        | {"mean": 15.0, "p50": 0.0, "p90": 30.0},
    ]
    by_behind = ask(kinds=["router.answer"], by="behind")
    assert [(row["behind"], row["count"]) for row in by_behind] == [
        ("0-511", 1),
        ("512-4095", 1),
        ("4096-32767", 1),
        ("32768-", 1),
    ]
    by_lag = ask(kinds=["answer"], by="lag_ms")
    assert [row["lag_ms"] for row in by_lag] == ["0.0", "10-100"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"by": "nothing"}, "there is no field 'nothing'"),
        ({"by": "label", "of": "nothing"}, "there is no field 'nothing'"),
        ({"of": "lag_ms"}, "give by, too"),
        ({"newest_first": True}, "give a limit"),
        ({"kinds": ["answers"]}, "known are session.opened"),
    ],
)
def test_what_cannot_be_asked_is_an_error(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ask(**{"kinds": ["answer"], **asked})
    assert said in caught.value.message


def test_too_many_groups_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadow_reader.events.groups.MAX_GROUPS", 2)
    groups = Groups("seq", None, ["seq"])
    for seq in (1, 2, 1):
        groups.take({"seq": seq})
    with pytest.raises(InvalidInputError, match="more than 2 values"):
        groups.take({"seq": 3})


def test_the_newest_first_and_limits_and_ids() -> None:
    assert [row["seq"] for row in ask(kinds=["answer"], limit=2)] == [2, 5]
    newest = ask(kinds=["answer"], limit=2, newest_first=True)
    assert [row["seq"] for row in newest] == [11, 8]
    assert newest[0]["question_kind"] == "router", "its question is older, and joined"
    (question, *_) = ask(kinds=["question"], ids=True)
    assert (question["ids"], question["id_count"]) == ([1, 2], 2)
    assert "ids" not in ask(kinds=["question"])[0]
    assert len(ask(session="s0")) == 6


@pytest.mark.parametrize("asked", [{"seen": 1}, {"since": 1.0}, {"turn": "later"}])
def test_an_answer_finds_its_question_before_what_is_read_and_in_another_turn(
    asked: dict[str, Any],
) -> None:
    given_ = [entry._replace(turn="later" if entry.seq > 1 else "t") for entry in entries()]
    rows = ask(given_, kinds=["answer"], **asked)
    assert [row["seq"] for row in rows] == [2, 5, 8, 11]
    assert all(row["question_kind"] == "router" and row["probability"] == 0.75 for row in rows)


def test_asked_again_it_goes_on_and_ends_at_its_limit() -> None:
    everything = entries()
    there = [4]

    async def found(**filters: Any) -> AsyncIterator[t.Entry]:
        for entry in everything[: there[0]]:
            if entry.seq > filters["after"]:
                yield entry

    async def main() -> list[list[int]]:
        query = RowQuery(limit=7)
        told = []
        for there[0] in (4, 4, 6, 12):
            told.append([row["seq"] async for row in query.rows(found)])
        assert query.is_over()
        return told

    assert asyncio.run(main()) == [[1, 2, 3, 4], [], [5, 6], [7]]
