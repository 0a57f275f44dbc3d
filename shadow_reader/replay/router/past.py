"""Questions that the journal holds with their answers, each with the ids that it was asked about.

Law: the ids are those of the moment, whatever a later prompt made of the session. Where the journal
does not say which ids an answer saw, the question is left out and counted. One session is folded
at a time, and one question's ids are held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from shadow_reader.errors import JournalFormatError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.fold import fold
from shadow_reader.events.ids import Ids
from shadow_reader.events.queries import RowQuery
from shadow_reader.events.view import SessionView

REPLACED: Final = "a prompt replaced ids while it was answered"
GONE: Final = "its session was erased meanwhile"


class Entries(Protocol):
    """A journal, or a reader of one."""

    @property
    def entries(self) -> Callable[..., AsyncIterator[t.Entry]]:
        """``Journal.entries``."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A question that is to be asked again, and what its entry says of the turn.

    Attributes:
        own: the class of the server's own router; None: it said none, or the question was not the
            router's. behind: ids that were not read when the turn began.
    """

    question: str
    session: str
    turn: str
    at: float
    own: str | None
    decided: bool | None
    behind: int


@dataclass(frozen=True, slots=True)
class Past:
    """A question as it was asked and answered.

    Attributes:
        base: the ids that the answer stands on.
        engine: that answered; None: the journal does not say.
    """

    wanted: Wanted
    asked: t.Question
    answer: t.Answer
    base: Ids
    engine: t.EngineLoaded | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which of the journal's questions are wanted, as ``journal query`` has it.

    Attributes:
        where: conditions on the answers' rows.
        ordinary: those of callers, instead of the router's; not those put to probes.
        since, until: unix seconds; the second is not included.
    """

    session: str | None = None
    turn: str | None = None
    since: float | None = None
    until: float | None = None
    where: Sequence[str] = ()
    limit: int | None = None
    ordinary: bool = False


async def find_wanted(journal: Entries, chosen: Filter) -> dict[str, list[Wanted]]:
    """The questions by their sessions, both in the journal's order.

    Raises:
        InvalidInputError: a condition on a field that there is not.
        NotFoundError: none meets the filter.
    """
    query = RowQuery(
        kinds=("answer",) if chosen.ordinary else ("router.answer",),
        where=chosen.where,
        session=chosen.session,
        turn=chosen.turn,
        since=chosen.since,
        until=chosen.until,
        limit=chosen.limit,
    )
    found: dict[str, list[Wanted]] = {}
    async for row in query.rows(journal.entries):
        if chosen.ordinary and (row["question_kind"] == "router" or row["probe"] is not None):
            continue
        wanted = Wanted(
            row["question"],
            row["session"],
            row["turn"],
            row["at"],
            row.get("router"),
            row.get("decided"),
            row["behind"],
        )
        found.setdefault(wanted.session, []).append(wanted)
    if not found:
        what = "answered question" if chosen.ordinary else "answer to the router's question"
        raise NotFoundError(
            f"the journal holds no {what} that was asked for",
            field="kind",
            expected="answer" if chosen.ordinary else "router.answer",
        )
    return found


async def loaded_engines(journal: Entries) -> list[tuple[int, t.EngineLoaded]]:
    """The engines that were loaded, and from which entry on."""
    found: list[tuple[int, t.EngineLoaded]] = []
    async for entry in journal.entries(kinds=["engine.loaded"]):
        if isinstance(entry.event, t.EngineLoaded):
            found.append((entry.seq, entry.event))
    return found


async def past_questions(
    journal: Entries,
    session: str,
    wanted: Sequence[Wanted],
    engines: Sequence[tuple[int, t.EngineLoaded]],
    skipped: Counter[str],
) -> AsyncGenerator[Past, None]:
    """A session's wanted questions, in the order in which they were answered.

    Args:
        skipped: counts those that cannot be asked again, by why.

    Raises:
        JournalFormatError: entries that cannot follow, an answer without its question, or with
            other than one probability a choice.
    """
    open_: dict[str, _Open] = {}
    names = {one.question: one for one in wanted}
    view: SessionView | None = None
    async for entry in journal.entries(session=session):
        view = fold(view, entry)
        match entry.event:
            case t.Question(question=name) if name in names:
                open_[name] = _asked(view, entry.event)
            case t.Prompt(keep=keep):
                for one in open_.values():
                    one.holds = min(one.holds, keep)
            case t.SessionErased():
                skipped[GONE] += len(open_)
                open_.clear()
            case t.Answer(question=name) if name in names:
                asked = open_.pop(name) if name in open_ else None
                past = _past(names.pop(name), asked, entry.event, view, _at(engines, entry.seq))
                if past is None:
                    skipped[REPLACED] += 1
                else:
                    yield past
            case _:
                pass
    skipped[GONE] += len(names)
    if not skipped[GONE]:
        del skipped[GONE]


@dataclass(slots=True)
class _Open:
    """A question on its way to its answer; of the ids known now the first ``holds`` were known
    all the time."""

    asked: t.Question
    base: Ids | None
    holds: int


def _asked(view: SessionView | None, asked: t.Question) -> _Open:
    assert view is not None, "a question follows an opened session"
    about = asked.about
    return _Open(asked, None if about is None else view.known.take(about), 1 << 62)


def _past(
    wanted: Wanted,
    one: _Open | None,
    answer: t.Answer,
    view: SessionView | None,
    engine: t.EngineLoaded | None,
) -> Past | None:
    if one is None or view is None:
        raise _damaged(wanted, "is answered and was not asked")
    choices, given = len(one.asked.choices), len(answer.probabilities)
    if choices != given or (answer.prior is not None and len(answer.prior) != choices):
        raise _damaged(wanted, f"has {choices} choices and {given} probabilities")
    base = one.base
    if base is None:
        if answer.position > min(one.holds, len(view.known)):
            return None
        base = view.known.take(answer.position)
    if len(base) != answer.position:
        raise _damaged(wanted, f"is about {len(base)} ids and answered on {answer.position}")
    return Past(wanted, one.asked, answer, base, engine)


def _at(engines: Sequence[tuple[int, t.EngineLoaded]], seq: int) -> t.EngineLoaded | None:
    return next((engine for since, engine in reversed(engines) if since < seq), None)


def _damaged(wanted: Wanted, why: str) -> JournalFormatError:
    return JournalFormatError(
        f"question {wanted.question!r} of session {wanted.session!r} {why}",
        session=wanted.session,
        question=wanted.question,
    )
