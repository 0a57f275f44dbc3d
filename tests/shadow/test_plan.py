"""The plan: pure, one table per law, and long simulated runs in which nobody starves."""

from __future__ import annotations

from dataclasses import replace
from random import Random

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
from tests.shadow.situations import GRID, asks, asks_at, behind, fresh


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
    "a position is answered at the line below it, before anything more is read": (
        situation(behind("a", committed=2 * GRID), waiting=(asks_at("q", "a", 2 * GRID + 9),)),
        AnswerNext("q"),
    ),
    "and when the state stands above": (
        situation(behind("a", committed=3 * GRID), waiting=(asks_at("q", "a", 2 * GRID),)),
        AnswerNext("q"),
    ),
    "a position that is not reached is read for": (
        situation(
            behind("a", committed=GRID, heard_s=1.0),
            behind("b", heard_s=2.0),
            waiting=(asks_at("q", "a", 2 * GRID),),
        ),
        ReadNext("a"),
    ),
    "who is patient does not have its session read first": (
        situation(
            behind("a", committed=GRID, heard_s=1.0),
            behind("b", heard_s=2.0),
            waiting=(asks_at("q", "a", 2 * GRID, patient=True),),
        ),
        ReadNext("b"),
    ),
    "who is patient goes behind everybody who waits, and before reading": (
        situation(
            behind("a"),
            waiting=(asks_at("q", "a", 3, patient=True, asked_s=1.0), asks("r", "a", "now")),
        ),
        AnswerNext("r"),
    ),
    "who is patient is answered in an idle window": (
        situation(behind("a"), waiting=(asks_at("q", "a", 3, patient=True),)),
        AnswerNext("q"),
    ),
    "who is patient is not answered while a turn runs": (
        situation(fresh("a", running=True), waiting=(asks_at("q", "a", 3, patient=True),)),
        Rest("fresh"),
    ),
    "but in a round that affords a chunk": (
        replace(
            situation(
                fresh("a", running=True, cost_s=0.04),
                waiting=(asks_at("q", "a", 3, patient=True),),
            ),
            round_s=0.04,
        ),
        AnswerNext("q"),
    ),
    "not in one that does not": (
        replace(
            situation(
                fresh("a", running=True, cost_s=0.05),
                waiting=(asks_at("q", "a", 3, patient=True),),
            ),
            round_s=0.04,
        ),
        Rest("fresh"),
    ),
    "who is patient waits for the end of a hold": (
        replace(situation(fresh("a"), waiting=(asks_at("q", "a", 3, patient=True),)), held=True),
        Rest("fresh"),
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
