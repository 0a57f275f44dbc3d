"""The reader loop under virtual time: what it reads, when it stays away, what it journals."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from shadow_reader.errors import (
    AskTimeoutError,
    NotFoundError,
    ShadowError,
    ShutDownError,
    TooLargeError,
)
from shadow_reader.events import types as t
from shadow_reader.shadow.lease import Rank
from shadow_reader.shadow.plan import STARVED_S
from tests.fakes import (
    CONTEXT_IDS,
    GRID,
    START_WALL,
    FakeEngine,
    FlakyJournal,
    all_entries,
    events_of,
    script,
    settle,
    steps,
    virtual,
)
from tests.shadow.rig import BURST_S, CHUNK_S, QUESTION, RECENT_SESSIONS, Rig, ids, quiet, units

BURST_CHUNKS = round(BURST_S / CHUNK_S)


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


# -- the foreground ----------------------------------------------------------------------------


@virtual
async def test_law_5_a_request_that_comes_waits_at_most_one_chunk() -> None:
    for moment in range(40):
        rig = Rig().start()
        await rig.whole_turn("s", ids(250), "t1")
        await rig.whole_turn("other", ids(250, seed=1), "t1")
        await asyncio.sleep(0.013 + 0.0571 * moment)
        began, jobs = rig.clock.monotonic(), rig.device.begun
        async with rig.lease.request():
            assert rig.clock.monotonic() - began <= CHUNK_S + 1e-6
            assert rig.device.begun == jobs, "a chunk was begun although a request waited"
            await asyncio.sleep(10)
            assert rig.device.begun == jobs, "it read while a request ran"
        await quiet()
        rig.assert_exact("s")
        rig.assert_exact("other")
        await rig.check_laws("s")
        await rig.stop()


@virtual
async def test_law_5_holds_between_the_steps_of_a_burst_too() -> None:
    """Rewinds, checkpoints, many sessions to compare: each is one job, and it looks before each."""
    rig = Rig(turns_block=False).start()
    for name in "abcdef":
        await rig.whole_turn(name, ids(200), "t1")
    await quiet()
    for name in "abcdef":
        await rig.whole_turn(name, [*ids(50), *ids(150, seed=1)], "t2")
    for _ in range(60):
        await asyncio.sleep(0.0371)
        began, jobs = rig.clock.monotonic(), rig.device.begun
        async with rig.lease.request():
            assert rig.clock.monotonic() - began <= CHUNK_S + 1e-6
            assert rig.device.begun == jobs
    await quiet()
    for name in "abcdef":
        rig.assert_exact(name)
        await rig.check_laws(name)
    await rig.stop()


@virtual
async def test_a_slow_journal_does_not_make_requests_wait() -> None:
    """The lease is never held while waiting for the disk."""
    rig = Rig(FlakyJournal(pending_limit=1, commit_s=5.0)).start()
    await rig.whole_turn("s", ids(600), "t1")
    asking = rig.ask("s", wait="now")
    waited = []
    for _ in range(200):
        await asyncio.sleep(0.1771)
        began = rig.clock.monotonic()
        async with rig.lease.request():
            waited.append(rig.clock.monotonic() - began)
    assert max(waited) <= CHUNK_S + 1e-6
    await asking
    await quiet()
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_reads_only_between_turns_when_turns_are_foreground() -> None:
    rig = Rig(turns_block=True).start()
    await rig.prompt("s", ids(400), "t1")
    await quiet(20)
    assert rig.engine.chunks() == 0
    # A turn of another session counts as well, from before its prompt is even committed.
    await rig.end("s", "t1")
    await asyncio.sleep(1.05)
    rig.journal.gate.clear()
    await rig.sessions.prompt("other", ids(5), turn="t1")
    begun = rig.device.begun
    assert rig.engine.chunks() > 3
    await asyncio.sleep(10)
    assert rig.device.begun == begun, "the chunk in flight was the last"
    rig.journal.gate.set()
    await asyncio.sleep(10)
    assert rig.device.begun == begun
    await rig.end("other", "t1")
    await quiet()
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_reads_during_turns_when_only_the_lease_is_foreground() -> None:
    rig = Rig(turns_block=False).start()
    await rig.prompt("s", ids(100), "t1")
    await quiet(20)
    rig.assert_exact("s")
    for offset in range(0, 50, 10):
        await rig.output("s", "t1", offset, ids(10, seed=offset))
        await asyncio.sleep(1)
        rig.assert_exact("s")
    assert rig.view("s").running
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_burst_lets_go_after_its_time_so_that_drafters_come_in() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(2000), "t1")
    held = []

    async def drafter() -> None:
        for _ in range(5):
            began = rig.clock.monotonic()
            async with rig.lease.hold(Rank.READER, "as low as the reader"):
                held.append(rig.clock.monotonic() - began)
            await asyncio.sleep(0.01)

    await drafter()
    assert max(held) <= BURST_S + CHUNK_S + 1e-6
    await rig.stop()


@virtual
async def test_a_session_that_is_never_fresh_does_not_starve_the_others() -> None:
    """A nonce early in each prompt: all of it is read again each turn, and it is never done."""
    rig = Rig(turns_block=False).start()
    for turn in range(12):
        await rig.prompt("nonce", [turn, *ids(1000)], f"t{turn}")
        if turn == 0:
            for name in ("quiet", "silent"):
                await rig.whole_turn(name, ids(400), "t1")
        await asyncio.sleep(10)
    for name in ("quiet", "silent"):
        entries = await all_entries(rig.journal, name)
        times = [0.0, *(e.at - START_WALL for e in entries if isinstance(e.event, t.Read))]
        waited = [after - before for before, after in pairwise(times)]
        assert max(waited) <= STARVED_S + 4 * BURST_S
        assert len(times) >= 4
    assert len(rig.read_of("nonce")) > 500, "and it is read all the same"
    assert (await rig.ask("quiet")).behind == 0
    await rig.check_laws("nonce")
    await rig.stop()


@virtual
async def test_a_crowd_that_starves_does_not_starve_a_question() -> None:
    """After a long request everybody has waited too long; the question still goes first."""
    rig = Rig().start()
    async with rig.lease.request():
        for number in range(20):
            await rig.whole_turn(f"s{number:02}", ids(400), "t1")
        await asyncio.sleep(STARVED_S + 10)
    bursts = 400 // GRID / BURST_CHUNKS
    reply = await rig.ask("s19")
    assert reply.lag_ms <= 1000 * (2 * bursts + 2) * BURST_S
    await quiet()
    rig.assert_exact("s00")
    await rig.stop()


# -- questions ---------------------------------------------------------------------------------


@virtual
async def test_a_fresh_answer_is_on_top_of_all_known_ids() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(100), "t1", ids(9, seed=1))
    reply = await rig.ask("s")
    letters = [ord("A"), ord("B")]
    expected = FakeEngine.answer_to([*ids(100), *ids(9, seed=1), *QUESTION], letters)
    assert tuple(reply.probabilities.values()) == expected
    assert (reply.position, reply.behind) == (109, 0)
    assert reply.lag_ms == pytest.approx(1000 * (13 + 1) * CHUNK_S)
    (answer,) = await rig.events("s", t.Answer)
    assert answer.probabilities == expected
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_an_answer_now_is_on_top_of_what_was_read_and_says_how_far_behind() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(1000), "t1")
    await asyncio.sleep(1.05)
    reply = await rig.ask("s", wait="now")
    # The chunk in flight is finished, then the question's forward comes before the next.
    assert (reply.position, reply.behind) == (11 * GRID, 1000 - 11 * GRID)
    assert reply.lag_ms == pytest.approx(1000 * 1.5 * CHUNK_S)
    await quiet()
    rig.assert_exact("s")
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_now_with_less_than_a_chunk_unread_is_on_top_of_everything() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(13), "t1")
    await quiet()
    reply = await rig.ask("s", wait="now")
    assert (reply.position, reply.behind) == (13, 0)
    await rig.whole_turn("short", ids(3), "t1")
    reply = await rig.ask("short", wait="fresh")
    assert (reply.position, reply.behind) == (3, 0)
    await rig.stop()


@virtual
async def test_a_fresh_session_s_question_does_not_wait_for_another_s_burst() -> None:
    rig = Rig().start()
    await rig.whole_turn("fresh", ids(20), "t1")
    await quiet()
    await rig.whole_turn("long", ids(4000), "t1")
    await asyncio.sleep(0.55)
    reply = await rig.ask("fresh")
    assert reply.lag_ms <= 1000 * 2 * CHUNK_S + 1
    await rig.stop()


@virtual
async def test_several_questions_at_once_are_answered_one_forward_each() -> None:
    rig = Rig().start()
    await rig.whole_turn("a", ids(200), "t1")
    await rig.whole_turn("b", ids(200, seed=1), "t1")
    waits = ("now", "fresh", "fresh", "now")
    asking = [rig.ask(session, wait=wait) for session in "ab" for wait in waits]
    replies = await asyncio.gather(*asking)
    assert sum(method == "ask" for method, _ in rig.engine.calls) == len(asking)
    assert all(reply.behind == 0 for reply in replies if reply.position == 200)
    assert Counter(reply.position == 200 for reply in replies)[True] >= 4
    await rig.check_laws("a")
    await rig.check_laws("b")
    await rig.stop()


@virtual
async def test_a_question_may_be_asked_while_a_turn_runs_but_not_while_a_request_does() -> None:
    rig = Rig(turns_block=True).start()
    await rig.whole_turn("s", ids(40), "t1")
    await quiet()
    await rig.prompt("s", ids(45), "t2")
    assert (await rig.ask("s")).position == 45
    async with rig.lease.request():
        with pytest.raises(AskTimeoutError):
            await rig.ask("s", timeout_s=5.0)
    asking = rig.ask("s")
    assert (await asking).position == 45
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_waiting_for_fresh_takes_the_turn_s_whole_length_when_turns_are_foreground() -> None:
    rig = Rig(turns_block=True).start()
    await rig.prompt("s", ids(100), "t1")
    asking = rig.ask("s", timeout_s=100.0)
    await quiet(50)
    assert not asking.done()
    await rig.end("s", "t1")
    assert (await asking).position == 100
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_question_cancelled_at_every_stage_ends_once_and_changes_nothing() -> None:
    for moment in range(60):
        rig = Rig().start()
        await rig.whole_turn("s", ids(24), "t1")
        asking = rig.ask("s")
        await asyncio.sleep(0.0113 * moment) if moment > 12 else await steps(moment)
        asking.cancel()
        await settle(asking)
        await quiet()
        rig.assert_exact("s")
        await rig.check_laws("s")
        assert not rig.view("s").questions
        assert rig.lease.free
        await rig.stop()


@virtual
async def test_a_prompt_that_replaces_the_ids_while_a_question_waits() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(100), "t1")
    asking = rig.ask("s")
    await asyncio.sleep(0.55)
    await rig.whole_turn("s", [*ids(10), *ids(60, seed=1)], "t2")
    reply = await asking
    assert (reply.position, reply.behind) == (70, 0)
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_question_on_ids_replaced_a_moment_ago_rewinds_first_also_for_now() -> None:
    rig = Rig(turns_block=True).start()
    for name in ("a", "s"):
        await rig.whole_turn(name, ids(100), "t1")
    await quiet()
    # While the loop compares "a", the ids of "s" are replaced, and a question on them waits.
    await rig.prompt("a", [*ids(50), *ids(50, seed=1)], "t2")
    rig.engine.before = refuse("ask")
    asking = [rig.ask("s", wait="now") for _ in range(2)]
    await asyncio.sleep(CHUNK_S / 2)
    await rig.prompt("s", [*ids(10), *ids(90, seed=1)], "t2")
    failed, reply = await settle(*asking)
    assert isinstance(failed, ShadowError)
    assert (reply.position, reply.behind) == (0, 100)
    # The rewind is told whatever became of the question that found it.
    (rewind,) = await rig.events("s", t.Rewind)
    assert (rewind.cut, rewind.to) == (10, 0)
    for name in ("a", "s"):
        await rig.end(name, "t2")
    await quiet()
    rig.assert_exact("s")
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_question_that_no_longer_fits_when_its_time_comes_is_told() -> None:
    rig = Rig(turns_block=True).start()
    await rig.prompt("s", ids(CONTEXT_IDS - 20), "t1")
    asking = rig.ask("s", timeout_s=1000.0)
    await asyncio.sleep(1)
    await rig.output("s", "t1", 0, ids(19, seed=1))
    await rig.end("s", "t1")
    (result,) = await settle(asking)
    assert isinstance(result, TooLargeError)
    assert result.details["limit"] == 1
    await quiet()
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_questions_of_an_erased_session_end_and_its_state_goes() -> None:
    for moment in range(25):
        rig = Rig().start()
        await rig.whole_turn("s", ids(80), "t1")
        asking = [rig.ask("s"), rig.ask("s", wait="now")]
        await asyncio.sleep(0.0513 * moment)
        await rig.erase("s")
        results = await settle(*asking)
        assert all(
            isinstance(result, NotFoundError) or not isinstance(result, BaseException)
            for result in results
        )
        await quiet()
        assert "s" not in rig.engine.states
        assert [type(e) for e in events_of(await all_entries(rig.journal))] == [t.SessionErased]
        await rig.stop()


@virtual
async def test_an_erased_session_s_name_used_again_at_once_is_a_new_session() -> None:
    for moment in range(40):
        rig = Rig(turns_block=False).start()
        await rig.whole_turn("s", ids(200), "t1")
        await asyncio.sleep(0.001 + 0.0371 * moment)
        erasing = asyncio.create_task(rig.erase("s"))
        await steps(1 + moment % 7)
        again = ids(150) if moment % 2 else [*ids(20), *ids(130, seed=1)]
        await rig.whole_turn("s", again, "t1")
        await erasing
        await quiet()
        rig.assert_exact("s")
        assert list(rig.view("s").known) == again
        await rig.check_laws("s")
        await rig.stop()


# -- memory ------------------------------------------------------------------------------------


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
    assert rig.reader.rounds < 20
    for _ in range(5):
        await rig.whole_turn("a", ids(9 * GRID), f"t{rig.reader.rounds}")
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
    assert rig.reader.rounds < 20
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


# -- faults ------------------------------------------------------------------------------------


class refuse:  # noqa: N801  # used like a function
    """Let the engine's method raise RuntimeError, the ``count`` first times."""

    def __init__(self, method: str, count: int = 1, session: str = "s") -> None:
        self.method, self.left, self.session = method, count, session

    def __call__(self, method: str, session: str) -> None:
        if method == self.method and session == self.session and self.left:
            self.left -= 1
            raise RuntimeError(f"the device said no to {method}")


