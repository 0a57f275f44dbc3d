"""Many outputs of one turn, decided and folded at once: what comes by the ten thousand a second.

Law: the events, the refusals and the view are exactly those of ``decide_output`` and ``fold``, one
delta after the other (a test compares them over random runs). Pure, like both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from shadow_reader.errors import ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits, decide_output
from shadow_reader.events.fold import fold_outputs
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView

Taken: TypeAlias = tuple[int, int, int | None]
"""What an output did: ids known after it, output ids after it, its event's place in the run.

No place: it said nothing new."""

Outcome: TypeAlias = Taken | ShadowError
Delta: TypeAlias = tuple[int, Ids | ShadowError]
"""An offset and its ids, or what is wrong with them."""


class Run(NamedTuple):
    """A run of outputs: the view after it, its new events in order, one outcome a delta."""

    view: SessionView | None
    events: list[t.Output]
    outcomes: list[Outcome]


def take_outputs(
    view: SessionView | None, deltas: Sequence[Delta], *, at: float, turn: str, limits: Limits
) -> Run:
    """Decide and fold ``deltas`` of one turn in order; a refused one changes nothing."""
    events: list[t.Output] = []
    outcomes: list[Outcome] = []
    folded = 0
    known, produced, room = _standing(view, turn, limits)
    for offset, ids in deltas:
        if isinstance(ids, ShadowError):
            outcomes.append(ids)
            continue
        count = len(ids)
        if offset != produced or not 0 < count <= room:
            # Repeated, overlapping, empty, too long or wrong: the one decision there is says which.
            view = fold_outputs(view, at, turn, events[folded:])
            folded = len(events)
            try:
                decided = decide_output(view, turn=turn, offset=offset, ids=ids, limits=limits)
            except ShadowError as error:
                outcomes.append(error)
                continue
            if not decided:
                outcomes.append((known, produced, None))
                continue
            (event,) = decided
            count = len(event.ids)
        else:
            event = t.Output(offset, ids)
        events.append(event)
        known += count
        produced += count
        room -= count
        outcomes.append((known, produced, len(events) - 1))
    return Run(fold_outputs(view, at, turn, events[folded:]), events, outcomes)


def _standing(view: SessionView | None, turn: str, limits: Limits) -> tuple[int, int, int]:
    """Ids known, output ids of the turn, and room for more: none where no output may come."""
    if view is None:
        return 0, 0, 0
    running = view.turn is not None and view.turn.turn == turn and view.turn.running
    known = len(view.known)
    return known, view.output_length, limits.context_ids - known if running else 0
