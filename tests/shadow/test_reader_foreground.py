"""The foreground comes first: requests, turns, bursts, and sessions that must not starve."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from shadow_reader.events import types as t
from shadow_reader.shadow.lease import Rank
from shadow_reader.shadow.plan import STARVED_S
from tests.fake_journal import FlakyJournal, all_entries
from tests.fakes import GRID, START_WALL, virtual
from tests.shadow.rig import BURST_CHUNKS, BURST_S, CHUNK_S, Rig, ids, quiet


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
