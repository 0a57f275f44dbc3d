"""The fold: (view, event) -> view. Every transition of a session lives here.

Law: no I/O, no clock, no torch, no exception for any history the journal can hold, the same view
for the same events always. Whether an event *may* happen is decided before it is journaled
(``decide.py``); once journaled it happened, and the fold only says what follows.

An event that cannot follow from the view is a damaged journal: ``JournalFormatError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias, assert_never

from shadow_reader.errors import JournalFormatError
from shadow_reader.events import types as t
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

View: TypeAlias = SessionView | None


def fold_all(view: View, drafts: Iterable[t.Happened]) -> View:
    """Fold several events in order."""
    for draft in drafts:
        view = fold(view, draft)
    return view


def fold_outputs(view: View, at: float, turn: str, events: Sequence[t.Output]) -> View:
    """``fold`` of outputs of one running turn that follow one another, as one step."""
    if not events:
        return view
    assert view is not None
    assert view.turn is not None
    assert view.turn.turn == turn, f"turn {view.turn.turn!r} is the last, not {turn!r}"
    assert events[0].offset == view.output_length, "decided on another view"
    return _grown(view, view.turn, at, Ids.join([event.ids for event in events]))


def fold(view: View, draft: t.Happened) -> View:
    """The view after one event of its session; None is a session nothing is known of."""
    event = draft.event
    if isinstance(event, t.Output) and view is not None:
        return _output(view, draft, event)  # the one that comes by the thousand
    if isinstance(event, t.EngineEvent):
        raise JournalFormatError("an engine event belongs to no session")
    if isinstance(event, t.SessionOpened):
        if view is not None:
            raise _impossible(draft, "the session is already open")
        return SessionView(session=draft.session, opened_at=draft.at, last_at=draft.at)
    if isinstance(event, t.SessionErased):
        return None
    if view is None:
        raise _impossible(draft, "the session was never opened")
    if isinstance(event, t.Read):  # one a chunk: copied once
        return replace(view, read=view.read + event.stop - event.start, last_at=draft.at)
    return replace(_fold_open(view, draft, event), last_at=draft.at)


def _fold_open(view: SessionView, draft: t.Happened, event: t.SessionEvent) -> SessionView:
    match event:
        case t.Prompt():
            return _prompt(view, draft, event)
        case t.FirstToken():
            return replace(view, turn=replace(_turn(view, draft), first_token_at=draft.at))
        case t.Output():
            return _output(view, draft, event)
        case t.TurnEnded():
            ended = replace(
                _turn(view, draft), ended_at=draft.at, reason=event.reason, unsure=event.unsure
            )
            return replace(view, turn=ended)
        case t.Rewind():
            return replace(
                view,
                rewinds=view.rewinds + 1,
                reread=view.reread + event.reread,
            )
        case t.Checkpoint():
            return _checkpoint(view, event)
        case t.RationUsed() | t.Shared() | t.Spill() | t.Restore() | t.Dropped():
            return view  # what the device holds is not the journal's to say
        case t.Question() | t.Answer() | t.QuestionEnded():
            return _fold_question(view, draft, event)
        case t.Label() | t.RouterAnswer() | t.Summary():
            return view  # the view is of what was served and read
        case t.Read() | t.SessionOpened() | t.SessionErased():
            raise AssertionError("handled by fold()")
        case _:
            assert_never(event)


def _prompt(view: SessionView, draft: t.Happened, event: t.Prompt) -> SessionView:
    if event.keep > len(view.known):
        raise _impossible(draft, f"keeps {event.keep} of {len(view.known)} known ids")
    known = view.known.take(event.keep).extend(event.ids)
    ends = (*(e for e in view.prompt_ends if e <= event.keep and e < len(known)), len(known))
    past, cuts = view.past_turns, view.cuts
    if view.turn is not None:
        cuts = (*cuts, CutView(event.keep, len(view.known)))[-MAX_CUTS:]
        past = (*past, view.turn.turn)[-MAX_PAST_TURNS:]
    return replace(
        view,
        known=known,
        turn=TurnView(draft.turn, len(known), draft.at, event.router, event.profile, event.decided),
        turns=view.turns + 1,
        past_turns=past,
        prompt_ends=ends[-MAX_PROMPT_ENDS:],
        cuts=cuts,
        checkpoints=tuple(c for c in view.checkpoints if c.position <= event.keep),
    )


def _output(view: SessionView, draft: t.Happened, event: t.Output) -> SessionView:
    turn = _turn(view, draft)
    if event.offset != view.output_length:
        raise _impossible(draft, f"offset {event.offset}, {view.output_length} ids are known")
    return _grown(view, turn, draft.at, event.ids)


def _grown(view: SessionView, turn: TurnView, at: float, ids: Ids) -> SessionView:
    if turn.first_token_at is None:
        turn = replace(turn, first_token_at=at)
    return view.grown(at, turn, view.known.extend(ids))


def _checkpoint(view: SessionView, event: t.Checkpoint) -> SessionView:
    others = (c for c in view.checkpoints if c.position != event.position)
    added = (*others, CheckpointView(event.position, event.digest, event.engine))
    return replace(
        view,
        checkpoints=tuple(sorted(added, key=lambda c: c.position))[-MAX_CHECKPOINTS:],
    )


def _fold_question(
    view: SessionView, draft: t.Happened, event: t.Question | t.Answer | t.QuestionEnded
) -> SessionView:
    questions = dict(view.questions)
    if isinstance(event, t.Question):
        questions[event.question] = QuestionView(
            event.question, event.kind, event.position, event.ids, event.choices, draft.at
        )
        return replace(view, questions=MappingProxyType(questions))
    asked = questions.pop(event.question, None)
    if asked is None:
        raise _impossible(draft, f"question {event.question!r} is not open")
    view = replace(view, questions=MappingProxyType(questions))
    if isinstance(event, t.QuestionEnded):
        return view
    answer = AnswerView(
        event.question,
        asked.kind,
        event.label,
        max(event.probabilities, default=0.0),
        event.position,
        event.behind,
        event.lag_ms,
        draft.at,
    )
    return replace(view, answers=(*view.answers, answer)[-MAX_ANSWERS:])


def _turn(view: SessionView, draft: t.Happened) -> TurnView:
    if view.turn is None or view.turn.turn != draft.turn or not view.turn.running:
        raise _impossible(draft, f"turn {draft.turn!r} is not running")
    return view.turn


def _impossible(draft: t.Happened, why: str) -> JournalFormatError:
    kind = type(draft.event).__name__
    return JournalFormatError(
        f"{kind} cannot follow in session {draft.session!r}: {why}",
        session=draft.session,
        turn=draft.turn,
        event=kind,
    )
