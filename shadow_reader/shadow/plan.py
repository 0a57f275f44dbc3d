"""What to do next: a pure function of the sessions, the waiting questions, the clock and the lease.

Laws:

1. A question that wants an answer now goes first, oldest first; then one whose session is fresh, or
   was read to the grid line at or below the ids that it is about, before anything more is read.
   One that nobody waits for goes last, and only where its session might be read.
2. Nothing is read while the foreground is busy (a request holds or waits for the lease, or, unless
   the shadow has a device of its own, any turn runs) or a hold is on. In between lie rounds: an
   engine that pauses, or a stream's next piece, lets the reader have what the ration allows, if
   the next chunk's cost fits into it and into a slice.
3. Then: the session an open question waits for, the session whose turn runs, the most recent one.
4. A session whose state moves between memory and disk is left alone until it is there.
5. Nobody starves: of the sessions that waited longer than ``STARVED_S`` for a burst, the one that
   waited longest goes before 3, but never twice in a row: a crowd that starves must not starve a
   question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, assert_never

STARVED_S: Final = 30.0


When: TypeAlias = Literal["fresh", "now", "position"]
"""On top of what a question is answered: all known ids, those that are read, or so many."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A question in line; ``asked_s`` is monotonic.

    Attributes:
        position: ids that it is about, where it waits for one.
        patient: nobody waits for its answer: it takes no time from anybody but the reader.
    """

    question: str
    session: str
    wait: When
    asked_s: float
    position: int = 0
    patient: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session as the plan sees it.

    Attributes:
        known: durable known ids. committed: where the state stands.
        running: its turn runs. heard_s: last message, monotonic.
        unserved_s: since when it is behind without having been given a burst, monotonic.
        blocked: why it cannot be read now; empty when it can.
        cost_s: what its next chunk will take, about; None: not known yet.
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
    cost_s: float | None = None

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
        held: a hold is on.
        round_s: a round is open, and so much may be used in it; None: none is.
        lendable: the lease is held by requests alone, and nobody waits for it.
        slice_s: most that is used in one round.
    """

    now_s: float
    grid: int
    lease_free: bool
    turns_block: bool
    starved_last: bool
    candidates: Sequence[Candidate]
    waiting: Sequence[Waiting]
    held: bool = False
    round_s: float | None = None
    lendable: bool = False
    slice_s: float = 0.15

    @property
    def foreground(self) -> bool:
        """Whether the device is somebody else's but for rounds."""
        turns = self.turns_block and any(c.running for c in self.candidates)
        return turns or not self.lease_free

    def fits(self, cost_s: float | None) -> bool:
        """Whether a chunk of that cost may be read in the round that is open; one of a cost that
        nobody knows may when a whole slice is allowed."""
        cost_s = self.slice_s if cost_s is None else cost_s
        return self.round_s is not None and cost_s <= min(self.round_s, self.slice_s)


@dataclass(frozen=True, slots=True)
class AnswerNext:
    """Answer this question now."""

    question: str


@dataclass(frozen=True, slots=True)
class ReadNext:
    """Read a burst of this session; ``starved``: because it waited too long (law 5).

    ``rationed``: in a round, as much as it allows.
    """

    session: str
    starved: bool = False
    rationed: bool = False


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing may or need be done until something changes."""

    reason: Literal["fresh", "foreground", "hold", "ration"]


Action: TypeAlias = AnswerNext | ReadNext | Rest


def plan(now: Situation) -> Action:
    """The next thing to do."""
    in_round = now.lendable and now.round_s is not None and now.round_s > 0
    if not (now.lease_free or in_round):
        return Rest("foreground")
    question = answerable(now)
    if question is not None:
        return AnswerNext(question)
    behind = [c for c in now.candidates if c.behind >= now.grid and not (c.blocked or c.moving)]
    if not behind:
        return Rest("fresh")
    if now.held:
        return Rest("hold")
    chosen = _most_urgent(now, behind)
    if not now.foreground:
        return chosen
    if now.round_s is None:
        return Rest("foreground")
    cost_s = next(c.cost_s for c in behind if c.session == chosen.session)
    return replace(chosen, rationed=True) if now.fits(cost_s) else Rest("ration")


def answerable(now: Situation) -> str | None:
    """The question that can be answered before anything more is read, if there is one."""
    there = {c.session: c for c in now.candidates if not c.moving} if now.waiting else {}
    ready = [w for w in now.waiting if w.session in there and _ready(now, w, there[w.session])]
    if not ready:
        return None
    return min(ready, key=lambda w: (w.patient, w.wait != "now", w.asked_s)).question


def _ready(now: Situation, waiting: Waiting, candidate: Candidate) -> bool:
    if waiting.patient and (now.held or (now.foreground and not now.fits(candidate.cost_s))):
        return False
    match waiting.wait:
        case "now":
            return True
        case "fresh":
            return candidate.behind < now.grid
        case "position":
            return candidate.committed >= waiting.position // now.grid * now.grid
        case _:
            assert_never(waiting.wait)


def _most_urgent(now: Situation, behind: Sequence[Candidate]) -> ReadNext:
    starved = [c for c in behind if now.now_s - c.unserved_s > STARVED_S]
    if starved and not now.starved_last:
        longest = min(starved, key=lambda c: (c.unserved_s, c.session))
        return ReadNext(longest.session, starved=True)
    asked: dict[str, float] = {}
    for w in now.waiting:
        if w.patient:
            continue
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
