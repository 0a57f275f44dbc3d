"""What happened in this process, counted, for whoever plots it or wants to be woken by it.

Law: a number is raised when the thing happens (an event: when it is committed) and never falls,
whatever is forgotten meanwhile. Nothing is kept by session, so the size of a tally is fixed.
Used on the event loop alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, get_args

from shadow_reader.events import types as t

LAG_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
FORWARD_S: Final = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


AGREEMENT: Final = MappingProxyType({True: "same", False: "other", None: "nothing to compare"})
"""Whether the shadow's class is the router's."""


class Histogram:
    """How often values fell at or below each of some bounds, and their sum.

    Attributes:
        counts: for each bound the values above the bound before it; last, those above all.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _zeros(names: object) -> dict[str, int]:
    return dict.fromkeys(get_args(names), 0)


@dataclass(slots=True)
class Tally:
    """Counts since the start of the process.

    Attributes:
        events: committed events of sessions, by type.
        commit_failures: groups of events that the journal did not take.
        prompt_ids, output_ids: ids that came with prompts (without those kept) and outputs.
        turns_ended: by reason.
        chunks, read_ids, read_s: chunks read, their ids, and the seconds it took, by window.
        reread_ids: read again because a rewind went below what agreed.
        mismatches: digests that differed from those journaled earlier: a fault of ours.
        spilled_bytes, restored_bytes: written to and read from snapshots.
        refused: snapshots that were not used.
        dropped: states let go and not spilled, by reason.
        questions_ended: questions without an answer, by reason.
        summaries: of the narrator, by why they ended; summary_ids: that it wrote.
        router_answers: answers to the router's question, by whether they agree with its class.
        lag_s, forward_s: of answers: from asking to answering, and the forward alone.
    """

    events: dict[type[t.Event], int] = field(
        default_factory=lambda: dict.fromkeys(get_args(t.SessionEvent), 0)
    )
    commit_failures: int = 0
    prompt_ids: int = 0
    output_ids: int = 0
    turns_ended: dict[str, int] = field(default_factory=lambda: _zeros(t.EndReason))
    chunks: dict[str, int] = field(default_factory=lambda: _zeros(t.WindowName))
    read_ids: dict[str, int] = field(default_factory=lambda: _zeros(t.WindowName))
    read_s: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(get_args(t.WindowName), 0.0)
    )
    reread_ids: int = 0
    mismatches: int = 0
    spilled_bytes: int = 0
    restored_bytes: int = 0
    refused: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: _zeros(t.DropReason))
    questions_ended: dict[str, int] = field(default_factory=lambda: _zeros(t.QuestionEnd))
    summaries: dict[str, int] = field(default_factory=lambda: _zeros(t.SummaryEnd))
    summary_ids: int = 0
    router_answers: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(AGREEMENT.values(), 0)
    )
    lag_s: Histogram = field(default_factory=lambda: Histogram(LAG_S))
    forward_s: Histogram = field(default_factory=lambda: Histogram(FORWARD_S))

    def committed(self, drafts: Sequence[t.Draft]) -> None:
        """These events of sessions are in the journal."""
        for draft in drafts:
            event = draft.event
            self.events[type(event)] += 1
            if isinstance(event, t.Output):
                self.output_ids += len(event.ids)
            else:
                self._count(event)

    def _count(self, event: t.Event) -> None:
        match event:
            case t.Prompt():
                self.prompt_ids += len(event.ids)
            case t.TurnEnded():
                self.turns_ended[event.reason] += 1
            case t.Rewind():
                self.reread_ids += event.reread
            case t.Spill():
                self.spilled_bytes += event.written
            case t.Restore():
                self.restored_bytes += event.read
                self.refused += event.refused is not None
            case t.Dropped():
                self.dropped[event.reason] += 1
            case t.Answer():
                self.lag_s.observe(event.lag_ms / 1000)
                self.forward_s.observe(event.forward_ms / 1000)
            case t.Summary():
                self.summaries[event.reason] += 1
                self.summary_ids += len(event.ids)
            case t.RouterAnswer():
                self.router_answers[AGREEMENT[event.agree]] += 1
            case t.QuestionEnded():
                self.questions_ended[event.reason] += 1
            case _:
                pass

    def chunk(self, window: t.WindowName, ids: int, seconds: float) -> None:
        """A chunk was read."""
        self.chunks[window] += 1
        self.read_ids[window] += ids
        self.read_s[window] += seconds
