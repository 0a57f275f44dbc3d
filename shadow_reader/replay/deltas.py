"""An output in pieces of a few ids, as a stream delivers it; the same pieces for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from shadow_reader.errors import InvalidInputError


def split_deltas(
    ids: Sequence[int], *, seed: int | str, low: int = 1, high: int = 8
) -> list[list[int]]:
    """Cut ``ids`` into deltas of ``low`` to ``high`` ids; the last one may be shorter.

    Args:
        ids: an output; may be empty, then there is no delta.
        seed: the same seed and length give the same cuts, in any process.
        low: least ids a delta, at least 1.
        high: most ids a delta, at least ``low``.

    Raises:
        InvalidInputError: the bounds are not 1 <= low <= high.
    """
    if not 1 <= low <= high:
        raise InvalidInputError(
            f"low and high must be 1 <= low <= high, found {low} and {high}", low=low, high=high
        )
    chance = random.Random(seed)
    deltas: list[list[int]] = []
    start = 0
    while start < len(ids):
        stop = start + chance.randint(low, high)
        deltas.append(list(ids[start:stop]))
        start = stop
    return deltas
