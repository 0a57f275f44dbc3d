"""Questions through the reader: on a fresh session or at once, in the midst of anything."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from shadow_reader.errors import AskTimeoutError, NotFoundError, ShadowError, TooLargeError
from shadow_reader.events import types as t
from tests.fake_journal import all_entries, events_of
from tests.fakes import CONTEXT_IDS, GRID, FakeEngine, settle, steps, virtual
from tests.shadow.rig import CHUNK_S, QUESTION, Rig, ids, quiet, refuse


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
