"""A usage ledger: every turn of some sessions, in order and without contradiction.

Laws, checked whenever a ledger is made:

- a session's turns are numbered 0, 1, 2, ... in the order of the file;
- a turn starts when the one before it in its session has ended, or later (no negative gap);
- a turn keeps no more than its session knew, a first turn nothing;
- a session has one parent. The parent need not be in the ledger; no chain of parents is a circle.

Sessions may overlap each other, and their lines may be mixed in any way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shadow_reader.errors import LedgerError
from shadow_reader.replay.ledger.turn import Turn, fault


@dataclass(frozen=True, slots=True)
class Session:
    """A session's turns in order; at least one."""

    name: str
    parent: str | None
    turns: tuple[Turn, ...]

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Seconds from each turn's end to the next one's start; one less than there are turns."""
        pairs = zip(self.turns, self.turns[1:], strict=False)
        return tuple(after.start_s - before.end_s for before, after in pairs)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Checked turns. ``turns`` stands in the file's order, ``sessions`` in that of first turns."""

    name: str
    turns: tuple[Turn, ...]
    sessions: Mapping[str, Session]

    def by_start(self) -> Iterator[Turn]:
        """Every turn in the order in which the big model was asked, ties as in the file."""
        return iter(sorted(self.turns, key=lambda turn: turn.start_s))


def ledger_of(name: str, turns: Iterable[Turn]) -> Ledger:
    """Check turns against each other.

    Args:
        name: what errors and summaries call the ledger.
        turns: in the file's order; errors count lines from 1.

    Raises:
        LedgerError: there is no turn, or one breaks a law of this module; line and field are named.
    """
    taken = tuple(turns)
    if not taken:
        raise LedgerError(f"{name}: the ledger is empty: it holds no turn", name=name)
    grouped: dict[str, list[Turn]] = {}
    for line, turn in enumerate(taken, start=1):
        before = grouped.setdefault(turn.session, [])
        _follows(before, turn, line)
        before.append(turn)
    sessions = {name: Session(name, own[0].parent, tuple(own)) for name, own in grouped.items()}
    _no_circle(sessions, taken)
    return Ledger(name, taken, MappingProxyType(sessions))


def _follows(before: list[Turn], turn: Turn, line: int) -> None:
    if turn.turn != len(before):
        again = " again" if turn.turn < len(before) else ""
        raise fault(
            line,
            "turn",
            f"of session {turn.session!r} must be {len(before)}, found {turn.turn}{again}",
        )
    if not before:
        if turn.prefix_ids:
            raise fault(line, "prefix_ids", f"of a first turn must be 0, found {turn.prefix_ids}")
        return
    last = before[-1]
    if turn.parent != last.parent:
        raise fault(line, "parent", f"was {last.parent!r} above, found {turn.parent!r}")
    if turn.start_s < last.end_s:
        raise fault(
            line,
            "start_s",
            f"{turn.start_s} lies before the end of turn {last.turn} of its session, {last.end_s}",
        )
    if turn.prefix_ids > last.known_ids:
        raise fault(
            line,
            "prefix_ids",
            f"{turn.prefix_ids} is more than the session knew, {last.known_ids}",
        )


def _no_circle(sessions: Mapping[str, Session], turns: tuple[Turn, ...]) -> None:
    for start in sessions:
        passed = {start}
        parent = sessions[start].parent
        while parent is not None and parent in sessions:
            if parent == start:
                line = next(n for n, turn in enumerate(turns, start=1) if turn.session == start)
                raise fault(line, "parent", f"{sessions[start].parent!r} descends from {start!r}")
            if parent in passed:
                break  # a circle further up: found from its own sessions
            passed.add(parent)
            parent = sessions[parent].parent