@pytest.mark.parametrize("method", ["align", "read_chunk", "checkpoint"])
def test_a_session_that_fails_is_dropped_and_named_and_the_others_go_on(method: str) -> None:
    @virtual
    async def play() -> None:
        rig = Rig().start()
        await rig.whole_turn("s", ids(100), "t1")
        await quiet()
        rig.engine.before = refuse(method, 1_000_000)
        await rig.whole_turn("s", [*ids(90), *ids(100, seed=1)], "t2")
        await rig.whole_turn("other", ids(100), "t1")
        asking = rig.ask("s")
        await quiet()
        rig.assert_exact("other")
        notes = rig.reader.roster.notes("s")
        assert notes.blocked == f"failed: the device said no to {method}"
        assert "s" not in rig.engine.states
        dropped = await rig.events("s", t.Dropped)
        # Once for each message that came since the last failure.
        assert [drop.reason for drop in dropped] in (["failed"], ["failed"] * 2, ["failed"] * 3)
        (result,) = await settle(asking)
        assert isinstance(result, ShadowError)
        assert "the device said no" in result.message
        assert rig.lease.free
        # The next message is a new chance.
        rig.engine.before = lambda _method, _session: None
        await rig.whole_turn("s", [*ids(90), *ids(100, seed=1)], "t3")
        await quiet()
        rig.assert_exact("s")
        assert rig.reader.roster.notes("s").blocked == ""
        await rig.check_laws("s")
        await rig.stop()

    play()


