"""The fold on its own: every event has its transition; an impossible one is a damaged journal."""

from __future__ import annotations

import typing
from dataclasses import replace
from types import MappingProxyType

import pytest

from shadow_reader.errors import JournalFormatError
from shadow_reader.events import types as t
from shadow_reader.events.fold import fold, fold_all
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import (
    MAX_ANSWERS,
    MAX_CHECKPOINTS,
    MAX_CUTS,
    MAX_PAST_TURNS,
    MAX_PROMPT_ENDS,
    AnswerView,
    CheckpointView,
    CutView,
    QuestionView,
    SessionView,
    TurnView,
)


def draft(turn: str, event: t.Event, at: float = 5.0) -> t.Draft:
    return t.Draft(at, "s", turn, event)


def ids(*values: int) -> Ids:
    return Ids.of(values)


BEGUN = [draft("", t.SessionOpened(), 1.0), draft("one", t.Prompt(0, ids(1, 2, 3), "low"), 2.0)]


def view_of(*drafts: t.Draft) -> SessionView:
    view = fold_all(None, [*BEGUN, *drafts])
    assert view is not None
    return view


EVERY: list[t.Draft] = [
    draft("one", t.FirstToken(), 3.0),
    draft("one", t.Output(0, ids(4, 5)), 4.0),
    draft("one", t.Read(0, 4, "idle", 2.5)),
    draft("one", t.Checkpoint(2, "d2", "e")),
    draft("one", t.Checkpoint(4, "d4", "e")),
    draft("one", t.TurnEnded("length", unsure=True), 6.0),
    draft("two", t.Prompt(3, ids(9)), 7.0),
    draft("two", t.Rewind(cut=3, to=2, reread=1)),
    draft("two", t.Read(2, 4, "question", 1.0)),
    draft("two", t.Question("q1", "free", 4, ids(8), ("a", "b")), 8.0),
    draft("two", t.Question("q2", "router", 4, ids(8), ("c",)), 9.0),
    draft("two", t.Question("q3", "free", 4, ids(8), ("d",)), 10.0),
    draft("two", t.Answer("q1", "b", (0.25, 0.75), 4, 1, 3.0, 2.0), 11.0),
    draft("two", t.QuestionEnded("q2", "cancelled"), 12.0),
]


def test_every_field_of_the_view_comes_from_its_event() -> None:
    assert view_of(*EVERY) == SessionView(
        session="s",
        opened_at=1.0,
        last_at=12.0,
        known=ids(1, 2, 3, 9),
        turn=TurnView("two", 4, 7.0),
        turns=2,
        past_turns=("one",),
        prompt_ends=(3, 4),
        cuts=(CutView(3, 5),),
        checkpoints=(CheckpointView(2, "d2", "e"),),
        rewinds=1,
        reread=1,
        read=6,
        questions=MappingProxyType({"q3": QuestionView("q3", "free", 4, ids(8), ("d",), 10.0)}),
        answers=(AnswerView("q1", "free", "b", 0.75, 4, 1, 3.0, 11.0),),
    )
    first = view_of(*EVERY[:6])
    assert first.turn == TurnView("one", 3, 2.0, "low", None, None, 3.0, 6.0, "length", unsure=True)
    assert [c.position for c in first.checkpoints] == [2, 4]


OF_THE_STATE: list[t.SessionEvent] = [
    t.Dropped("cap", 4),
    t.Shared(4),
    t.RationUsed(1.0, 50.0, 1),
    t.Spill(4, 100, 1.0, kept=False),
    t.Restore(4, 100, 1.0),
    t.Label("done", 4, "yes", ""),
    t.Summary(4, 4, ids(1), "stop", 0, 1.0, 1.0),
    t.RouterAnswer("q", "b", 0.75, "b", None, agree=True, position=4, behind=1, lag_ms=3.0),
]


@pytest.mark.parametrize("event", OF_THE_STATE, ids=lambda event: type(event).__name__)
def test_what_becomes_of_the_state_changes_nothing_that_is_known(event: t.SessionEvent) -> None:
    before = view_of(*EVERY)
    after = fold(before, draft("two", event, 12.0))
    assert before is not None
    assert after == replace(before, last_at=12.0)


