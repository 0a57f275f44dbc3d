"""Who gives way when memory is short, before any session is dropped.

Law: one call frees something or changes nothing. What gives way is, in this order, prefix points;
then checkpoints, the lowest of the first session first, then the next session's; each session's
newest checkpoint only when all others are gone; never what a session stands on. A state that
several hold goes only when all of them may let go of it, since otherwise nothing would be freed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shadow_reader.shadow.prefixes import PrefixPoints
from shadow_reader.shadow.state import SessionState


def give_way(points: PrefixPoints, states: Sequence[SessionState], *, newest: bool = True) -> int:
    """Free the next thing that may go; its bytes, or 0 when nothing may.

    Args:
        states: whose checkpoints may go, in the order in which they give way.
        newest: whether the newest checkpoint of each may go too.
    """
    freed = points.give_way()
    if freed:
        return freed
    for newest_too in (False, True) if newest else (False,):
        offered = [
            (state, checkpoint)
            for state in states
            for checkpoint in state.checkpoints[: None if newest_too else -1]
        ]
        offers = Counter(checkpoint.held for _, checkpoint in offered)
        offers.update(point.held for point in points)
        for _, checkpoint in offered:
            held = checkpoint.held
            if offers[held] == held.holders:
                freed = sum(points.remove(point) for point in points if point.held is held)
                return freed + sum(state.give_up(c) for state, c in offered if c.held is held)
    return 0
