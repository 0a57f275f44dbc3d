"""When the shadow may do something of its own accord: what the settings and the box say."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.holds import Holds

BOX_POLL_S = 0.2
"""How often a box lock that somebody has is tried again: nothing tells when it is let go."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The rules of the idle window and of the ration.

    Attributes:
        holds: while one is on, nothing is done. box: taken for each idle burst and each move.
        turns_block: a running turn counts as foreground.
        burst_s: the lease is let go at the first chunk's end after so long.
        share: of the time since a turn's first token that may be used in its rounds; 0: none.
        slice_s: most that is used in one round.
        streamed: each piece of output that comes is a round, unless the engine calls them itself.
        idle_poll_s: idle windows are looked for so often; None: as soon as one begins.
    """

    holds: Holds
    box: BoxLock
    turns_block: bool = True
    burst_s: float = 2.0
    share: float = 0.0
    slice_s: float = 0.15
    streamed: bool = True
    idle_poll_s: float | None = None

    def next_look_s(self, last_s: float, now_s: float) -> float:
        """When an idle window is looked for next: looks follow ``last_s`` in steps of the poll,
        whether or not there was anything to see. Both are monotonic."""
        if self.idle_poll_s is None or now_s <= last_s:
            return last_s
        steps = math.ceil((now_s - last_s) / self.idle_poll_s - 1e-6)
        return last_s + steps * self.idle_poll_s if steps else now_s