@virtual
async def test_a_question_s_forward_that_fails_harms_the_question_alone() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(100), "t1")
    await quiet()
    rig.engine.before = refuse("ask")
    (result,) = await settle(rig.ask("s"))
    assert isinstance(result, ShadowError)
    assert result.code == "fork_failed"
    rig.assert_exact("s")
    assert (await rig.ask("s")).position == 100
    assert await rig.events("s", t.Dropped) == []
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_failing_session_is_not_tried_again_and_again() -> None:
    rig = Rig().start()
    rig.engine.before = refuse("read_chunk", 1_000_000)
    await rig.whole_turn("s", ids(100), "t1")
    await quiet(3600)
    assert rig.engine.chunks() == 1
    assert rig.reader.rounds < 10
    await rig.stop()


@virtual
async def test_a_message_that_comes_while_a_session_fails_is_not_missed() -> None:
    """Its block is lifted by what came after the failing job began, not after it was dropped."""
    for moment in range(1, 8):
        rig = Rig(turns_block=False).start()
        rig.engine.before = refuse("read_chunk")
        await rig.prompt("s", ids(100), "t1")
        await asyncio.sleep(0.03 * moment)  # the chunk fails at 0.1, the state is gone at 0.2
        await rig.output("s", "t1", 0, [1])
        await quiet()
        rig.assert_exact("s")
        await rig.stop()


