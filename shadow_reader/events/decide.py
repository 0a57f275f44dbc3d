"""Decisions: what a message of the world becomes, given the view. Pure, like the fold.

Law: a decision either returns the events that the message means, or raises and nothing happens.
A message that says what is known already returns no events, so every message may be sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from shadow_reader.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ProbeError,
    TooLargeError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView, TurnView

MAX_LABELS: Final = 1000
"""Labels of one message."""
MAX_NAME_LENGTH = 200
DEFAULT_PROFILE = "default"
"""The profile of a turn that names none, where the settings have it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may hold.

    Attributes:
        vocabulary: embedding rows of the model; ids are below it.
        context_ids: longest prompt + output the model takes.
        question_ids: longest question.
        open_questions: unanswered questions a session.
        branches: lines of talk beside a session's first.
        branch_min: most ids that an unrelated prompt replaces without beginning a new line.
        profiles: what a turn may say of itself; whether its session is read.
    """

    vocabulary: int
    context_ids: int
    question_ids: int
    open_questions: int
    branches: int = 0
    branch_min: int = 0
    profiles: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))

    def reads(self, profile: str | None) -> bool:
        """Whether a session whose last turn has this profile is read."""
        return profile is None or self.profiles.get(profile, True)


def check_name(value: str, *, field: str) -> str:
    """A session's or turn's id, or a line's name: 1 to 200 printable characters.

    Raises:
        InvalidInputError: empty, too long, or holding control characters.
    """
    if not value or len(value) > MAX_NAME_LENGTH or not value.isprintable():
        raise InvalidInputError(
            f"{field} must be 1 to {MAX_NAME_LENGTH} printable characters, not {value!r:.60}",
            field=field,
            limit=MAX_NAME_LENGTH,
            found=len(value),
        )
    return value


def decide_prompt(
    view: SessionView | None,
    *,
    turn: str,
    keep: int | None,
    ids: Ids,
    router: str | None,
    limits: Limits,
    profile: str | None = None,
    decided: bool | None = None,
) -> tuple[t.SessionEvent, ...]:
    """A turn begins with a prompt: whole (``keep`` None), or ``keep`` known ids and then ``ids``.

    A running turn is superseded. The same turn with the same prompt again means nothing new.

    Raises:
        ConflictError: ``keep`` beyond the known ids; a turn id that was used before.
        InvalidInputError: an empty prompt, a negative ``keep``, a profile that is not in the
            settings, ``decided`` without a router's class.
        TooLargeError: longer than the context.
    """
    known = view.known if view else Ids.of(())
    base = keep or 0
    profile = _known_profile(profile, limits)
    if decided is not None and router is None:
        raise InvalidInputError("decided says of the router's class: give router", field="decided")
    _check_not_negative(base, field="keep")
    if base > len(known):
        raise ConflictError(
            f"keep is {base}, but {len(known)} ids are known",
            field="keep",
            found=base,
            expected=len(known),
        )
    _check_length(base + len(ids), field="ids", limits=limits)
    if base + len(ids) == 0:
        raise InvalidInputError("ids must not be empty: a prompt has an id", field="ids", limit=1)
    if view and view.turn and view.turn.turn == turn:
        return _repeated_prompt(view, view.turn, base, ids)
    if view and turn in view.past_turns:
        raise ConflictError(
            f"turn {turn!r} was used before in this session", field="turn", found=turn
        )
    agree = base + Ids.common_prefix(known_from(known, base), ids)
    events: list[t.SessionEvent] = [] if view else [t.SessionOpened()]
    if view and view.running:
        events.append(t.TurnEnded("superseded"))
    events.append(t.Prompt(agree, known_from(ids, agree - base), router, profile, decided))
    return tuple(events)


def decide_first_token(view: SessionView | None, *, turn: str) -> tuple[t.SessionEvent, ...]:
    """Prefill is over. Said again, or after output came, it means nothing new."""
    current = _current(view, turn)
    if current.first_token_at is not None:
        return ()
    if not current.running:
        raise _has_ended(current)
    return (t.FirstToken(),)


def decide_output(
    view: SessionView | None, *, turn: str, offset: int, ids: Ids, limits: Limits
) -> tuple[t.Output, ...]:
    """Output ids at ``offset``; what is known already must agree, and only the rest is new.

    Raises:
        ConflictError: a gap, a contradiction, or a turn that has ended; says what was expected.
        InvalidInputError: a negative offset.
    """
    _check_not_negative(offset, field="offset")
    current = _current(view, turn)
    assert view is not None
    produced = view.output_length
    if offset > produced:
        raise ConflictError(
            f"offset is {offset}, but {produced} output ids are known: ids are missing",
            field="offset",
            found=offset,
            expected=produced,
        )
    agree = _agreeing(view, current, offset, ids) if offset < produced else 0
    if agree == len(ids):
        return ()
    if not current.running:
        raise _has_ended(current)
    _check_length(len(view.known) + len(ids) - agree, field="ids", limits=limits)
    return (t.Output(offset + agree, known_from(ids, agree)),)


def _agreeing(view: SessionView, current: TurnView, offset: int, ids: Ids) -> int:
    """How many of ``ids`` are known already; what is known must not contradict them."""
    produced = view.output_length
    start = current.prompt_length + offset
    overlap = view.known.window(start, min(start + len(ids), len(view.known)))
    agree = overlap.common_prefix(ids)
    if agree < len(overlap):
        raise ConflictError(
            f"output id {offset + agree} is {ids[agree]}, but {overlap[agree]} is known there",
            field="ids",
            index=agree,
            found=ids[agree],
            expected=overlap[agree],
            known=produced,
        )
    return agree


def decide_end(
    view: SessionView | None, *, turn: str, reason: t.EndReason, produced: int | None
) -> tuple[t.SessionEvent, ...]:
    """The turn ends; with another count of output ids than is known, it is marked unsure."""
    current = _current(view, turn)
    assert view is not None
    if not current.running:
        if current.reason == reason:
            return ()
        raise _has_ended(current)
    unsure = produced is not None and produced != view.output_length
    return (t.TurnEnded(reason, unsure),)


def decide_questions(
    view: SessionView, questions: Sequence[t.Question], limits: Limits
) -> tuple[t.Question, ...]:
    """Questions may be asked, all or none: each fits above the ids it is about, and not too many
    wait.

    Raises:
        InvalidInputError: one is about more ids than are known. TooLargeError: the question or the
        room it needs. BusyError: too many open questions.
    """
    for index, question in enumerate(questions):
        with of_several(index, len(questions)):
            _check_question(view, question, limits)
    if len(view.questions) + len(questions) > limits.open_questions:
        raise BusyError(
            f"{len(view.questions)} questions wait on this session already; "
            f"the limit is {limits.open_questions}",
            field="session",
            found=len(view.questions),
            limit=limits.open_questions,
        )
    return tuple(questions)


@contextmanager
def of_several(index: int, count: int) -> Iterator[None]:
    """An error of one of several questions says which one it is."""
    try:
        yield
    except (InvalidInputError, TooLargeError, NotFoundError, ProbeError) as error:
        if count == 1:
            raise
        facts = {**error.details, "question": index}
        raise type(error)(f"questions[{index}]: {error.message}", **facts) from error


def decide_labels(view: SessionView, labels: Sequence[t.Label]) -> tuple[t.Label, ...]:
    """Labels may be given, all or none.

    Raises:
        InvalidInputError: none or too many; a name, value or source that is none; a position
            beyond the known ids. Of several labels ``index`` says which one it is.
    """
    if not 1 <= len(labels) <= MAX_LABELS:
        raise InvalidInputError(
            f"labels must be 1 to {MAX_LABELS}, not {len(labels)}",
            field="labels",
            found=len(labels),
            limit=MAX_LABELS,
        )
    known = len(view.known)
    for index, label in enumerate(labels):
        for field_name in ("name", "value", "source"):
            text = getattr(label, field_name)
            if text or field_name != "source":
                try:
                    check_name(text, field=field_name)
                except InvalidInputError as error:
                    facts = {**error.details, "index": index}
                    raise InvalidInputError(f"labels[{index}]: {error.message}", **facts) from error
        if not 0 <= label.position <= known:
            raise InvalidInputError(
                f"labels[{index}]: position must be 0 to {known}, the ids known of the session, "
                f"not {label.position}",
                field="position",
                index=index,
                found=label.position,
                limit=known,
            )
    return tuple(labels)


def _check_question(view: SessionView, question: t.Question, limits: Limits) -> None:
    if len(question.ids) > limits.question_ids:
        raise TooLargeError(
            f"question has {len(question.ids)} ids; the limit is {limits.question_ids}",
            field="question",
            found=len(question.ids),
            limit=limits.question_ids,
        )
    known = len(view.known)
    if question.about is not None and not 0 <= question.about <= known:
        raise InvalidInputError(
            f"position must be 0 to {known}, the ids known of the session, not {question.about}",
            field="position",
            found=question.about,
            limit=known,
        )
    room = limits.context_ids - (known if question.about is None else question.about)
    if len(question.ids) > room:
        raise TooLargeError(
            f"question has {len(question.ids)} ids; {room} are left of the context",
            field="question",
            found=len(question.ids),
            limit=room,
        )


def check_running(view: SessionView | None, turn: str) -> TurnView:
    """The running turn of that name.

    Raises:
        NotFoundError: no such session or turn. ConflictError: it has ended.
    """
    current = _current(view, turn)
    if not current.running:
        raise _has_ended(current)
    return current


def known_from(known: Ids, start: int) -> Ids:
    """The known ids from ``start`` on."""
    return known.window(min(start, len(known)), len(known))


def _known_profile(profile: str | None, limits: Limits) -> str | None:
    """The turn's profile: the one it names, else the one called default, if there is one."""
    if profile is None:
        return DEFAULT_PROFILE if DEFAULT_PROFILE in limits.profiles else None
    if profile not in limits.profiles:
        known = sorted(limits.profiles)
        raise InvalidInputError(
            f"profile {profile!r:.80} is not in the settings; there are {known}",
            field="profile",
            found=profile[:80],
            known=known,
        )
    return profile


