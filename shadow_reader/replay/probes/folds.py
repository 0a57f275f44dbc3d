"""Examples divided into parts, so that a session is never on both sides of a division.

Law: a part is decided by sessions, labels and seed alone. Parts are as alike in their classes as
whole sessions allow, and none is empty.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def folds(
    labels: Sequence[str], sessions: Sequence[str], count: int, *, seed: int
) -> list[NDArray[np.bool_]]:
    """Which examples [n] each part holds; as many parts as ``count``, or as there are sessions.

    The largest sessions are placed first, each where its classes are rarest so far.
    """
    held: dict[str, Counter[str]] = {}
    for label, session in zip(labels, sessions, strict=True):
        held.setdefault(session, Counter())[label] += 1
    order = sorted(held)
    random.Random(seed).shuffle(order)
    order.sort(key=lambda session: -held[session].total())
    whole = Counter(labels)
    parts = [Counter[str]() for _ in range(min(count, len(order)))]
    place: dict[str, int] = {}
    for session in order:
        more = held[session]

        def cost(part: int, more: Counter[str] = more) -> tuple[float, int]:
            now = parts[part]
            crowd = sum(n * (2 * now[label] + n) / whole[label] for label, n in more.items())
            return crowd, now.total()

        best = min(range(len(parts)), key=cost)
        parts[best].update(more)
        place[session] = best
    where = np.array([place[session] for session in sessions])
    return [where == part for part in range(len(parts))]