@virtual
async def test_an_unexpected_error_ends_the_loop_and_tells_who_waits() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(100), "t1")

    def explode(method: str, _session: str) -> None:
        if method == "read_chunk":
            raise AssertionError("our own bug")

    rig.engine.before = explode
    waiting = asyncio.create_task(rig.reader.wait_fresh("s"))
    assert rig.task is not None
    (result,) = await settle(rig.task)
    assert isinstance(result, AssertionError)
    assert isinstance((await settle(waiting))[0], ShutDownError)
    assert rig.lease.free
    with pytest.raises(ShutDownError):
        await rig.reader.wait_fresh("s")


@virtual
async def test_a_digest_that_is_not_the_journaled_one_is_counted() -> None:
    rig = Rig()
    await rig.whole_turn("s", ids(20), "t1")
    wrong = t.Checkpoint(16, "0" * 16, rig.engine.identity.engine)
    elsewhere = t.Checkpoint(8, "0" * 16, "another engine")
    await rig.sessions.record("s", wrong, elsewhere, read=rig.view("s").known)
    rig.start()
    await quiet()
    assert rig.reader.roster.notes("s").mismatches == 1
    assert rig.sessions.tally.mismatches == 1
    await rig.stop()


@virtual
async def test_commits_that_fail_keep_nothing_from_being_read() -> None:
    for first in range(1, 9):
        rig = Rig().start()
        await rig.whole_turn("s", ids(100), "t0")
        rig.journal.fails = script([False] * first + [True] * 3)
        for turn in range(1, 6):
            for _ in range(10):
                try:
                    await rig.whole_turn("s", ids(100 + 20 * turn), f"t{turn}-{_}")
                    break
                except ShadowError:
                    await asyncio.sleep(0.3)
        await quiet()
        rig.assert_exact("s")
        live = rig.sessions.peek("s")
        assert live is not None
        assert live.tentative == live.durable
        assert rig.reader.rounds < 300
        await rig.stop()


# -- sleeping and waking -----------------------------------------------------------------------


@virtual
async def test_it_does_not_spin_when_there_is_nothing_to_do() -> None:
    rig = Rig().start()
    await quiet(10_000)
    assert rig.reader.rounds == 1
    await rig.whole_turn("s", ids(100), "t1")
    await quiet(10_000)
    rounds = rig.reader.rounds
    assert rounds < 12
    await quiet(50_000)
    assert rig.reader.rounds == rounds
    await rig.stop()


@virtual
async def test_who_waits_for_fresh_does_not_make_it_spin() -> None:
    rig = Rig(turns_block=True).start()
    await rig.prompt("s", ids(100), "t1")
    waiting = [asyncio.create_task(rig.reader.wait_fresh("s")) for _ in range(3)]
    await steps(500)
    rounds = rig.reader.rounds
    assert rounds < 10
    await steps(500)
    assert rig.reader.rounds == rounds
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
    rounds = rig.reader.rounds
    await quiet(100)
    assert rig.reader.rounds < rounds + 5
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
        assert not rig.reader.rounds
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
