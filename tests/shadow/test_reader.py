"""The reader loop under virtual time: what it reads and journals, when it sleeps and wakes."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.errors import NotFoundError, ShutDownError
from shadow_reader.events import types as t
from tests.fake_journal import FlakyJournal
from tests.fakes import GRID, settle, steps, virtual
from tests.shadow.rig import BURST_CHUNKS, BURST_S, CHUNK_S, RECENT_SESSIONS, Rig, ids, quiet

# -- following ---------------------------------------------------------------------------------


@virtual
async def test_follows_prompts_and_outputs_until_fresh() -> None:
    rig = Rig().start()
    known = ids(100)
    for turn in range(6):
        output = ids(30, seed=turn + 1)
        await rig.whole_turn("s", known, f"t{turn}", output)
        await rig.reader.wait_fresh("s")
        rig.assert_exact("s")
        known += output + ids(5, seed=50 + turn)
    assert rig.engine.chunks() == (len(known) - 5) // GRID, "nothing was read twice"
    assert await rig.events("s", t.Rewind) == []
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_one_read_event_a_burst_and_its_window() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(3 * BURST_CHUNKS * GRID + 5), "t")
    await quiet()
    # The prompt's own checkpoint comes at the very end, so that bursts are whole events.
    reads = await rig.events("s", t.Read)
    burst = BURST_CHUNKS * GRID
    assert [(r.start, r.stop, r.window) for r in reads] == [
        (0, burst, "idle"),
        (burst, 2 * burst, "idle"),
        (2 * burst, 3 * burst, "idle"),
    ]
    assert all(r.ms == pytest.approx(1000 * BURST_S) for r in reads)
    await rig.whole_turn("s", ids(3 * BURST_CHUNKS * GRID + 40), "t2")
    await rig.ask("s")
    assert (await rig.events("s", t.Read))[-1].window == "question"
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_checkpoints_lie_at_the_last_grid_line_at_or_below_each_prompt_s_end() -> None:
    rig = Rig().start()
    lines = []
    known: list[int] = []
    for turn, length in enumerate((3, 8, 9, 20, 24, 40, 41, 63, 64, 65)):
        known = ids(length)
        await rig.whole_turn("s", known, f"t{turn}", ids(2, seed=turn + 1))
        lines.append(length // GRID * GRID)
        # Each prompt continues the ids of the one before, whose output it drops.
        await quiet()
    marks = [c.position for c in await rig.events("s", t.Checkpoint)]
    # The last line is not left yet by a state that stood there before its prompt came.
    assert marks == [8, 16, 24, 40, 56, 64]
    assert set(marks) <= set(lines)
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_line_that_is_reached_before_its_prompt_ends_there_is_not_missed() -> None:
    """The next prompt ends in the chunk where the output before it ended."""
    rig = Rig().start()
    known = ids(20)
    await rig.whole_turn("s", known, "t1", ids(23, seed=1))
    await quiet()
    assert len(rig.read_of("s")) == 40
    known = [*known, *ids(23, seed=1), 5]
    await rig.whole_turn("s", known, "t2", ids(20, seed=2))
    await quiet()
    stats = rig.engine.state_stats("s")
    assert stats is not None
    assert stats.checkpoints == (16, 40)
    # And a rewind to there reads nothing again below it.
    await rig.whole_turn("s", [*known, 6, 6, 6, 6, 6, 6, 6], "t3")
    await quiet()
    (rewind,) = await rig.events("s", t.Rewind)
    assert (rewind.cut, rewind.to, rewind.reread) == (44, 40, 4)
    rig.assert_exact("s")
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_fresh_start_takes_the_checkpoints_of_the_last_six_prompts_in_passing() -> None:
    rig = Rig()
    for turn in range(9):
        await rig.whole_turn("s", ids(20 * (turn + 1)), f"t{turn}")
    rig.start()
    await quiet()
    marks = [c.position for c in await rig.events("s", t.Checkpoint)]
    assert marks == [20 * (turn + 1) // GRID * GRID for turn in range(3, 9)]
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_rewinds_go_back_no_further_than_they_must_and_say_so() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(35), "t1")
    await quiet()
    await rig.whole_turn("s", ids(83), "t2", ids(30, seed=1))
    await quiet()
    chunks = rig.engine.chunks()
    cases = [
        # (prompt, cut, to): the reasoning of the last turn dropped; a change deep in the prompt;
        # a change before every checkpoint; a shorter prompt.
        ([*ids(83), *ids(40, seed=2)], 83, 80),
        ([*ids(50), *ids(40, seed=3)], 50, 32),
        ([*ids(3), *ids(90, seed=4)], 3, 0),
        ([*ids(3), *ids(50, seed=4)], 53, 0),
    ]
    for number, (prompt, cut, to) in enumerate(cases):
        await rig.whole_turn("s", prompt, f"r{number}")
        await quiet()
        rewind = (await rig.events("s", t.Rewind))[-1]
        assert (rewind.cut, rewind.to, rewind.reread) == (cut, to, cut - to), number
        rig.assert_exact("s")
        chunks += len(prompt) // GRID - to // GRID
        assert rig.engine.chunks() == chunks
    assert len(await rig.events("s", t.Rewind)) == len(cases)
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_fresh_is_not_said_before_new_ids_were_compared_with_what_was_read() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(43), "t1")
    await rig.reader.wait_fresh("s")
    rig.assert_exact("s")
    await rig.whole_turn("s", ids(43, seed=1), "t2")
    live = rig.sessions.peek("s")
    assert live is not None
    assert not rig.reader.roster.fresh(live)
    await rig.reader.wait_fresh("s")
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_a_change_above_what_was_read_costs_nothing() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(43), "t1")
    await quiet()
    await rig.whole_turn("s", [*ids(41), 1, 2, 3], "t2")
    await rig.whole_turn("s", [*ids(40), 9], "t3")
    await quiet()
    assert rig.engine.chunks() == 5
    assert await rig.events("s", t.Rewind) == []
    await rig.stop()


@virtual
async def test_a_prompt_that_changes_while_it_is_read_is_followed() -> None:
    rig = Rig(turns_block=False).start()
    await rig.prompt("s", ids(1000), "t1")
    await asyncio.sleep(5.05)  # in the middle of a chunk of the third burst
    await rig.prompt("s", [*ids(100), *ids(900, seed=1)], "t2")
    await rig.end("s", "t2")
    await quiet()
    rig.assert_exact("s")
    (rewind,) = await rig.events("s", t.Rewind)
    assert rewind.cut == 100
    await rig.check_laws("s")
    await rig.stop()


# -- sleeping and waking -----------------------------------------------------------------------


@virtual
async def test_it_does_not_spin_when_there_is_nothing_to_do() -> None:
    rig = Rig().start()
    await quiet(10_000)
    assert rig.reader.looks == 1
    await rig.whole_turn("s", ids(100), "t1")
    await quiet(10_000)
    rounds = rig.reader.looks
    assert rounds < 12
    await quiet(50_000)
    assert rig.reader.looks == rounds
    await rig.stop()


@virtual
async def test_who_waits_for_fresh_does_not_make_it_spin() -> None:
    rig = Rig(turns_block=True).start()
    await rig.prompt("s", ids(100), "t1")
    waiting = [asyncio.create_task(rig.reader.wait_fresh("s")) for _ in range(3)]
    await steps(500)
    rounds = rig.reader.looks
    assert rounds < 10
    await steps(500)
    assert rig.reader.looks == rounds
    await rig.end("s", "t1")
    await asyncio.gather(*waiting)
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_no_iteration_without_an_await_while_a_prompt_is_not_committed_yet() -> None:
    """What the plan calls foreground and what a burst calls foreground must be the same."""
    rig = Rig(turns_block=True).start()
    await rig.whole_turn("s", ids(400), "t1")
    rig.journal.gate.clear()
    await rig.sessions.prompt("new", ids(5), turn="t1")
    rounds = rig.reader.looks
    await quiet(100)
    assert rig.reader.looks < rounds + 5
    rig.journal.gate.set()
    await rig.stop()


@virtual
async def test_wait_fresh_of_nobody_and_of_somebody_who_goes() -> None:
    rig = Rig().start()
    with pytest.raises(NotFoundError):
        await rig.reader.wait_fresh("nobody")
    await rig.prompt("s", ids(100), "t1")
    waiting = asyncio.create_task(rig.reader.wait_fresh("s"))
    await quiet(10)
    await rig.erase("s")
    assert isinstance((await settle(waiting))[0], NotFoundError)
    await rig.stop()


@virtual
async def test_starts_with_the_sessions_last_heard_of_newest_first() -> None:
    journal = FlakyJournal()
    before = Rig(journal)
    for number in range(RECENT_SESSIONS + 5):
        await before.whole_turn(f"s{number:02}", ids(20, seed=number), "t1")
        await asyncio.sleep(1)
    rig = Rig(journal).start()
    await quiet()
    expected = [f"s{number:02}" for number in reversed(range(5, RECENT_SESSIONS + 5))]
    read = [name for method, name in rig.engine.calls if method == "read_chunk"]
    assert list(dict.fromkeys(read)) == expected
    await rig.stop()


@virtual
async def test_starts_with_as_many_running_sessions_as_there_is_room_for() -> None:
    """After a kill every session's turn may still be running, and none may leave memory."""
    journal = FlakyJournal()
    before = Rig(journal)
    for number in range(10):
        await before.prompt(f"s{number}", ids(20), "t1")
    await journal.submit([t.Draft(0.0, "damaged", "t", t.TurnEnded("stop"))])
    rig = Rig(journal, capacity=4, turns_block=False).start()
    await quiet()
    assert rig.task is not None
    assert not rig.task.done()
    live = {live.session for live in rig.sessions.live()}
    assert live == {"s7", "s8", "s9"}, "the damaged one is named in the log and left out"
    for name in live:
        rig.assert_exact(name)
    await rig.stop()


