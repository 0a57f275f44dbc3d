"""The roster: who is behind since when, who is left alone, who makes room, what is remembered."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.events.ids import Ids
from shadow_reader.events.view import MAX_CHECKPOINTS, MAX_PROMPT_ENDS, SessionView
from shadow_reader.shadow.plan import Candidate
from shadow_reader.shadow.roster import Roster, checkpoint_lines
from tests.fakes import GRID, FakeState, virtual
from tests.shadow.rig import Rig

ENDS = st.lists(st.integers(1, 400), max_size=MAX_PROMPT_ENDS, unique=True).map(sorted)


def view_with(*ends: int) -> SessionView:
    return SessionView("s", 0.0, 0.0, prompt_ends=ends)


def test_checkpoint_lines_by_example() -> None:
    assert checkpoint_lines(view_with(), GRID) == frozenset()
    assert checkpoint_lines(view_with(3, 7), GRID) == frozenset(), "0 needs none"
    assert checkpoint_lines(view_with(8), GRID) == {8}
    assert checkpoint_lines(view_with(9, 15, 16, 17), GRID) == {8, 16}
    many = [20 * n for n in range(1, 10)]
    assert checkpoint_lines(view_with(*many), GRID) == {20 * n // GRID * GRID for n in range(4, 10)}


@given(ENDS)
def test_checkpoint_lines_are_the_last_six_at_or_below_prompt_ends(ends: list[int]) -> None:
    lines = checkpoint_lines(view_with(*ends), GRID)
    due = sorted({end - end % GRID for end in ends} - {0}, reverse=True)
    assert lines == set(due[:MAX_CHECKPOINTS])


def standing(rig: Rig, session: str, read: int) -> None:
    """Put a state there."""
    rig.engine.states[session] = FakeState(read=Ids.of([1] * read))


@virtual
async def test_candidates_are_the_live_sessions_that_matter_as_they_stand() -> None:
    rig = Rig()
    roster = rig.reader.roster
    await rig.whole_turn("done", [1] * 20, "t1")
    standing(rig, "done", 16)
    await rig.whole_turn("behind", [1] * 100, "t1")
    await rig.prompt("running", [1] * 20, "t1")
    standing(rig, "running", 16)
    rig.journal.gate.clear()
    await rig.sessions.prompt("not committed", [1] * 30, turn="t1")
    await rig.sessions.output("running", "t1", offset=0, ids=[1] * 50)
    found = {c.session: c for c in roster.candidates()}
    assert found["behind"] == Candidate("behind", 100, 0, False, 0.0, 0.0)
    assert found["running"] == Candidate("running", 20, 16, True, 0.0, 0.0), "durable ids only"
    assert found["not committed"] == Candidate("not committed", 0, 0, True, 0.0, 0.0)
    assert "done" not in found
    (asked,) = (c for c in roster.candidates({"done", "nobody"}) if c.session == "done")
    assert asked == Candidate("done", 20, 16, False, 0.0, 0.0)
    rig.journal.gate.set()


@virtual
async def test_unserved_counts_from_when_it_fell_behind_or_had_its_last_burst() -> None:
    rig = Rig()
    roster = rig.reader.roster

    def unserved() -> float:
        (candidate,) = roster.candidates({"s"})
        return candidate.unserved_s

    await rig.whole_turn("s", [1] * 100, "t1")
    await rig.clock_to(5.0)
    assert unserved() == 5.0  # first seen behind now
    await rig.clock_to(9.0)
    assert unserved() == 5.0
    roster.notes("s").unserved_s = None  # a burst
    assert unserved() == 9.0
    standing(rig, "s", 96)
    await rig.clock_to(20.0)
    assert unserved() == 20.0  # fresh: nothing is waited for
    await rig.whole_turn("s", [1] * 200, "t2")
    await rig.clock_to(30.0)
    assert unserved() == 30.0


@virtual
async def test_a_block_is_lifted_by_the_next_message_alone() -> None:
    rig = Rig()
    roster = rig.reader.roster
    await rig.prompt("s", [1] * 100, "t1")
    await rig.prompt("other", [1] * 100, "t1")
    roster.block("s", "no room", rig.sessions.messages)

    def blocked() -> str:
        return next(c.blocked for c in roster.candidates() if c.session == "s")

    assert blocked() == "no room"
    await rig.end("other", "t1")
    await rig.clock_to(1000.0)
    assert blocked() == "no room"
    await rig.output("s", "t1", 0, [1])
    assert blocked() == ""
    # One that came while the failing job ran counts, although the block is set after it.
    seen = rig.sessions.messages
    await rig.output("s", "t1", 1, [1])
    roster.block("s", "no room", seen)
    assert blocked() == ""


@virtual
async def test_the_victim_is_the_resident_not_heard_of_for_longest_and_never_a_younger_one() -> (
    None
):
    rig = Rig()
    roster = rig.reader.roster
    for at, name in enumerate(("a", "b", "c", "d")):
        await rig.clock_to(float(at))
        await rig.whole_turn(name, [1] * 20, "t1")
        roster.notes(name)
    for name in ("b", "c", "d"):
        standing(rig, name, 16)
    assert roster.victim("d") == "b"
    assert roster.victim("c") == "b"
    assert roster.victim("b") is None, "c and d are younger"
    assert roster.victim("a") is None
    assert roster.victim("nobody") is None
    # A state whose session left memory goes before all others.
    roster.notes("gone")
    standing(rig, "gone", 16)
    assert roster.victim("b") == "gone"
    del rig.engine.states["gone"]
    assert roster.victim("b") is None


@virtual
async def test_fresh_is_committed_and_compared_and_less_than_a_chunk_behind() -> None:
    rig = Rig()
    roster = rig.reader.roster
    await rig.whole_turn("s", [1] * 23, "t1")
    live = rig.sessions.peek("s")
    assert live is not None
    standing(rig, "s", 16)
    cases = [(1, 16, True), (0, 16, False), (1, 8, False)]
    for turns, read, fresh in cases:
        roster.notes("s").aligned_turns = turns
        standing(rig, "s", read)
        assert roster.fresh(live) is fresh
    assert live.durable is not None
    live.durable = replace(live.durable, known=live.durable.known.extend(Ids.of([1])))
    standing(rig, "s", 16)
    assert not roster.fresh(live)
    live.durable = None
    assert not roster.fresh(live)


@virtual
async def test_notes_go_with_the_last_of_memory_and_state() -> None:
    rig = Rig(capacity=1)
    roster: Roster = rig.reader.roster
    await rig.whole_turn("s", [1] * 20, "t1")
    standing(rig, "s", 16)
    roster.notes("s").mismatches = 3
    await rig.whole_turn("other", [1], "t1")  # "s" leaves memory
    roster.prune()
    assert roster.notes("s").mismatches == 3
    del rig.engine.states["s"]
    roster.notes("other")  # so many notes that some must be of nobody
    roster.prune()
    assert roster.notes("s").mismatches == 0
    roster.notes("other").mismatches = 1
    roster.forget("other")
    assert roster.notes("other").mismatches == 0
