"""Rounds: the moments within a turn in which the reader may use its ration.

An engine that can pause calls one between two of its own rounds and waits for its end. For one that
cannot, each piece of output that comes is a round; nobody waits for that one.

Law: a round that is open is closed once the next thing that the reader does is done, or by its not
doing anything; never while it is at work in it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from shadow_reader.clock import Clock
from shadow_reader.shadow.costs import ChunkCosts
from shadow_reader.shadow.ration import Ration, TurnAccount
from shadow_reader.shadow.roster import Roster
from shadow_reader.shadow.windows import Windows


@dataclass(slots=True, eq=False)
class Round:
    """One round that an engine called.

    Attributes:
        read: ids read in it. used_s: time it took. closed: it is over.
    """

    read: int = 0
    used_s: float = 0.0
    closed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that is over, with what was used of it and how long it decoded."""

    line: str
    account: TurnAccount
    decoded_s: float


class Rounds:
    """All rounds, and the ration they share."""

    def __init__(self, roster: Roster, windows: Windows, clock: Clock, costs: ChunkCosts) -> None:
        self.ration = Ration(windows.share)
        self._roster = roster
        self._windows = windows
        self._clock = clock
        self._costs = costs
        self._called: list[Round] = []
        self._calling: set[str] = set()
        self._piece_came = False
        self._messages = 0

    def call(self) -> Round:
        """An engine has paused; from now on its turn's rounds are those that it calls."""
        opened = Round()
        self._called.append(opened)
        self._calling |= self.ration.accounts.keys()
        return opened

    def piece_came(self) -> None:
        """Something of a session was committed: a piece of output perhaps, or what we did."""
        messages = self._roster.sessions.messages
        if messages > self._messages:
            self._messages = messages
            self._piece_came = self._windows.streamed and self._windows.share > 0

    @property
    def called(self) -> bool:
        """Whether the engine of a turn that decodes calls its rounds."""
        return bool(self._calling & self.ration.accounts.keys())

    @property
    def is_open(self) -> bool:
        """Whether a round is open."""
        streams = self._piece_came and not self._calling & self.ration.accounts.keys()
        return bool(self._called) or streams

    def allowance_s(self) -> float | None:
        """What may be used now; None where no round is open, or a running turn is in prefill."""
        if not self.is_open or not self.ration.accounts:
            return None
        for live in self._roster.running():
            if live.decodes_since_s is None:
                return None
        return self.ration.allowance_s(self._clock.monotonic())

    def worth_a_look(self) -> bool:
        """Whether the cheapest chunk there ever was would fit."""
        allowance_s = self.allowance_s()
        return allowance_s is not None and allowance_s >= self._costs.least_s()

    def follow(self) -> list[Ended]:
        """Open and end accounts as turns begin to decode and end; those that ended."""
        running = {live.session: live for live in self._roster.running()}
        ended = []
        now_s = self._clock.monotonic()
        for line, account in tuple(self.ration.accounts.items()):
            live = running.get(line)
            if live is None or live.decoding != account.turn or live.decodes_since_s is None:
                self.ration.end(line)
                self._calling.discard(line)
                ended.append(Ended(line, account, now_s - account.since_s))
        for line, live in running.items():
            if live.decodes_since_s is not None:
                self.ration.begin(line, live.decoding, live.decodes_since_s)
        return ended

    def used(self, seconds: float, read: int) -> None:
        """A slice was used in the rounds that are open."""
        self.ration.charge(seconds)
        for opened in self._called:
            opened.used_s += seconds
            opened.read += read

    def answered(self, seconds: float) -> None:
        """A question was answered in the rounds that are open: whoever asked has decided that it is
        worth its time, so it is not the reader's."""
        for opened in self._called:
            opened.used_s += seconds

    def dismiss(self, opened: Round) -> None:
        """This round is over before anything was done in it; the others are not."""
        self._called.remove(opened)
        opened.closed.set()

    def close(self) -> None:
        """The rounds that are open are over."""
        self._piece_came = False
        for opened in self._called:
            opened.closed.set()
        self._called.clear()
