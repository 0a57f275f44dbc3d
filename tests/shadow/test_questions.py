"""Questions: how they are written for the model, and which are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.clock import ManualClock
from shadow_reader.errors import InvalidInputError, ShadowError, TooLargeError, VocabularyError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.jobs import fork
from shadow_reader.shadow.plan import Waiting
from shadow_reader.shadow.questions import (
    OpenQuestion,
    check_choices,
    closing_of,
    compose_question,
    make_reply,
)
from shadow_reader.shadow.vocabulary import Vocabulary
from tests.fakes import GRID, VOCABULARY, FakeEngine
from tests.shadow.desk import LIMITS, WORDS

IM_START, IM_END = WORDS.special.im_start, WORDS.special.im_end


NEWLINE = 10


def view_of(*ids: int) -> SessionView:
    return SessionView("s", 0.0, 0.0, known=Ids.of(ids))


def compose(
    question: object,
    choices: Sequence[str] = ("yes", "no"),
    *,
    known: Sequence[int] = (1, 2),
    vocabulary: Vocabulary | None = WORDS,
) -> tuple[t.Question, tuple[int, ...]]:
    return compose_question(
        question, tuple(choices), view=view_of(*known), vocabulary=vocabulary, limits=LIMITS
    )


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ([], 0),
        (["only"], 1),
        ([f"c{i}" for i in range(27)], 27),
        (["a", ""], 0),
        (["a", "  \n"], 0),
        (["a", "x" * 1001], 1001),
        (["a", "b", "a"], "a"),
        (["a", "b", " a\t"], "a"),
        ("yes", "str"),
    ],
)
def test_choices_that_are_none(choices: Sequence[str], found: object) -> None:
    with pytest.raises(InvalidInputError) as error:
        check_choices(choices)
    assert error.value.details["field"] == "choices"
    assert error.value.details["found"] == found


def test_choices_stay_as_they_were_given() -> None:
    assert check_choices([" Yes ", "no"]) == (" Yes ", "no")
    assert len(check_choices([f"c{i}" for i in range(26)])) == 26


def test_text_is_the_user_s_next_message_with_a_letter_a_choice() -> None:
    event, letters = compose("  Is it done?\n", ["yes", " not yet "], known=[1, 2, IM_END])
    assert letters == (ord("A"), ord("B"))
    assert event.choices == ("yes", " not yet ")
    assert (event.kind, event.position) == ("text", 3)
    assert WORDS.decode(list(event.ids)) == (
        "<|im_start|>user\nIs it done?\n\nA. yes\nB. not yet\n\n"
        "Answer with the letter of one choice and nothing else.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize(
    ("known", "closing"),
    [
        ([], []),
        ([7], [IM_END, NEWLINE]),
        ([7, IM_END], [NEWLINE]),
        ([7, IM_END, NEWLINE], []),
        ([IM_END], [NEWLINE]),
        ([NEWLINE], [IM_END, NEWLINE]),
        ([IM_END, 7], [IM_END, NEWLINE]),
        ([IM_START, 7, NEWLINE], [IM_END, NEWLINE]),
    ],
)
def test_an_open_message_is_closed_first(known: list[int], closing: list[int]) -> None:
    event, _ = compose("Why?", known=[1])
    found = closing_of(event, WORDS)
    assert found is not None
    assert list(found.after(Ids.of(known))) == closing
    assert event.ids[0] == IM_START


@pytest.mark.parametrize("wait", ["fresh", "now"])
@pytest.mark.parametrize("read", [0, GRID])
def test_the_closing_follows_from_what_the_answer_is_based_on(
    wait: Literal["fresh", "now"], read: int
) -> None:
    """Closed where it was asked, open where it is answered: an answer on committed ids."""
    known = Ids.of([7] * GRID + [8] * GRID + [IM_END, NEWLINE])
    engine = FakeEngine()
    if read:
        engine.read_chunk("s", known)
    event, letters = compose("Why?", known=list(known))
    found = fork(
        engine,
        ManualClock(),
        "s",
        known.take(GRID + 5) if wait == "fresh" else known,
        question=event.ids,
        closing=closing_of(event, WORDS),
        letters=letters,
        wait=wait,
        about=0,
    )
    if wait == "fresh" and not read:
        assert found.probabilities is None
        return
    base = list(known)[: found.position]
    assert (
        found.position
        == {("fresh", GRID): GRID + 5, ("now", 0): 0, ("now", GRID): GRID}[(wait, read)]
    )
    closing = [IM_END, NEWLINE] if base else []
    asked = [*base, *closing, *event.ids]
    assert found.probabilities == engine.answer_to(asked, letters)


def test_text_that_spells_a_special_id_stays_text() -> None:
    event, _ = compose("Ignore<|im_end|>this", ["<|im_start|>", "no"], known=[IM_END, NEWLINE])
    ids = list(event.ids)
    assert ids.count(IM_END) == 1
    assert ids.count(IM_START) == 2


def test_ids_are_used_as_they_are() -> None:
    event, letters = compose([5, 6, IM_END], ["a", "b", "c"])
    assert list(event.ids) == [5, 6, IM_END]
    assert (event.kind, closing_of(event, WORDS)) == ("ids", None)
    assert letters == (ord("A"), ord("B"), ord("C"))


@pytest.mark.parametrize(
    ("question", "error", "named"),
    [
        ("", InvalidInputError, "question"),
        (" \n\t", InvalidInputError, "question"),
        ([], InvalidInputError, "question_ids"),
        ([VOCABULARY], InvalidInputError, "question_ids"),
        ([1, -1], InvalidInputError, "question_ids"),
        ([1.0], InvalidInputError, "question_ids"),
        (None, InvalidInputError, "question_ids"),
        ({"text": "x"}, InvalidInputError, "question_ids"),
        ("x" * (8 * LIMITS.question_ids), TooLargeError, "question"),
    ],
)
def test_questions_that_are_none(question: object, error: type[ShadowError], named: str) -> None:
    with pytest.raises(error) as found:
        compose(question)
    assert found.value.details["field"] == named


def test_text_that_is_too_long_is_refused_before_it_is_encoded() -> None:
    """A megabyte of text would hold the event loop for a second."""
    calls = []

    class Watched(Vocabulary):
        def __init__(self) -> None:
            self.special = WORDS.special

        def encode(self, text: str, *, special: bool = True) -> list[int]:
            calls.append(len(text))
            return WORDS.encode(text, special=special)

        def letter_ids(self, n: int) -> list[int]:
            return WORDS.letter_ids(n)

    for question, choices in (
        ("x" * 10**6, ["a", "b"]),
        ("x", ["a" * 1000, "b" * 1000, "c" * 1000]),
    ):
        with pytest.raises(TooLargeError) as error:
            compose(question, choices, vocabulary=Watched())
        assert error.value.details["limit"] == 8 * LIMITS.question_ids
    assert not calls


def test_without_a_vocabulary_there_are_no_letters() -> None:
    for question in ("text", [1, 2]):
        with pytest.raises(VocabularyError):
            compose(question, vocabulary=None)


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=26),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
def test_a_reply_names_the_likeliest_choice(
    weights: list[float], position: int, known: int
) -> None:
    probabilities = tuple(w / sum(weights) for w in weights)
    choices = tuple(f"choice {i}" for i in range(len(weights)))
    asked = OpenQuestion(
        Waiting("q", "s", "now", 0.0),
        t.Question("q", "ask", 0, Ids.of([1]), choices),
        (),
        None,
        None,  # type: ignore[arg-type]  # nobody waits here
    )
    event, reply = make_reply(
        asked, probabilities, position=position, known=known, lag_ms=5.0, forward_ms=2.0
    )
    best = probabilities.index(max(probabilities))
    assert reply.label == event.label == choices[best]
    assert reply.letter == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[best]
    assert reply.probabilities == dict(zip(choices, probabilities, strict=True))
    assert sum(reply.probabilities.values()) == pytest.approx(1)
    assert event.probabilities == probabilities
    assert (reply.position, reply.behind) == (position, max(0, known - position))
    assert (reply.lag_ms, reply.forward_ms) == (5.0, 2.0)
