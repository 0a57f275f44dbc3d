"""A made ledger: 41 agent sessions, 1,624 turns, nobody's data.

The measurements that this service's design started from were taken on a usage ledger that is not
public. This module makes one like it. What is fitted, and to what:

- published and met by construction: 41 sessions, 1,624 turns, the median gap of 0.31 s between the
  end of one request and the start of the next, a decode rate of 36 ids/s;
- fitted: sizes of tool results and outputs, and how much gaps differ between sessions, so that a
  reader with the idle window alone (a poll every 0.2 s, 87 ms per 1,000 ids, grid 512) comes out
  near the published 41 % fresh, 90th percentile 49,000 ids behind;
- held out, never fitted to: the figures of a reader that may also use 2 % of decode time.

The held-out figures are not a prediction all the same: they depend on the mean decode time of a
turn (about 24 s here), which was not published. A made ledger checks a simulation's plausibility;
it proves nothing about real use, for which there are the recorded ledgers beside it.

One request at a time, one session after another. Each session has a pace of its own (its tools'
speed). A tool turn keeps everything its session knows and adds a result. A person's message drops
the reasoning of the answer before it, so it keeps that answer's prompt only. Close to the
context's end the agent compacts: the prompt starts over and keeps nothing.

The same seed and shape give the same turns on every machine: ``random.Random`` alone is used, and
times are rounded to milliseconds.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from shadow_reader.replay.ledger.turn import Turn

SHIPPED_SEED: Final = 10
"""The seed of the shipped ledger: the first one from 0 whose idle-only figures lie
within a point and a tenth of the published ones."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What sessions look like. ``_median`` and ``_sigma`` are of lognormal draws.

    Ids: ``first`` the first prompt, ``tool`` a tool's result, ``person`` a message, ``output`` what
    a turn produces, ``summary`` what a compaction leaves. Seconds: ``gap`` to the next request
    after a tool, ``slow`` after a build or a test run, ``think`` before a person's message,
    ``pause`` between sessions. ``pace_sigma`` is the spread of gaps between sessions, ``gap_sigma``
    within one. Shares of 1: ``person_share`` of later turns, ``slow_share`` of tool turns,
    ``reasoning_share`` of an output, ``compact_at`` of ``context_ids``. Rates are ids a second.
    """

    sessions: int = 41
    turns: int = 1624
    turns_sigma: float = 1.1
    first_median: float = 14_000
    first_sigma: float = 0.45
    first_range: tuple[int, int] = (10_000, 45_000)
    tool_median: float = 599
    tool_sigma: float = 1.4
    tool_range: tuple[int, int] = (10, 12_500)
    person_median: float = 120
    person_sigma: float = 1.0
    person_range: tuple[int, int] = (5, 4_000)
    output_median: float = 491.5
    output_sigma: float = 1.1
    output_range: tuple[int, int] = (15, 6_000)
    person_share: float = 0.01
    slow_share: float = 0.01
    gap_median_s: float = 0.31
    gap_sigma: float = 0.5
    pace_sigma: float = 1.15
    slow_median_s: float = 4.0
    slow_sigma: float = 1.2
    think_median_s: float = 60.0
    think_sigma: float = 1.5
    think_range_s: tuple[float, float] = (5.0, 14_400.0)
    pause_median_s: float = 1_200.0
    pause_sigma: float = 1.0
    decode_rate: float = 36.0
    decode_sigma: float = 0.15
    prefill_rate: float = 940.0
    first_wait_s: float = 0.15
    reasoning_share: float = 0.4
    context_ids: int = 200_000
    compact_at: float = 0.9
    summary_ids: int = 3_000
    epoch_s: float = 1_790_928_000.0


@dataclass(slots=True)
class _Step:
    """A turn before its time is known. ``fast``: its gap is still to be scaled."""

    gap_s: float
    fast: bool
    person: bool
    added: int
    output: int
    rate: float


def synthetic(seed: int = SHIPPED_SEED, shape: Shape | None = None) -> list[Turn]:
    """The turns of a made ledger, in order of time.

    Raises:
        ValueError: there are fewer turns than sessions, or no session.
    """
    shape = shape or Shape()
    if not 1 <= shape.sessions <= shape.turns:
        raise ValueError(f"{shape.turns} turns cannot fill {shape.sessions} sessions")
    chance = random.Random(seed)
    plans = [_plan(chance, shape, length) for length in _lengths(chance, shape)]
    _scale(plans, shape)
    turns: list[Turn] = []
    free = shape.epoch_s
    for number, plan in enumerate(plans):
        first = round(_drawn(chance, shape.first_median, shape.first_sigma, shape.first_range))
        turns += _session(f"made-{number:02d}", plan, first, free, shape)
        free = turns[-1].end_s
    return turns


def _drawn(
    chance: random.Random, middle: float, sigma: float, limits: tuple[float, float] | None = None
) -> float:
    value = middle * math.exp(sigma * chance.gauss(0.0, 1.0))
    return value if limits is None else min(max(value, limits[0]), limits[1])


def _lengths(chance: random.Random, shape: Shape) -> list[int]:
    """How many turns each session has: at least one, ``shape.turns`` together."""
    weights = [_drawn(chance, 1.0, shape.turns_sigma) for _ in range(shape.sessions)]
    spare = shape.turns - shape.sessions
    lengths = [1 + int(spare * weight / sum(weights)) for weight in weights]
    for n in range(shape.turns - sum(lengths)):
        lengths[n % shape.sessions] += 1
    return lengths


def _plan(chance: random.Random, shape: Shape, length: int) -> list[_Step]:
    pace = shape.pace_sigma * chance.gauss(0.0, 1.0)
    return [_step(chance, shape, pace, opens=n == 0) for n in range(length)]


def _step(chance: random.Random, shape: Shape, pace: float, *, opens: bool) -> _Step:
    person = opens or chance.random() < shape.person_share
    slow = not person and chance.random() < shape.slow_share
    if opens:
        gap = _drawn(chance, shape.pause_median_s, shape.pause_sigma)
    elif person:
        gap = _drawn(chance, shape.think_median_s, shape.think_sigma, shape.think_range_s)
    elif slow:
        gap = _drawn(chance, shape.slow_median_s, shape.slow_sigma)
    else:
        gap = _drawn(chance, math.exp(pace), shape.gap_sigma)
    if person:
        added = _drawn(chance, shape.person_median, shape.person_sigma, shape.person_range)
    else:
        added = _drawn(chance, shape.tool_median, shape.tool_sigma, shape.tool_range)
    return _Step(
        gap_s=gap,
        fast=not person and not slow,
        person=person,
        added=round(added),
        output=round(_drawn(chance, shape.output_median, shape.output_sigma, shape.output_range)),
        rate=_drawn(chance, shape.decode_rate, shape.decode_sigma),
    )


def _scale(plans: list[list[_Step]], shape: Shape) -> None:
    """Stretch the fast gaps by one factor, so that the median of all gaps is what it shall be.

    The very first turn comes after nothing and has no gap.
    """
    steps = [step for plan in plans for step in plan][1:]
    fast = sorted(step.gap_s for step in steps if step.fast)
    if not fast:
        return
    below = sum(step.gap_s <= shape.gap_median_s for step in steps if not step.fast)
    rank = min(max(len(steps) // 2 - below, 0), len(fast) - 1)
    factor = shape.gap_median_s / fast[rank]
    for step in steps:
        if step.fast:
            step.gap_s *= factor


def _session(name: str, plan: list[_Step], first: int, free: float, shape: Shape) -> list[Turn]:
    turns: list[Turn] = []
    for number, step in enumerate(plan):
        prompt, prefix = _prompt(turns[-1] if turns else None, step, first, shape)
        start = free + step.gap_s
        begun = start + shape.first_wait_s + (prompt - prefix) / shape.prefill_rate
        free = round(begun + step.output / step.rate, 3)
        turns.append(
            Turn(
                session=name,
                parent=None,
                turn=number,
                start_s=round(start, 3),
                first_s=round(begun, 3),
                end_s=free,
                prompt_ids=prompt,
                prefix_ids=prefix,
                output_ids=step.output,
            )
        )
    return turns


def _prompt(before: Turn | None, step: _Step, first: int, shape: Shape) -> tuple[int, int]:
    """A turn's prompt, and how much of it was known; both in ids."""
    if before is None:
        return first, 0
    prompt, prefix = before.known_ids + step.added, before.known_ids
    if step.person:
        prompt -= round(shape.reasoning_share * before.output_ids)
        prefix = before.prompt_ids
    if prompt + step.output > shape.context_ids * shape.compact_at:
        return first + shape.summary_ids + step.added, 0
    return prompt, prefix


def gap_median_s(turns: list[Turn]) -> float:
    """The median time, in seconds, that nothing ran before a turn; ``turns`` do not overlap."""
    return median(after.start_s - before.end_s for before, after in pairwise(turns))
