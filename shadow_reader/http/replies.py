"""The shapes of what goes out, where the library has no value of the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from shadow_reader.events.journal import SessionRow
from shadow_reader.shadow.questions import Reply
from shadow_reader.shadow.telling import SummaryReply


@dataclass(frozen=True, slots=True)
class ErrorData:
    """What went wrong: a stable code, a sentence, the same facts for a program."""

    code: str
    message: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The body of every reply that is not what was asked for."""

    error: ErrorData


@dataclass(frozen=True, slots=True)
class FeedAccepted:
    """A feed's reply to a message that is committed; ``line`` counts every line of the body."""

    line: int
    ok: Literal[True]
    session: str
    turn: str
    known: int
    output: int
    seq: int | None


@dataclass(frozen=True, slots=True)
class FeedRefused:
    """A feed's reply to a message that changed nothing."""

    line: int
    ok: Literal[False]
    error: ErrorData


FeedReply: TypeAlias = FeedAccepted | FeedRefused


@dataclass(frozen=True, slots=True)
class Replies:
    """The answers to questions that were asked together, in their order."""

    replies: tuple[Reply, ...]


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """A line of a summary: a piece of its text; at its end none, and what became of it."""

    text: str
    reply: SummaryReply | None = None


class EntryRow(BaseModel):
    """An entry: the journal's columns, and beside them the event's own fields.

    ``ids``, where the event has them, are a list, or ``{"count": n}`` unless asked for. A
    question's own kind is ``question_kind``.
    """

    model_config = ConfigDict(extra="allow")

    seq: int
    at: float
    session: str
    turn: str
    kind: str


class QueryRow(BaseModel):
    """A flat row, or a group of them: the fields are the kinds' own, or the groups'."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class Health:
    """The process lives and its event loop turns."""

    ok: Literal[True] = True


@dataclass(frozen=True, slots=True)
class Readiness:
    """How the service stands: ``ready``, or ``off`` where no model is wanted, count as ready."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions by name; ``next`` is the ``after`` of the page behind, None at the end."""

    sessions: tuple[SessionRow, ...]
    next: str | None