@virtual
async def test_stops_promptly_with_anything_in_flight() -> None:
    for moment in range(30):
        rig = Rig().start()
        await rig.whole_turn("s", ids(4000), "t1")
        asking = [rig.ask("s"), rig.ask("s", wait="now")]
        waiting = asyncio.create_task(rig.reader.wait_fresh("s"))
        await asyncio.sleep(0.0413 * moment)
        began = rig.clock.monotonic()
        await rig.stop()
        assert rig.clock.monotonic() - began <= CHUNK_S + 1e-6
        for result in await settle(*asking, waiting):
            assert isinstance(result, ShutDownError) or not isinstance(result, BaseException)
        assert rig.lease.free
        await rig.check_laws("s")


@virtual
async def test_stops_before_anything_happened_while_it_takes_up_and_twice() -> None:
    journal = FlakyJournal()
    before = Rig(journal)
    for number in range(10):
        await before.whole_turn(f"s{number}", ids(20), "t1")
    for moment in range(20):
        rig = Rig(journal)
        assert not rig.reader.looks
        rig.start()
        await steps(moment)
        await rig.stop()
        await rig.stop()
    never = Rig(journal)
    never.reader.stop()
    never.start()
    await never.stop()
    assert never.engine.calls == []


@virtual
async def test_the_status_says_that_a_running_turn_keeps_the_reader_away() -> None:
    rig = Rig().start()
    await rig.prompt("busy", ids(3), "t1")
    await rig.whole_turn("s", ids(4 * GRID), "t1")
    await quiet()
    roster = rig.reader.roster
    assert "'busy'" in roster.why_unread("s", 4 * GRID)
    assert roster.why_unread("busy", 3) == ""
    async with rig.lease.request():
        await rig.output("busy", "t1", 0, [1])
        await quiet(1)
        assert "lease" in roster.why_unread("s", 4 * GRID)
    await rig.end("busy", "t1")
    await quiet()
    assert roster.why_unread("s", 0) == ""
    rig.assert_exact("s")
    await rig.stop()
