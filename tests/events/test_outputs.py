"""A run of outputs against the same outputs one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import InvalidInputError, ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits, decide_output
from shadow_reader.events.fold import fold, fold_all
from shadow_reader.events.ids import Ids
from shadow_reader.events.outputs import Delta, Outcome, take_outputs
from shadow_reader.events.view import SessionView

LIMITS = Limits(vocabulary=100, context_ids=14, question_ids=4, open_questions=2)
BAD = InvalidInputError("ids[0] is no id", field="ids")

some_ids = st.lists(st.integers(0, 1), max_size=4).map(Ids.of) | st.just(BAD)
deltas_anywhere = st.lists(st.tuples(st.integers(-1, 12), some_ids), max_size=8)


def in_order(parts: list[list[int]]) -> list[Delta]:
    """Deltas as an engine sends them."""
    deltas: list[Delta] = []
    offset = 0
    for part in parts:
        deltas.append((offset, Ids.of(part)))
        offset += len(part)
    return deltas


deltas_in_order = st.lists(st.lists(st.integers(0, 1), max_size=4), max_size=8).map(in_order)
befores = st.sampled_from(["nothing", "prompt", "first token", "output", "ended", "other turn"])


def view_before(what: str) -> SessionView | None:
    """A session in a state that outputs may meet."""
    events: list[tuple[str, t.SessionEvent]] = []
    if what != "nothing":
        events = [("", t.SessionOpened()), ("t", t.Prompt(0, Ids.of([5, 6, 7])))]
    if what == "first token":
        events.append(("t", t.FirstToken()))
    if what in ("output", "ended"):
        events.append(("t", t.Output(0, Ids.of([0, 1]))))
    if what == "ended":
        events.append(("t", t.TurnEnded("stop")))
    if what == "other turn":
        events.append(("u", t.Prompt(3, Ids.of([8]))))
    return fold_all(None, [t.Draft(1.0, "s", turn, event) for turn, event in events])


@given(befores, deltas_anywhere | deltas_in_order)
def test_a_run_is_what_its_outputs_are_one_by_one(before: str, deltas: list[Delta]) -> None:
    view = view_before(before)
    expected: list[object] = []
    events: list[t.Output] = []
    alone = view
    for offset, ids in deltas:
        try:
            if isinstance(ids, ShadowError):
                raise ids
            new = decide_output(alone, turn="t", offset=offset, ids=ids, limits=LIMITS)
        except ShadowError as error:
            expected.append(said(error))
            continue
        for event in new:
            alone = fold(alone, t.Draft(2.0, "s", "t", event))
        events += new
        assert alone is not None
        expected.append((len(alone.known), alone.output_length, len(events) - 1 if new else None))
    run = take_outputs(view, deltas, at=2.0, turn="t", limits=LIMITS)
    assert run.events == events
    assert run.view == alone
    assert [said(outcome) for outcome in run.outcomes] == expected


def said(outcome: Outcome) -> object:
    """An outcome, an error by what it says."""
    if isinstance(outcome, ShadowError):
        return type(outcome), outcome.message, outcome.details
    return outcome
