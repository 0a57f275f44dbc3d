"""What a ledger looks like from afar: how many, how long, how large, and how much is assumed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shadow_reader.replay.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Spread:
    """Nearest-rank percentiles of ``count`` values; all None where there are none."""

    count: int
    p10: float | None
    p50: float | None
    p90: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A ledger's marginals.

    Attributes:
        gap_s: end of a turn to the start of the next in its session.
        box_gap_s: the time nothing ran before a turn started, over all sessions together; a turn
            that starts while another runs has none.
        decode_s: first id to last, of turns that say when the first came.
        growth_ids: how many ids of a prompt its session did not know, first turns left out.
        shrunk: prompts shorter than the one before in their session: a compaction, a rewind.
        overlapping: turns that start while a turn of another session runs.
        orphans: sessions whose parent is not in the ledger.
        assumed: by field, how many turns have it by assumption.
        no_first: turns that do not say when their first id came.
    """

    name: str
    sessions: int
    turns: int
    subagents: int
    orphans: int
    span_s: float
    longest_turns: int
    gap_s: Spread
    box_gap_s: Spread
    turn_s: Spread
    decode_s: Spread
    prompt_ids: Spread
    growth_ids: Spread
    output_ids: Spread
    shrunk: int
    overlapping: int
    no_first: int
    assumed: Mapping[str, int]


def summary(ledger: Ledger) -> Summary:
    """The marginals of a ledger."""
    turns, sessions = ledger.turns, ledger.sessions.values()
    later = [pair for s in sessions for pair in zip(s.turns, s.turns[1:], strict=False)]
    box_gaps, overlapping = _box(ledger)
    return Summary(
        name=ledger.name,
        sessions=len(sessions),
        turns=len(turns),
        subagents=sum(s.parent is not None for s in sessions),
        orphans=sum(s.parent is not None and s.parent not in ledger.sessions for s in sessions),
        span_s=max(t.end_s for t in turns) - min(t.start_s for t in turns),
        longest_turns=max(len(s.turns) for s in sessions),
        gap_s=spread(gap for s in sessions for gap in s.gaps_s),
        box_gap_s=spread(box_gaps),
        turn_s=spread(t.end_s - t.start_s for t in turns),
        decode_s=spread(t.end_s - t.first_s for t in turns if t.first_s is not None),
        prompt_ids=spread(t.prompt_ids for t in turns),
        growth_ids=spread(now.prompt_ids - now.prefix_ids for _, now in later),
        output_ids=spread(t.output_ids for t in turns),
        shrunk=sum(now.prompt_ids < before.prompt_ids for before, now in later),
        overlapping=overlapping,
        no_first=sum(t.first_s is None for t in turns),
        assumed=dict(sorted(Counter(name for t in turns for name in t.assumed).items())),
    )


def spread(values: Iterable[float]) -> Spread:
    """The percentiles of some values."""
    ordered = sorted(values)
    return Spread(len(ordered), _rank(ordered, 10), _rank(ordered, 50), _rank(ordered, 90))


def _rank(ordered: Sequence[float], percent: int) -> float | None:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else None


def _box(ledger: Ledger) -> tuple[list[float], int]:
    gaps: list[float] = []
    overlapping = 0
    free: float | None = None
    for turn in ledger.by_start():
        if free is not None and turn.start_s >= free:
            gaps.append(turn.start_s - free)
        elif free is not None:
            overlapping += 1
        free = turn.end_s if free is None else max(free, turn.end_s)
    return gaps, overlapping
