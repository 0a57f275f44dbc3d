"""How far behind a reader was when turns started: three definitions, and figures over them.

A reader has read ``read_ids`` of a session when its next prompt arrives; that prompt makes it go
back to ``rewound_ids``. Behind is then one of three counts of ids:

- A: what was known before the new prompt arrived, less what was read of it. The published figures
  are of this one.
- B: the whole new prompt, less what is still valid after the rewind.
- C: what of the new prompt was known already, less what is still valid after the rewind.

Percentiles are nearest rank: the smallest value that at least that share of values does not pass.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shadow_reader.replay.ledger.turn import Turn

GRID_IDS: Final = 512
"""Fresh means less than one chunk behind: the published figures' grid."""


@dataclass(frozen=True, slots=True)
class Behind:
    """One turn start under all three definitions, in ids."""

    a: int
    b: int
    c: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Over the turn starts of a ledger: ``fresh`` is a share from 0 to 1, the others are ids."""

    turns: int
    fresh: float
    p50: int
    p90: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a figure lies in ``level`` of the resamplings; ends included."""

    low: float
    high: float
    level: float


def behind_at(before: Turn | None, now: Turn, *, read_ids: int, rewound_ids: int) -> Behind:
    """How far behind a reader is at the start of ``now``.

    Args:
        before: the session's turn before it, None at its first.
        read_ids: how far the session was read just before the prompt arrived.
        rewound_ids: how far its state stands once it went back to what the prompt keeps.

    Raises:
        ValueError: more was read than was known, or more is valid than was read or than the
            prompt keeps.
    """
    known = 0 if before is None else before.known_ids
    if not 0 <= read_ids <= known:
        raise ValueError(f"read_ids must be from 0 to the known {known}, found {read_ids}")
    limit = min(read_ids, now.prefix_ids)
    if not 0 <= rewound_ids <= limit:
        raise ValueError(f"rewound_ids must be from 0 to {limit}, found {rewound_ids}")
    return Behind(
        a=known - read_ids,
        b=now.prompt_ids - rewound_ids,
        c=now.prefix_ids - rewound_ids,
    )


def percentile(values: Sequence[int], share: float) -> int:
    """The nearest-rank percentile.

    Raises:
        ValueError: no values, or ``share`` is not above 0 and at most 1.
    """
    if not values:
        raise ValueError("a percentile needs at least one value")
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, found {share}")
    # A share like 0.9 is a little more or less than nine tenths; a rank is a whole number.
    rank = math.ceil(round(share * len(values), 9))
    return sorted(values)[max(rank, 1) - 1]


def fresh_share(values: Sequence[int], grid_ids: int = GRID_IDS) -> float:
    """The share of values below ``grid_ids``, from 0 to 1.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a fresh share needs at least one value")
    return sum(value < grid_ids for value in values) / len(values)


def figures(values: Sequence[int], grid_ids: int = GRID_IDS) -> Figures:
    """Fresh share, p50 and p90 of the ids behind.

    Raises:
        ValueError: no values.
    """
    return Figures(
        turns=len(values),
        fresh=fresh_share(values, grid_ids),
        p50=percentile(values, 0.5),
        p90=percentile(values, 0.9),
    )


def resampled(
    by_session: Mapping[str, Sequence[int]],
    figure: Callable[[Sequence[int]], float],
    *,
    seed: int,
    draws: int = 1000,
    level: float = 0.95,
) -> Interval:
    """How much a figure depends on which sessions happened to be in the ledger.

    As many sessions as there are are drawn with replacement, each with all its turns: turns of
    one session resemble each other, so single turns would give too narrow an interval.

    Args:
        by_session: ids behind at each of a session's turn starts.
        figure: of the ids behind of all drawn turns.
        seed: the same seed gives the same interval.

    Raises:
        ValueError: no session with a turn, no draws, or a level that is not between 0 and 1.
    """
    sessions = [values for _, values in sorted(by_session.items()) if values]
    if not sessions:
        raise ValueError("an interval needs at least one session with a turn")
    if draws < 1 or not 0 < level < 1:
        raise ValueError(f"draws must be at least 1 and level in (0, 1): {draws}, {level}")
    chance = random.Random(seed)
    found = sorted(
        figure([value for values in chance.choices(sessions, k=len(sessions)) for value in values])
        for _ in range(draws)
    )
    cut = math.floor((1 - level) / 2 * draws)
    return Interval(low=found[cut], high=found[draws - 1 - cut], level=level)
