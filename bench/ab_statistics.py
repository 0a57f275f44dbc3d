"""What an A/B run says: medians, paired differences, an interval, and the gate.

Law: differences are paired, run by run, since a machine drifts; the interval is that of the median
paired difference, and a gate that lies inside it is neither passed nor missed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, TypeAlias

LEAST_PAIRS: Final = 5
"""Of fewer, the whole range covers the median less often than 19 times in 20."""
Verdict: TypeAlias = Literal["passed", "missed", "too few runs to tell"]


@dataclass(frozen=True, slots=True)
class Run:
    """One request.

    Attributes:
        arm: whether the reader read. ids: produced.
        ttft_s: from sending to the first id. rate: ids a second after the first.
    """

    arm: Literal["off", "on"]
    ids: int
    ttft_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Of pairs of runs: the median, and where it lies in 95 % of resamplings of the pairs."""

    median: float
    low: float
    high: float
    pairs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of the arms and their differences.

    Attributes:
        rate_change: of the decode rate, as a fraction of the arm without the reader.
        ttft_change_s: of the time to the first id.
    """

    rate_off: float
    rate_on: float
    ttft_off_s: float
    ttft_on_s: float
    rate_change: Difference
    ttft_change_s: Difference


def compare(runs: Sequence[Run], *, seed: int, draws: int = 10_000) -> Result:
    """Pair the runs of the two arms in their order, and compare.

    Raises:
        ValueError: no pair, or an arm with more runs than the other.
    """
    off = [run for run in runs if run.arm == "off"]
    on = [run for run in runs if run.arm == "on"]
    if not off or len(off) != len(on):
        raise ValueError(f"{len(off)} runs without and {len(on)} with the reader make no pairs")
    pairs = list(zip(off, on, strict=True))
    return Result(
        rate_off=median(run.rate for run in off),
        rate_on=median(run.rate for run in on),
        ttft_off_s=median(run.ttft_s for run in off),
        ttft_on_s=median(run.ttft_s for run in on),
        rate_change=_difference([b.rate / a.rate - 1 for a, b in pairs], seed, draws),
        ttft_change_s=_difference([b.ttft_s - a.ttft_s for a, b in pairs], seed, draws),
    )


def judge(change: Difference, gate: float) -> Verdict:
    """Whether the decode rate lost no more than ``gate``, a fraction."""
    if len(change.pairs) < LEAST_PAIRS:
        return "too few runs to tell"
    if change.low >= -gate:
        return "passed"
    return "missed" if change.high < -gate else "too few runs to tell"


def _difference(values: Sequence[float], seed: int, draws: int) -> Difference:
    chance = random.Random(seed)
    found = sorted(median(chance.choices(values, k=len(values))) for _ in range(draws))
    cut = int(0.025 * draws)
    return Difference(median(values), found[cut], found[draws - 1 - cut], tuple(values))
