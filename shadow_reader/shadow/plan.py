"""What to do next: a pure function of the sessions, the waiting questions, the clock and the lease.

Laws:

1. A question that wants an answer now goes first, oldest first; then one whose session is fresh.
2. Nothing is read while the foreground is busy (a request holds or waits for the lease, or, unless
   the shadow has a device of its own, any turn runs).
3. Then: the session an open question waits for, the session whose turn runs, the most recent one.
4. A session whose state moves between memory and disk is left alone until it is there.
5. Nobody starves: of the sessions that waited longer than ``STARVED_S`` for a burst, the one that
   waited longest goes before 3, but never twice in a row: a crowd that starves must not starve a
   question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

STARVED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A question in line; ``asked_s`` is monotonic."""

    question: str
    session: str
    wait: Literal["fresh", "now"]
    asked_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session as the plan sees it.

    Attributes:
        known: durable known ids. committed: where the state stands.
        running: its turn runs. heard_s: last message, monotonic.
        unserved_s: since when it is behind without having been given a burst, monotonic.
        blocked: why it cannot be read now; empty when it can.
        moving: its state is on its way from the disk, or waits for room: nothing is done to it.
    """

    session: str
    known: int
    committed: int
    running: bool
    heard_s: float
    unserved_s: float
    blocked: str = ""
    moving: bool = False

    @property
    def behind(self) -> int:
        """Known ids that were not read."""
        return self.known - self.committed


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything the plan may look at.

    Attributes:
        lease_free: nobody holds or waits for the lease.
        turns_block: a running turn counts as foreground.
        starved_last: the last burst went to a session because it starved.
    """

    now_s: float
    grid: int
    lease_free: bool
    turns_block: bool
    starved_last: bool
    candidates: Sequence[Candidate]
    waiting: Sequence[Waiting]


@dataclass(frozen=True, slots=True)
class AnswerNext:
    """Answer this question now."""

    question: str


@dataclass(frozen=True, slots=True)
class ReadNext:
    """Read a burst of this session; ``starved``: because it waited too long (law 5)."""

    session: str
    starved: bool = False


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing may or need be done until something changes."""

    reason: Literal["fresh", "foreground"]


Action: TypeAlias = AnswerNext | ReadNext | Rest


def plan(now: Situation) -> Action:
    """The next thing to do."""
    if not now.lease_free:
        return Rest("foreground")
    question = answerable(now)
    if question is not None:
        return AnswerNext(question)
    behind = [c for c in now.candidates if c.behind >= now.grid and not (c.blocked or c.moving)]
    if not behind:
        return Rest("fresh")
    if now.turns_block and any(c.running for c in now.candidates):
        return Rest("foreground")
    return _most_urgent(now, behind)


def answerable(now: Situation) -> str | None:
    """The question that can be answered before anything more is read, if there is one."""
    fresh = {c.session: c.behind < now.grid for c in now.candidates if not c.moving}
    ready = [w for w in now.waiting if w.session in fresh and (w.wait == "now" or fresh[w.session])]
    if not ready:
        return None
    return min(ready, key=lambda w: (w.wait != "now", w.asked_s)).question


def _most_urgent(now: Situation, behind: Sequence[Candidate]) -> ReadNext:
    starved = [c for c in behind if now.now_s - c.unserved_s > STARVED_S]
    if starved and not now.starved_last:
        longest = min(starved, key=lambda c: (c.unserved_s, c.session))
        return ReadNext(longest.session, starved=True)
    asked: dict[str, float] = {}
    for w in now.waiting:
        asked[w.session] = min(w.asked_s, asked.get(w.session, w.asked_s))
    first = min(
        behind,
        key=lambda c: (
            asked.get(c.session, float("inf")),
            not c.running,
            -c.heard_s,
            c.session,
        ),
    )
    return ReadNext(first.session)
