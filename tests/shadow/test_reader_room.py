"""The reader under its memory cap, without a disk: who goes, and who is told."""

from __future__ import annotations

import asyncio

from shadow_reader.errors import ShadowError
from shadow_reader.events import types as t
from tests.fakes import GRID, FakeEngine, settle, virtual
from tests.shadow.rig import CHUNK_S, Rig, ids, quiet, units


@virtual
async def test_who_was_not_heard_of_for_longest_makes_room() -> None:
    rig = Rig(engine=FakeEngine(cap=3 * units(10))).start()
    for name in ("a", "b", "c"):
        await rig.whole_turn(name, ids(10 * GRID), "t1")
        await quiet(10)
    await rig.whole_turn("a", ids(10 * GRID + 1), "t2")  # heard of again
    await quiet(10)
    await rig.whole_turn("d", ids(10 * GRID), "t1")
    await quiet()
    assert set(rig.engine.states) == {"a", "c", "d"}
    assert await rig.events("b", t.Dropped) == [t.Dropped("cap", 10 * GRID)]
    assert rig.reader.roster.notes("b").blocked
    assert rig.engine.peak <= rig.engine.cap
    # Its next message brings it back, and pushes out the next one in line.
    await rig.whole_turn("b", ids(10 * GRID), "t2")
    await quiet()
    assert set(rig.engine.states) == {"a", "b", "d"}
    rig.assert_exact("b")
    for name in "abcd":
        await rig.check_laws(name)
    await rig.stop()


@virtual
async def test_two_sessions_that_do_not_fit_together_do_not_push_each_other_out_in_turns() -> None:
    rig = Rig(engine=FakeEngine(cap=units(10))).start()
    await rig.whole_turn("a", ids(9 * GRID), "t1")
    await rig.whole_turn("b", ids(9 * GRID, seed=1), "t1")
    await quiet(3600)
    assert len(rig.engine.states) == 1
    dropped = await rig.events("a", t.Dropped) + await rig.events("b", t.Dropped)
    assert len(dropped) <= 1
    assert rig.reader.looks < 20
    for _ in range(5):
        await rig.whole_turn("a", ids(9 * GRID), f"t{rig.reader.looks}")
        await quiet(100)
    # Each message may bring one exchange of the two, never more.
    dropped = await rig.events("a", t.Dropped) + await rig.events("b", t.Dropped)
    assert len(dropped) <= 6
    rig.assert_exact("a")
    await rig.stop()


@virtual
async def test_a_session_that_is_too_large_alone_is_read_as_far_as_it_goes_and_told() -> None:
    rig = Rig(engine=FakeEngine(cap=6)).start()
    await rig.whole_turn("s", ids(20 * GRID), "t1")
    asking = rig.ask("s")
    (result,) = await settle(asking)
    assert isinstance(result, ShadowError)
    assert result.code == "out_of_room"
    assert "units are taken" in rig.reader.roster.notes("s").blocked
    assert rig.engine.state_stats("s") is not None
    await quiet()
    assert rig.reader.looks < 20
    # What was read can still be asked, when there is room for the fork.
    rig.engine.cap = 100
    reply = await rig.ask("s", wait="now")
    assert reply.position >= 5 * GRID
    await quiet()
    rig.assert_exact("s")  # the question was a message: it was tried again
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_states_of_sessions_that_left_memory_go_first_and_do_not_come_back() -> None:
    """To journal that it was dropped, a session is loaded: that is not news of it."""
    rig = Rig(engine=FakeEngine(cap=2 * units(10)), capacity=2).start()
    for name in ("a", "b"):
        await rig.whole_turn(name, ids(10 * GRID), "t1")
        await quiet(10)
    await rig.whole_turn("c", ids(10 * GRID), "t1")  # "a" leaves memory; its state stays
    await quiet(3600)
    assert set(rig.engine.states) == {"b", "c"}
    assert await rig.events("a", t.Dropped) == [t.Dropped("cap", 10 * GRID)]
    reads = [read for name in "abc" for read in await rig.events(name, t.Read)]
    assert sum(read.stop - read.start for read in reads) == 30 * GRID, "nobody was read twice"
    await rig.stop()


@virtual
async def test_a_session_erased_while_room_is_made_for_it_leaves_no_state() -> None:
    for moment in range(1, 10):
        rig = Rig(engine=FakeEngine(cap=units(10)), turns_block=False).start()
        rig.device.costs["drop"] = CHUNK_S
        await rig.whole_turn("old", ids(9 * GRID), "t1")
        await quiet(10)
        await rig.whole_turn("s", ids(9 * GRID), "t1")
        await asyncio.sleep(0.0511 * moment)
        await rig.erase("s")
        await quiet()
        assert "s" not in rig.engine.states
        await rig.stop()


@virtual
async def test_law_5_holds_while_room_is_made() -> None:
    for moment in range(1, 10):
        rig = Rig(engine=FakeEngine(cap=units(10)), turns_block=False).start()
        await rig.whole_turn("old", ids(9 * GRID), "t1")
        await quiet(10)
        await rig.whole_turn("s", ids(9 * GRID), "t1")
        asking = rig.ask("s")
        await asyncio.sleep(0.0511 * moment)
        began = rig.clock.monotonic()
        async with rig.lease.request():
            assert rig.clock.monotonic() - began <= CHUNK_S + 1e-6
        await asking
        rig.assert_exact("s")
        await rig.stop()


@virtual
async def test_a_checkpoint_that_finds_no_room_is_left_out() -> None:
    rig = Rig(engine=FakeEngine(cap=11)).start()
    await rig.whole_turn("s", ids(10 * GRID), "t1")
    await quiet()
    rig.assert_exact("s")
    assert await rig.events("s", t.Checkpoint) == []
    await rig.stop()


@virtual
async def test_notes_are_kept_of_nobody_who_is_gone() -> None:
    rig = Rig(capacity=2).start()
    for number in range(20):
        await rig.whole_turn(f"s{number}", ids(3), "t1")
        await quiet(1)
    assert len(rig.reader.roster._notes) <= 3
    await rig.stop()
