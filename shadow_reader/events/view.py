"""What is known of one session now: an immutable view, made by the fold and by nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.events.types import EndReason

MAX_CHECKPOINTS: Final = 6
"""Checkpoints kept a session; the oldest goes first."""

MAX_PROMPT_ENDS: Final = 16
"""Prompt ends remembered a session; checkpoints are taken at the last grid lines below them."""

MAX_PAST_TURNS: Final = 1024
"""Turn ids remembered a session, so that a repeated one is recognised."""

MAX_CUTS: Final = 3
"""Last prompts of which it is remembered where they left what was known."""

MAX_ANSWERS: Final = 16
"""Last answers kept in the view; all of them stay in the journal."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """One request of the session. Its output is ``known[prompt_length:]`` while it is the last."""

    turn: str
    prompt_length: int
    started_at: float
    router: str | None = None
    profile: str | None = None
    decided: bool | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    reason: EndReason | None = None
    unsure: bool = False

    @property
    def running(self) -> bool:
        """Whether more output may come."""
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A journaled state digest that holds for the ids known now."""

    position: int
    digest: str
    engine: str


@dataclass(frozen=True, slots=True)
class CutView:
    """A prompt kept the first ``keep`` of the ``known`` ids that there were before it."""

    keep: int
    known: int


@dataclass(frozen=True, slots=True)
class QuestionView:
    """A question without an answer yet."""

    question: str
    kind: str
    position: int
    ids: Ids
    choices: tuple[str, ...]
    asked_at: float


@dataclass(frozen=True, slots=True)
class AnswerView:
    """An answered question, as the status shows it."""

    question: str
    kind: str
    label: str
    probability: float
    position: int
    behind: int
    lag_ms: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session, folded from its events.

    Attributes:
        known: last served prompt + output so far.
        turn: the last turn, running or ended; None before the first prompt.
        turns: how many turns began.
        past_turns: ids of earlier turns, newest last (bounded).
        prompt_ends: where prompts ended, as far as the ids below still hold (bounded, rising).
        cuts: what the last prompts but the first kept of what was known, newest last (bounded).
        checkpoints: digests that hold for the known ids, by position (bounded).
        rewinds: how often the state went back.
        reread: ids that agreed and were read again all the same.
        read: ids read in all, again included.
        questions: unanswered ones, by their id.
        answers: the last answers, newest last (bounded).
    """

    session: str
    opened_at: float
    last_at: float
    known: Ids = EMPTY
    turn: TurnView | None = None
    turns: int = 0
    past_turns: tuple[str, ...] = ()
    prompt_ends: tuple[int, ...] = ()
    cuts: tuple[CutView, ...] = ()
    checkpoints: tuple[CheckpointView, ...] = ()
    rewinds: int = 0
    reread: int = 0
    read: int = 0
    questions: Mapping[str, QuestionView] = field(default_factory=lambda: MappingProxyType({}))
    answers: tuple[AnswerView, ...] = ()

    def grown(self, at: float, turn: TurnView, known: Ids) -> SessionView:
        """After an output; ``dataclasses.replace`` takes four times as long."""
        return SessionView(
            self.session,
            self.opened_at,
            at,
            known,
            turn,
            self.turns,
            self.past_turns,
            self.prompt_ends,
            self.cuts,
            self.checkpoints,
            self.rewinds,
            self.reread,
            self.read,
            self.questions,
            self.answers,
        )

    @property
    def running(self) -> bool:
        """Whether a turn is running."""
        return self.turn is not None and self.turn.running

    @property
    def output_length(self) -> int:
        """Output ids of the last turn so far."""
        return len(self.known) - self.turn.prompt_length if self.turn else 0

    @property
    def prompt_length(self) -> int:
        """Prompt ids of the last turn."""
        return self.turn.prompt_length if self.turn else 0
