"""The plan: pure, one table per law, and long simulated runs in which nobody starves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.shadow.plan import (
    STARVED_S,
    Action,
    AnswerNext,
    Candidate,
    ReadNext,
    Rest,
    Situation,
    Waiting,
    answerable,
    plan,
)

GRID = 512


def behind(session: str, chunks: int = 10, **changes: Any) -> Candidate:
    """A session ``chunks`` chunks behind, heard of just now, served just now."""
    made = Candidate(
        session=session,
        known=chunks * GRID,
        committed=0,
        running=False,
        heard_s=1000.0,
        unserved_s=1000.0,
    )
    return replace(made, **changes)


def fresh(session: str, **changes: Any) -> Candidate:
    """A session with a pending tail alone."""
    return behind(session, known=GRID - 1, **changes)


def asks(question: str, session: str, wait: str = "fresh", asked_s: float = 1000.0) -> Waiting:
    return Waiting(question, session, "now" if wait == "now" else "fresh", asked_s)


def situation(
    *candidates: Candidate,
    waiting: tuple[Waiting, ...] = (),
    lease_free: bool = True,
    turns_block: bool = True,
    starved_last: bool = False,
    now_s: float = 1000.0,
) -> Situation:
    return Situation(now_s, GRID, lease_free, turns_block, starved_last, candidates, waiting)


TABLE: dict[str, tuple[Situation, Action]] = {
    # 1: questions
    "now goes before fresh, however old": (
        situation(
            fresh("a"), waiting=(asks("old", "a", asked_s=1.0), asks("new", "a", "now", 999.0))
        ),
        AnswerNext("new"),
    ),
    "of those that want it now, the oldest": (
        situation(behind("a"), waiting=(asks("2", "a", "now", 2.0), asks("1", "a", "now", 1.0))),
        AnswerNext("1"),
    ),
    "of those whose session is fresh, the oldest": (
        situation(fresh("a"), fresh("b"), waiting=(asks("2", "a", asked_s=2.0), asks("1", "b"))),
        AnswerNext("2"),
    ),
    "a fresh session's question goes before reading": (
        situation(behind("a"), fresh("b"), waiting=(asks("q", "b"),)),
        AnswerNext("q"),
    ),
    "a question on a session that is behind is not answered yet": (
        situation(behind("a"), fresh("b"), waiting=(asks("q", "a"),)),
        ReadNext("a"),
    ),
    "a question may be answered while a turn runs": (
        situation(fresh("a", running=True), behind("b"), waiting=(asks("q", "a"),)),
        AnswerNext("q"),
    ),
    "a question on a session that is not in view waits": (
        situation(fresh("a"), waiting=(asks("q", "gone", "now"),)),
        Rest("fresh"),
    ),
    "a blocked session is still asked on top of what was read": (
        situation(behind("a", blocked="no room"), waiting=(asks("q", "a", "now"),)),
        AnswerNext("q"),
    ),
    # 2: the foreground
    "no question while a request has the lease": (
        situation(fresh("a"), waiting=(asks("q", "a", "now"),), lease_free=False),
        Rest("foreground"),
    ),
    "no reading while a request has the lease": (
        situation(behind("a"), lease_free=False, turns_block=False),
        Rest("foreground"),
    ),
    "no reading while any turn runs": (
        situation(behind("a"), fresh("b", running=True)),
        Rest("foreground"),
    ),
    "reading while turns run, on a device of its own": (
        situation(behind("a"), fresh("b", running=True), turns_block=False),
        ReadNext("a"),
    ),
    "nothing to read is said before the foreground": (
        situation(fresh("a", running=True)),
        Rest("fresh"),
    ),
    # 3: whose turn it is
    "the session a question waits for, the oldest first": (
        situation(
            behind("a", running=True, heard_s=1000.0),
            behind("b", heard_s=1.0),
            behind("c", heard_s=2.0),
            waiting=(asks("2", "c", asked_s=20.0), asks("1", "b", asked_s=10.0)),
            turns_block=False,
        ),
        ReadNext("b"),
    ),
    "a session's oldest question counts": (
        situation(
            behind("a"),
            behind("b"),
            waiting=(
                asks("1", "b", asked_s=30.0),
                asks("2", "a", asked_s=20.0),
                asks("3", "b", asked_s=10.0),
            ),
        ),
        ReadNext("b"),
    ),
    "then the session whose turn runs": (
        situation(
            behind("a", heard_s=1000.0), behind("b", running=True, heard_s=1.0), turns_block=False
        ),
        ReadNext("b"),
    ),
    "then the most recent": (
        situation(behind("a", heard_s=1.0), behind("b", heard_s=3.0), behind("c", heard_s=2.0)),
        ReadNext("b"),
    ),
    "less than a chunk is nothing to read": (
        situation(behind("a", known=2 * GRID - 1, committed=GRID)),
        Rest("fresh"),
    ),
    "exactly a chunk is": (
        situation(behind("a", known=2 * GRID, committed=GRID)),
        ReadNext("a"),
    ),
    "a state past the known ids is nothing to read": (
        situation(behind("a", known=GRID, committed=9 * GRID)),
        Rest("fresh"),
    ),
    "what is blocked is left alone": (
        situation(behind("a", blocked="no room"), behind("b", heard_s=0.0)),
        ReadNext("b"),
    ),
    "all blocked is rest": (situation(behind("a", blocked="no room")), Rest("fresh")),
    "nobody at all is rest": (situation(), Rest("fresh")),
    # 4: starving
    "who waited too long goes before the question's session": (
        situation(
            behind("a"), behind("b", unserved_s=1000.0 - STARVED_S - 1), waiting=(asks("q", "a"),)
        ),
        ReadNext("b", starved=True),
    ),
    "of those, who waited longest": (
        situation(behind("a", unserved_s=10.0), behind("b", unserved_s=9.0)),
        ReadNext("b", starved=True),
    ),
    "exactly the limit is not too long": (
        situation(behind("a"), behind("b", heard_s=0.0, unserved_s=1000.0 - STARVED_S)),
        ReadNext("a"),
    ),
    "but never twice in a row": (
        situation(
            behind("a"), behind("b", unserved_s=1.0), waiting=(asks("q", "a"),), starved_last=True
        ),
        ReadNext("a"),
    ),
    "starving changes nothing about the foreground": (
        situation(behind("a", unserved_s=1.0), fresh("b", running=True)),
        Rest("foreground"),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name: str) -> None:
    now, expected = TABLE[name]
    assert plan(now) == expected


CANDIDATES = st.builds(
    Candidate,
    session=st.sampled_from("abcdef"),
    known=st.integers(0, 4 * GRID),
    committed=st.integers(0, 4).map(lambda k: k * GRID),
    running=st.booleans(),
    heard_s=st.floats(0, 1000) | st.just(float("-inf")),
    unserved_s=st.floats(900, 1000),
    blocked=st.sampled_from(["", "no room"]),
)
WAITING = st.builds(
    Waiting,
    question=st.uuids().map(str),
    session=st.sampled_from("abcdefg"),
    wait=st.sampled_from(["fresh", "now"]),
    asked_s=st.floats(0, 1000),
)
SITUATIONS = st.builds(
    Situation,
    now_s=st.just(1000.0),
    grid=st.just(GRID),
    lease_free=st.booleans(),
    turns_block=st.booleans(),
    starved_last=st.booleans(),
    candidates=st.lists(CANDIDATES, max_size=6, unique_by=lambda c: c.session),
    waiting=st.lists(WAITING, max_size=5),
)


@given(SITUATIONS)
def test_never_reads_in_the_foreground_and_answers_first(now: Situation) -> None:
    action = plan(now)
    by_name = {c.session: c for c in now.candidates}
    busy = now.turns_block and any(c.running for c in now.candidates)
    if not now.lease_free:
        assert action == Rest("foreground")
        return
    ready = answerable(now)
    assert (ready is not None) == isinstance(action, AnswerNext)
    if isinstance(action, AnswerNext):
        asked = next(w for w in now.waiting if w.question == action.question)
        found = by_name[asked.session]
        assert asked.wait == "now" or found.known - found.committed < GRID
        wants_now = [w for w in now.waiting if w.wait == "now" and w.session in by_name]
        if wants_now:
            assert asked.asked_s == min(w.asked_s for w in wants_now)
    elif isinstance(action, ReadNext):
        found = by_name[action.session]
        assert not busy
        assert found.known - found.committed >= GRID
        assert not found.blocked
    else:
        readable = [c for c in now.candidates if c.known - c.committed >= GRID and not c.blocked]
        assert busy or not readable, "there was something to read, and nobody in the way"


@given(SITUATIONS, st.randoms(use_true_random=False))
def test_it_is_pure_and_the_order_of_the_lists_does_not_matter(now: Situation, rng: Random) -> None:
    before = repr(now)
    first = plan(now)
    assert repr(now) == before
    shuffled = list(now.candidates)
    rng.shuffle(shuffled)
    assert plan(replace(now, candidates=shuffled)) == first == plan(now)


@dataclass
class Run:
    """A simulated service: bursts take their time, and every one is counted."""

    burst_s: float = 2.0
    chunk_s: float = 0.1
    now_s: float = 0.0
    starved_last: bool = False
    sessions: dict[str, Candidate] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    longest: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)

    def step(self) -> None:
        action = plan(
            Situation(
                self.now_s,
                GRID,
                True,
                False,
                self.starved_last,
                list(self.sessions.values()),
                tuple(self.waiting),
            )
        )
        if isinstance(action, AnswerNext):
            self.answered[action.question] = self.now_s
            self.waiting = [w for w in self.waiting if w.question != action.question]
            self.now_s += 0.01
        elif isinstance(action, ReadNext):
            self.starved_last = action.starved
            self.read(action.session)
        else:
            self.now_s += 0.2

    def read(self, name: str) -> None:
        c = self.sessions[name]
        self.longest[name] = max(self.longest.get(name, 0.0), self.now_s - c.unserved_s)
        self.served[name] += 1
        chunks = min((c.known - c.committed) // GRID, int(self.burst_s / self.chunk_s))
        self.now_s += chunks * self.chunk_s
        self.sessions[name] = replace(
            c, committed=c.committed + chunks * GRID, unserved_s=self.now_s
        )


def test_a_session_that_is_never_fresh_starves_nobody() -> None:
    """A nonce early in each prompt: the running session never comes to its end."""
    run = Run()
    run.sessions["nonce"] = behind("nonce", 10_000, running=True, unserved_s=0.0)
    for number in range(12):
        name = f"s{number:02}"
        run.sessions[name] = behind(name, 100, heard_s=float(number), unserved_s=0.0)
    while run.now_s < 3000:
        run.step()
        # It grows faster than it is read.
        nonce = run.sessions["nonce"]
        run.sessions["nonce"] = replace(nonce, committed=0, heard_s=run.now_s)
    others = [c for name, c in run.sessions.items() if name != "nonce"]
    assert all(c.known - c.committed < GRID for c in others), "everybody else is fresh at last"
    # A round of twelve, every other burst, on top of the limit.
    assert max(run.longest[c.session] for c in others) <= STARVED_S + 2 * 12 * run.burst_s + 2
    assert run.served["nonce"] > 100


def test_a_crowd_that_starves_does_not_starve_a_question() -> None:
    run = Run()
    for number in range(40):
        name = f"s{number:02}"
        run.sessions[name] = behind(name, 2000, heard_s=float(number), unserved_s=-100.0)
    run.sessions["asked"] = behind("asked", 100, heard_s=-1.0, unserved_s=0.0)
    run.waiting.append(asks("q", "asked", asked_s=0.0))
    while "q" not in run.answered:
        run.step()
    # Five bursts of its own, and at most as many of others between them.
    assert run.answered["q"] <= 2 * 5 * run.burst_s + 1


def test_questions_that_never_end_keep_nobody_from_being_read_for_ever() -> None:
    run = Run()
    run.sessions["asked"] = behind("asked", 100_000, unserved_s=0.0)
    run.sessions["quiet"] = behind("quiet", 100, heard_s=0.0, unserved_s=0.0)
    run.waiting = [asks(f"q{n}", "asked", asked_s=float(n)) for n in range(5)]
    while run.now_s < 400:
        run.step()
    quiet = run.sessions["quiet"]
    assert quiet.known - quiet.committed < GRID
