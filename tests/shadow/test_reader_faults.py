"""The reader and what fails: one session's, the journal's, its own."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.errors import ShadowError, ShutDownError
from shadow_reader.events import types as t
from tests.fake_journal import script
from tests.fakes import settle, virtual
from tests.shadow.rig import Rig, ids, quiet, refuse


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
    assert rig.reader.looks < 10
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
        assert rig.reader.looks < 300
        await rig.stop()
