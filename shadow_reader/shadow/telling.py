"""One summary under way, and what becomes of it: plain values, and what follows from a view."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from shadow_reader.errors import InvalidInputError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView, TurnView


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """A summary that is over; see ``events.types.Summary``."""

    session: str
    turn: str
    text: str
    ids: int
    reason: t.SummaryEnd
    about: int
    position: int
    behind: int
    lag_ms: float
    used_ms: float


@dataclass(slots=True)
class Telling:
    """One summary under way.

    Attributes:
        line: of talk. turn: whose thought it is of; runs: it ran when this began.
        opened_at: when the session was opened that it is of.
        base: the ids up to the thought's end. turns: of the line, when they were last looked at.
        pieces: its text as it comes; None ends it. reply: what became of it.
        ended: why, where it was not to be finished.
    """

    line: str
    turn: TurnView
    about: int
    runs: bool
    prompt: str
    opened_at: float
    base: Ids
    turns: int
    pieces: asyncio.Queue[str | None]
    reply: asyncio.Future[SummaryReply]
    ids: list[int] = field(default_factory=list)
    position: int = 0
    began_s: float = 0.0
    first_s: float | None = None
    used_s: float = 0.0
    text: str = ""
    ended: t.SummaryEnd | None = None


def thought_end(view: SessionView, think_end: int) -> int:
    """Behind the last thought of the last turn's output.

    Raises:
        InvalidInputError: there is none that has ended.
    """
    if view.turn is not None:
        ends = np.flatnonzero(view.known.array(view.turn.prompt_length) == think_end)
        if len(ends):
            return view.turn.prompt_length + int(ends[-1]) + 1
    raise InvalidInputError(
        "the session's last turn has no thought that has ended: there is nothing to tell of",
        field="session",
        found=view.session,
    )


def holds_still(view: SessionView | None, telling: Telling) -> bool:
    """Whether the thought is still among the known ids; looked at once a turn."""
    if view is None:
        return False
    if view.turns != telling.turns:
        telling.turns = view.turns
        return view.known.common_prefix(telling.base) == len(telling.base)
    return True


def runs_still(view: SessionView | None, turn: TurnView) -> bool:
    now = view.turn if view is not None else None
    return now is not None and now.turn == turn.turn and now.running
