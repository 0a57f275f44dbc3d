"""What the reader may use of the time in which the big model decodes.

Laws: in each running turn the reader uses at most ``share`` of the time since that turn's first
token, not since its start: a long prefill earns nothing. Whatever it uses counts for every turn
that runs. Before a turn's first token nothing may be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class TurnAccount:
    """One running turn that decodes.

    Attributes:
        since_s: when its first token came, monotonic. used_s: what the reader used since.
        slices: in how many goes.
    """

    turn: str
    since_s: float
    used_s: float = 0.0
    slices: int = 0


class Ration:
    """The accounts of all turns that run.

    Args:
        share: of the time since a turn's first token; 0: nothing is used.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._accounts: dict[str, TurnAccount] = {}

    @property
    def accounts(self) -> Mapping[str, TurnAccount]:
        """By the line's name."""
        return self._accounts

    def begin(self, line: str, turn: str, since_s: float) -> None:
        """The turn decodes since ``since_s``; said again, it changes nothing."""
        found = self._accounts.get(line)
        if found is None or found.turn != turn:
            self._accounts[line] = TurnAccount(turn, since_s)

    def end(self, line: str) -> TurnAccount | None:
        """The line's turn is over; its account, if it had one."""
        return self._accounts.pop(line, None)

    def charge(self, seconds: float) -> None:
        """A slice of so many seconds was used, in every turn that runs."""
        for account in self._accounts.values():
            account.used_s += seconds
            account.slices += 1

    def allowance_s(self, now_s: float) -> float:
        """What may be used now, of the turn that allows least; below 0 after a slice that took
        longer than was thought. Infinite where no turn decodes."""
        return min(
            (self.share * (now_s - a.since_s) - a.used_s for a in self._accounts.values()),
            default=float("inf"),
        )