def _repeated_prompt(
    view: SessionView, current: TurnView, base: int, ids: Ids
) -> tuple[t.SessionEvent, ...]:
    prompt = view.known.take(current.prompt_length)
    same = base + len(ids) == len(prompt) and known_from(prompt, base) == ids
    if same:
        return ()
    raise ConflictError(
        f"turn {current.turn!r} began with another prompt of {len(prompt)} ids",
        field="turn",
        found=base + len(ids),
        expected=len(prompt),
    )


def _current(view: SessionView | None, turn: str) -> TurnView:
    if view is None:
        raise NotFoundError("no such session", field="session")
    if view.turn is None or view.turn.turn != turn:
        if turn in view.past_turns:
            raise ConflictError(f"turn {turn!r} has ended", field="turn", found=turn)
        raise NotFoundError(f"no turn {turn!r} in this session", field="turn", found=turn)
    return view.turn


def _has_ended(turn: TurnView) -> ConflictError:
    return ConflictError(
        f"turn {turn.turn!r} has ended ({turn.reason})",
        field="turn",
        found=turn.turn,
        reason=turn.reason,
    )


def _check_not_negative(value: int, *, field: str) -> None:
    if value < 0:
        raise InvalidInputError(
            f"{field} must be at least 0, not {value}", field=field, found=value, limit=0
        )


def _check_length(total: int, *, field: str, limits: Limits) -> None:
    if total > limits.context_ids:
        raise TooLargeError(
            f"{field} would make {total} ids; the model's context is {limits.context_ids}",
            field=field,
            found=total,
            limit=limits.context_ids,
        )
