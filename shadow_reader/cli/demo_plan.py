"""Which turns of a recording the demo asks in, and which one the server is killed in.

Law: a pure function of the recording, so that two runs of a demo do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shadow_reader.replay.records import Message, Recording

GAP_S: Final = 0.31
"""Median time between two turns of a recorded agent session."""

GAPS_S: Final = 15.0
"""All gaps together take at most so long."""

RATE_IDS: Final = 400.0
"""Output ids a second, unless that would take longer than ``OUTPUTS_S`` in all."""

OUTPUTS_S: Final = 15.0
_CHARS_AN_ID: Final = 3.5


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A typed question of the demo."""

    question: str
    choices: tuple[str, ...]


DOING: Final = DemoQuestion(
    "What is the agent doing right now?",
    ("reading code", "editing code", "running tests", "talking to the user"),
)
STUCK: Final = DemoQuestion("Is the agent stuck?", ("yes", "no"))
DONE: Final = DemoQuestion(
    "Is what the user asked for done?", ("yes", "only in part", "no", "it cannot be told")
)


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What happens in which turn, counted from 0.

    Attributes:
        turns: how many there are.
        ask_after: a question waits here until the shadow is fresh; None in a very short session.
        ask_within: a question is answered at once in the middle of this turn's output.
        kill_within: SIGKILL in the middle of this turn's output.
        gap_s: between two turns. rate: output ids a second.
    """

    turns: int
    ask_after: int | None
    ask_within: int
    kill_within: int
    gap_s: float
    rate: float


def plan_demo(recording: Recording) -> DemoPlan:
    """Lay out the demo of one recording."""
    sizes = [_size(message) for message in recording.messages if message.is_turn]
    count = len(sizes)
    kill = _longest(sizes, count // 2, max(count // 2 + 1, count * 4 // 5))
    ask_within = _longest(sizes, count // 4, max(kill, 1))
    output_ids = sum(sizes) / _CHARS_AN_ID
    return DemoPlan(
        turns=count,
        ask_after=max(0, count // 4 - 1) if count > 2 else None,
        ask_within=ask_within,
        kill_within=kill,
        gap_s=min(GAP_S, GAPS_S / count),
        rate=max(RATE_IDS, output_ids / OUTPUTS_S),
    )


def _longest(sizes: Sequence[int], start: int, stop: int) -> int:
    """The turn with the longest output in [start, stop), or ``start`` when there is none."""
    return max(range(start, stop), key=lambda turn: sizes[turn], default=start)


def _size(message: Message) -> int:
    """Characters of an answer, near enough to compare two of them."""
    calls = sum(len(call.name) + len(str(call.arguments)) for call in message.tool_calls)
    return len(message.text) + len(message.reasoning) + calls
