"""Decisions: what a message becomes, and what exactly is wrong with one that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ShadowError,
    TooLargeError,
)
from shadow_reader.events import types as t
from shadow_reader.events.decide import (
    Limits,
    check_name,
    decide_end,
    decide_first_token,
    decide_output,
    decide_prompt,
    decide_questions,
)
from shadow_reader.events.fold import fold, fold_all
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView

LIMITS = Limits(vocabulary=100, context_ids=12, question_ids=4, open_questions=2)

some_ids = st.lists(st.integers(0, 2), max_size=6)


def draft(turn: str, event: t.SessionEvent, at: float = 1.0) -> t.Draft:
    return t.Draft(at, "s", turn, event)


def ids(*values: int) -> Ids:
    return Ids.of(values)


def session(*events: tuple[str, t.SessionEvent]) -> SessionView:
    """A view: prompt 1, 2, 3 of turn ``one``, then the events."""
    begin = [draft("", t.SessionOpened()), draft("one", t.Prompt(0, ids(1, 2, 3)))]
    view = fold_all(None, [*begin, *(draft(turn, event) for turn, event in events)])
    assert view is not None
    return view


RUNNING = session(("one", t.Output(0, ids(7, 8))))
ENDED = session(("one", t.Output(0, ids(7, 8))), ("one", t.TurnEnded("stop")))
SECOND = session(("one", t.TurnEnded("superseded")), ("two", t.Prompt(2, ids(5))))


def prompt(
    view: SessionView | None, turn: str, *values: int, keep: int | None = None
) -> tuple[t.SessionEvent, ...]:
    return decide_prompt(view, turn=turn, keep=keep, ids=ids(*values), router=None, limits=LIMITS)


def output(
    view: SessionView | None, turn: str, offset: int, *values: int
) -> tuple[t.SessionEvent, ...]:
    return decide_output(view, turn=turn, offset=offset, ids=ids(*values), limits=LIMITS)


def refusal(error: type[ShadowError], call: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is error
    return caught.value.details


# -- prompts ------------------------------------------------------------------------------------


def test_a_first_prompt_opens_the_session() -> None:
    events = decide_prompt(None, turn="one", keep=None, ids=ids(1, 2), router="low", limits=LIMITS)
    assert events == (t.SessionOpened(), t.Prompt(0, ids(1, 2), "low"))


def test_a_next_prompt_is_stored_as_what_is_new() -> None:
    assert prompt(ENDED, "two", 1, 2, 3, 7, 9, 9) == (t.Prompt(4, ids(9, 9)),)
    assert prompt(ENDED, "two", 1, 2) == (t.Prompt(2, ids()),)
    assert prompt(ENDED, "two", keep=5) == (t.Prompt(5, ids()),)


def test_a_kept_count_is_raised_to_what_agrees() -> None:
    assert prompt(ENDED, "two", 2, 3, 7, 4, keep=1) == (t.Prompt(4, ids(4)),)


def test_a_running_turn_is_superseded() -> None:
    assert prompt(RUNNING, "two", 9) == (t.TurnEnded("superseded"), t.Prompt(0, ids(9)))


def test_the_same_prompt_again_means_nothing_also_when_output_came_or_the_turn_ended() -> None:
    for view in (session(), RUNNING, ENDED):
        assert prompt(view, "one", 1, 2, 3) == ()
        assert prompt(view, "one", 3, keep=2) == ()


@given(known=some_ids.filter(bool), whole=some_ids.filter(bool), data=st.data())
def test_keep_and_suffix_mean_the_whole_prompt(
    known: list[int], whole: list[int], data: st.DataObject
) -> None:
    view = fold_all(None, [draft("", t.SessionOpened()), draft("one", t.Prompt(0, Ids.of(known)))])
    agree = 0
    while agree < min(len(known), len(whole)) and known[agree] == whole[agree]:
        agree += 1
    keep = data.draw(st.integers(0, agree))
    expected = decide_prompt(
        view, turn="two", keep=None, ids=Ids.of(whole), router=None, limits=LIMITS
    )
    kept = decide_prompt(
        view, turn="two", keep=keep, ids=Ids.of(whole[keep:]), router=None, limits=LIMITS
    )
    assert kept == expected
    assert expected[-1] == t.Prompt(agree, Ids.of(whole[agree:]))


def test_a_refused_prompt_says_what_was_expected() -> None:
    assert refusal(ConflictError, prompt, RUNNING, "two", 4, keep=6) == {
        "field": "keep",
        "found": 6,
        "expected": 5,
    }
    assert refusal(ConflictError, prompt, None, "one", 4, keep=1) == {
        "field": "keep",
        "found": 1,
        "expected": 0,
    }
    assert refusal(InvalidInputError, prompt, RUNNING, "two", 4, keep=-1) == {
        "field": "keep",
        "found": -1,
        "limit": 0,
    }
    assert refusal(InvalidInputError, prompt, None, "one") == {"field": "ids", "limit": 1}
    assert refusal(InvalidInputError, prompt, RUNNING, "two", keep=0) == {
        "field": "ids",
        "limit": 1,
    }
    assert refusal(TooLargeError, prompt, RUNNING, "two", *range(8), keep=5) == {
        "field": "ids",
        "found": 13,
        "limit": 12,
    }
    assert prompt(RUNNING, "two", *range(7), keep=5)[-1] == t.Prompt(5, ids(*range(7)))


def test_a_turn_s_id_is_used_once() -> None:
    assert refusal(ConflictError, prompt, RUNNING, "one", 1, 2) == {
        "field": "turn",
        "found": 2,
        "expected": 3,
    }
    assert refusal(ConflictError, prompt, SECOND, "one", 1, 2, 3) == {
        "field": "turn",
        "found": "one",
    }


# -- first tokens, output, ends -----------------------------------------------------------------


def test_a_first_token_is_said_once() -> None:
    assert decide_first_token(session(), turn="one") == (t.FirstToken(),)
    said = session(("one", t.FirstToken()))
    assert decide_first_token(said, turn="one") == ()
    assert decide_first_token(RUNNING, turn="one") == ()
    assert decide_first_token(ENDED, turn="one") == ()


def test_a_first_token_after_an_end_without_one_is_refused() -> None:
    ended = session(("one", t.TurnEnded("abort")))
    assert refusal(ConflictError, decide_first_token, ended, turn="one") == {
        "field": "turn",
        "found": "one",
        "reason": "abort",
    }


def test_output_is_stored_from_where_it_is_new() -> None:
    assert output(RUNNING, "one", 2, 9) == (t.Output(2, ids(9)),)
    assert output(RUNNING, "one", 0, 7, 8, 9, 9) == (t.Output(2, ids(9, 9)),)
    assert output(RUNNING, "one", 1, 8, 9) == (t.Output(2, ids(9)),)


def test_output_that_is_known_means_nothing_also_after_the_end() -> None:
    for view in (RUNNING, ENDED):
        assert output(view, "one", 0, 7) == ()
        assert output(view, "one", 1, 8) == ()
        assert output(view, "one", 2) == ()


def test_a_gap_says_where_output_goes_on() -> None:
    for view in (RUNNING, ENDED):
        assert refusal(ConflictError, output, view, "one", 3, 9) == {
            "field": "offset",
            "found": 3,
            "expected": 2,
        }
    assert refusal(InvalidInputError, output, RUNNING, "one", -1, 3) == {
        "field": "offset",
        "found": -1,
        "limit": 0,
    }


def test_a_contradiction_says_which_id_is_known() -> None:
    for view in (RUNNING, ENDED):
        assert refusal(ConflictError, output, view, "one", 0, 7, 9, 9) == {
            "field": "ids",
            "index": 1,
            "found": 9,
            "expected": 8,
            "known": 2,
        }


def test_output_has_room_up_to_the_context() -> None:
    assert output(RUNNING, "one", 2, *range(7)) == (t.Output(2, ids(*range(7))),)
    assert refusal(TooLargeError, output, RUNNING, "one", 2, *range(8)) == {
        "field": "ids",
        "found": 13,
        "limit": 12,
    }


def test_more_output_after_the_end_is_refused() -> None:
    assert refusal(ConflictError, output, ENDED, "one", 2, 9) == {
        "field": "turn",
        "found": "one",
        "reason": "stop",
    }


def test_an_end_counts_what_was_produced() -> None:
    def end(produced: int | None) -> tuple[t.SessionEvent, ...]:
        return decide_end(RUNNING, turn="one", reason="length", produced=produced)

    assert end(None) == end(2) == (t.TurnEnded("length", unsure=False),)
    assert end(3) == end(0) == (t.TurnEnded("length", unsure=True),)


def test_an_end_is_said_once() -> None:
    assert decide_end(ENDED, turn="one", reason="stop", produced=9) == ()
    assert refusal(ConflictError, decide_end, ENDED, turn="one", reason="abort", produced=2) == {
        "field": "turn",
        "found": "one",
        "reason": "stop",
    }


@pytest.mark.parametrize("view", [None, RUNNING])
def test_messages_of_an_unknown_session_or_turn_are_not_found(view: SessionView | None) -> None:
    expected = {"field": "session"} if view is None else {"field": "turn", "found": "nine"}
    assert refusal(NotFoundError, decide_first_token, view, turn="nine") == expected
    assert refusal(NotFoundError, output, view, "nine", 0, 1) == expected
    end = {"turn": "nine", "reason": "stop", "produced": None}
    assert refusal(NotFoundError, decide_end, view, **end) == expected


def test_messages_of_a_superseded_turn_are_refused() -> None:
    expected = {"field": "turn", "found": "one"}
    assert refusal(ConflictError, decide_first_token, SECOND, turn="one") == expected
    assert refusal(ConflictError, output, SECOND, "one", 0, 7) == expected
    end = {"turn": "one", "reason": "stop", "produced": None}
    assert refusal(ConflictError, decide_end, SECOND, **end) == expected


# -- questions and names ------------------------------------------------------------------------


def question(name: str, length: int) -> t.Question:
    return t.Question(name, "free", 0, ids(*range(length)), ("a", "b"))


def test_a_question_fits_its_own_limit_and_the_context_s_rest() -> None:
    assert decide_questions(RUNNING, [question("q", 4)], LIMITS) == (question("q", 4),)
    assert refusal(TooLargeError, decide_questions, RUNNING, [question("q", 5)], LIMITS) == {
        "field": "question",
        "found": 5,
        "limit": 4,
    }
    full = fold(RUNNING, draft("one", t.Output(2, ids(*range(6)))))
    assert refusal(TooLargeError, decide_questions, full, [question("q", 2)], LIMITS) == {
        "field": "question",
        "found": 2,
        "limit": 1,
    }


def test_so_many_questions_wait_and_no_more() -> None:
    view = session(("one", question("q1", 1)), ("one", question("q2", 1)))
    assert refusal(BusyError, decide_questions, view, [question("q3", 1)], LIMITS) == {
        "field": "session",
        "found": 2,
        "limit": 2,
    }
    fewer = fold(view, draft("one", t.QuestionEnded("q1", "timeout")))
    assert fewer is not None
    assert decide_questions(fewer, [question("q3", 1)], LIMITS) == (question("q3", 1),)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\0b", "\ud800", "\u202e"])
def test_a_name_is_printable_and_not_long(name: str) -> None:
    assert refusal(InvalidInputError, check_name, name, field="turn") == {
        "field": "turn",
        "limit": 200,
        "found": len(name),
    }


@pytest.mark.parametrize("name", ["x", "x" * 200, "Sitzung 7/ä", "模型", "'; DROP TABLE events"])
def test_other_names_are_fine(name: str) -> None:
    assert check_name(name, field="session") == name