def test_an_erased_session_is_nothing_and_can_begin_again() -> None:
    erased = draft("", t.SessionErased(9, 9))
    assert fold(view_of(*EVERY), erased) is None
    assert fold(None, erased) is None
    assert fold_all(None, [erased, *BEGUN]) == view_of()


def test_every_kind_of_session_event_is_folded() -> None:
    history = [
        *BEGUN,
        *EVERY,
        *(draft("two", event) for event in OF_THE_STATE),
        draft("", t.SessionErased(0, 0)),
    ]
    assert {type(d.event) for d in history} == set(typing.get_args(t.SessionEvent))
    fold_all(None, history)


def test_the_first_output_is_a_first_token_too() -> None:
    view = view_of(draft("one", t.Output(0, ids(4)), 3.5), draft("one", t.Output(1, ids(5)), 4.5))
    assert view.turn is not None
    assert view.turn.first_token_at == 3.5


def test_what_is_remembered_is_bounded() -> None:
    drafts: list[t.Draft] = []
    for number in range(MAX_PAST_TURNS + 5):
        drafts += [
            draft(f"t{number}", t.Prompt(3 + number, ids(number))),
            draft(f"t{number}", t.Checkpoint(number, str(number), "e")),
            draft(f"t{number}", t.Question("q", "free", 4, ids(8), ("a",))),
            draft(f"t{number}", t.Answer("q", str(number), (1.0,), 4, 0, 1.0, 1.0)),
        ]
    view = view_of(*drafts)
    last = MAX_PAST_TURNS + 4
    assert len(view.past_turns) == MAX_PAST_TURNS
    assert view.past_turns[-1] == f"t{last - 1}"
    assert [c.position for c in view.checkpoints] == list(
        range(last - MAX_CHECKPOINTS + 1, last + 1)
    )
    assert [a.label for a in view.answers] == [
        str(n) for n in range(last - MAX_ANSWERS + 1, last + 1)
    ]
    assert len(view.prompt_ends) == MAX_PROMPT_ENDS
    assert view.prompt_ends[-1] == len(view.known)
    assert not view.questions
    assert view.cuts == tuple(
        CutView(3 + number, 3 + number) for number in range(last - MAX_CUTS + 1, last + 1)
    )


def test_an_answer_without_probabilities_folds() -> None:
    view = view_of(
        draft("one", t.Question("q", "free", 3, ids(8), ())),
        draft("one", t.Answer("q", "", (), 3, 0, 1.0, 1.0)),
    )
    assert view.answers[0].probability == 0.0


def test_a_view_does_not_change_when_another_is_made_of_it() -> None:
    before = view_of(*EVERY[:2])
    known = list(before.known)
    fold(before, draft("one", t.Output(2, ids(6))))
    fold(before, draft("one", t.Output(2, ids(7))))
    fold(before, draft("one", t.Question("q", "free", 3, ids(8), ())))
    assert list(before.known) == known
    assert not before.questions


@pytest.mark.parametrize(
    ("drafts", "says"),
    [
        ([draft("one", t.FirstToken())], "never opened"),
        ([*BEGUN, draft("", t.SessionOpened())], "already open"),
        ([*BEGUN, draft("two", t.Prompt(4, ids(1)))], "keeps 4 of 3 known ids"),
        ([*BEGUN, draft("one", t.Output(1, ids(1)))], "offset 1, 0 ids are known"),
        ([*BEGUN, draft("two", t.Output(0, ids(1)))], "turn 'two' is not running"),
        (
            [*BEGUN, draft("one", t.TurnEnded("stop")), draft("one", t.TurnEnded("stop"))],
            "turn 'one' is not running",
        ),
        ([BEGUN[0], draft("one", t.FirstToken())], "turn 'one' is not running"),
        ([*BEGUN, draft("one", t.QuestionEnded("q", "failed"))], "question 'q' is not open"),
        ([draft("", t.EngineStopped("closed"))], "an engine event belongs to no session"),
    ],
)
def test_what_cannot_follow_is_a_damaged_journal(drafts: list[t.Draft], says: str) -> None:
    with pytest.raises(JournalFormatError, match=says):
        fold_all(None, drafts)
