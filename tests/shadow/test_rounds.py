"""The ration: what the reader uses of running turns, in rounds that are called or streamed."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.bounds import Bound
from shadow_reader.errors import BusyError, InvalidInputError, NotFoundError, SettingsError
from shadow_reader.events import types as t
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.costs import DEPTH_IDS, ChunkCosts
from shadow_reader.shadow.holds import Holds
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.ration import Ration
from tests.fake_journal import all_entries
from tests.fakes import GRID, START_WALL, LoopClock, virtual
from tests.shadow.rig import Rig, quiet

CHUNK_S = 0.04
SHARE = 0.02
LONG = list(range(40 * GRID))


async def used(rig: Rig, session: str) -> list[t.RationUsed]:
    return await rig.events(session, t.RationUsed)


async def decode(rig: Rig, session: str, turn: str, count: int, *, every_s: float = 0.03) -> None:
    """The big model decodes: a piece of output now and then."""
    for offset in range(count):
        await asyncio.sleep(every_s)
        await rig.output(session, turn, offset, [offset % 900])


def rationed(**more: object) -> Rig:
    return Rig(chunk_s=CHUNK_S, share=SHARE, **more)  # type: ignore[arg-type]  # each is a field


# -- rounds ------------------------------------------------------------------------------------


@virtual
async def test_pieces_of_output_earn_chunks_and_the_turn_s_end_journals_them() -> None:
    rig = rationed().start()
    await rig.prompt("s", LONG, "t1")
    await quiet(20)
    assert not rig.read_of("s"), "in prefill nothing is read, however long it takes"
    await decode(rig, "s", "t1", 700)  # 21 seconds: 0.42 s of them, ten chunks
    assert 9 <= len(rig.read_of("s")) // GRID <= 11
    await rig.end("s", "t1")
    await quiet(60)
    rig.assert_exact("s")
    (event,) = await used(rig, "s")
    reads = [r for r in await rig.events("s", t.Read) if r.window == "ration"]
    chunks = sum((read.stop - read.start) // GRID for read in reads)
    assert event.slices == len(reads) == chunks - 2, "a slice of three, while no cost is known"
    assert event.used_ms == pytest.approx(1000 * CHUNK_S * chunks, abs=5)
    assert 20_900 <= event.decode_ms <= 21_100
    windows = [read.window for read in await rig.events("s", t.Read)]
    assert windows[0] == "ration"
    assert windows[-1] == "idle"
    (entry,) = [e async for e in rig.journal.entries(kinds=["ration.used"])]
    assert (entry.session, entry.turn) == ("s", "t1")
    await rig.stop()


@virtual
async def test_an_engine_that_calls_its_rounds_has_no_others() -> None:
    rig = rationed(streamed=True).start()
    await rig.prompt("s", LONG, "t1")
    await rig.output("s", "t1", 0, [1])
    await asyncio.sleep(1)
    assert (await rig.reader.round()).read == 0, "a second earns half a chunk"
    await asyncio.sleep(9)  # and now five
    before = len(rig.read_of("s"))
    for offset in range(1, 20):
        await rig.output("s", "t1", offset, [1])
        await asyncio.sleep(0.01)
    assert len(rig.read_of("s")) == before == 0
    began = rig.clock.monotonic()
    opened = await rig.reader.round()
    assert opened.read in (3 * GRID, GRID), "a slice is 150 ms at most, or one chunk at first"
    assert rig.clock.monotonic() - began == pytest.approx(opened.used_s, abs=0.001)
    assert opened.used_s <= 0.15 + CHUNK_S
    second = await rig.reader.round()
    assert second.used_s <= 0.15
    await rig.stop()


@virtual
async def test_a_round_is_over_at_once_where_nothing_may_be_read() -> None:
    rig = rationed().start()
    for _ in range(2):
        assert (await rig.reader.round()).read == 0
    await rig.prompt("s", LONG, "t1")
    await quiet(10)
    began = rig.clock.monotonic()
    assert (await rig.reader.round()).read == 0, "no first token yet"
    await rig.output("s", "t1", 0, [1])
    hold = rig.windows.holds.begin("a benchmark", 100.0)
    await asyncio.sleep(30)
    assert (await rig.reader.round()).read == 0, "a hold is on"
    rig.windows.holds.end(hold.hold)
    assert (await rig.reader.round()).read > 0
    await rig.stop()
    assert (await rig.reader.round()).read == 0, "it has stopped"
    assert rig.clock.monotonic() - began < 31


@virtual
async def test_a_round_reads_while_the_paused_request_holds_the_lease() -> None:
    """Who comes meanwhile waits for one chunk."""
    rig = rationed(turns_block=False).start()
    async with rig.lease.request("engine"):
        await rig.prompt("s", LONG, "t1")
        await rig.output("s", "t1", 0, [1])
        await asyncio.sleep(60)
        assert not rig.read_of("s")
        first = await rig.reader.round()  # what a chunk costs is not known before
        reading = asyncio.create_task(rig.reader.round())
        await asyncio.sleep(CHUNK_S / 2)
        assert [h.rank for h in rig.lease.status().holders] == ["request", "reader"]
        began = rig.clock.monotonic()
        async with rig.lease.request("another"):
            assert rig.clock.monotonic() - began <= CHUNK_S
        assert (await reading).read == GRID
        assert first.read >= GRID
    await quiet(60)
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_what_is_read_for_others_counts_too_and_so_does_an_answer() -> None:
    rig = rationed().start()
    await rig.whole_turn("other", LONG, "t1")
    await rig.prompt("s", LONG[:3], "t1")
    await decode(rig, "s", "t1", 400)
    assert len(rig.read_of("other")) > 0, "the turn's own session is fresh: the next one is read"
    reply = await rig.ask("s", wait="now")
    assert reply.position >= 3
    await rig.end("s", "t1")
    await quiet(60)
    (event,) = await used(rig, "s")
    assert not await used(rig, "other")
    assert event.used_ms <= SHARE * event.decode_ms + 1000 * 2 * CHUNK_S
    await rig.stop()


@virtual
async def test_while_another_turn_is_in_prefill_nothing_is_read() -> None:
    rig = rationed().start()
    await rig.prompt("s", LONG, "t1")
    await rig.output("s", "t1", 0, [1])
    await rig.prompt("other", LONG[::-1], "t1")
    await asyncio.sleep(60)
    await rig.output("s", "t1", 1, [1])
    await asyncio.sleep(1)
    assert not rig.read_of("s")
    await rig.output("other", "t1", 0, [1])
    await asyncio.sleep(10)
    await rig.output("s", "t1", 2, [1])
    await asyncio.sleep(1)
    assert rig.read_of("s") or rig.read_of("other")
    await rig.stop()


@virtual
async def test_what_the_reader_journals_is_no_piece_of_output() -> None:
    rig = rationed().start()
    await rig.prompt("s", LONG, "t1")
    await rig.output("s", "t1", 0, [1])
    await asyncio.sleep(60)
    await rig.output("s", "t1", 1, [1])
    await asyncio.sleep(60)
    assert len(rig.read_of("s")) == 3 * GRID, "one slice, though more is allowed"
    await rig.stop()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_nothing_and_of_everything(share: float) -> None:
    @virtual
    async def play() -> None:
        rig = Rig(chunk_s=CHUNK_S, share=share).start()
        await rig.prompt("s", LONG, "t1")
        await decode(rig, "s", "t1", 100)
        chunks = len(rig.read_of("s")) // GRID
        assert chunks == 0 if share == 0 else chunks > 30
        await rig.stop()

    play()


async def _turns(count: int, seed: int) -> None:
    """Turn after turn on three sessions, now and then two at once; the share is never passed."""
    rng = Random(seed)
    rig = rationed().start()
    known: dict[str, list[int]] = {name: [] for name in "abc"}

    async def turn(name: str, number: int) -> None:
        grown = [rng.randrange(900) for _ in range(rng.randrange(1, 30 * GRID))]
        keep = rng.choice([len(known[name])] * 4 + [rng.randrange(len(known[name]) + 1)])
        known[name] = known[name][:keep][-100 * GRID :] + grown
        await rig.prompt(name, known[name], f"t{number}")
        await asyncio.sleep(rng.uniform(0, 3))
        pieces = rng.randrange(0, 120)
        await decode(rig, name, f"t{number}", pieces, every_s=rng.uniform(0.01, 0.2))
        await rig.end(name, f"t{number}")

    for number in range(0, count, 2):
        names = rng.sample("abc", rng.choice([1, 1, 1, 2]))
        await asyncio.gather(*[turn(name, number + i) for i, name in enumerate(names)])
        await asyncio.sleep(rng.choice([0.0, 0.1, 0.3, 5.0]))
    await quiet(60)
    for name in "abc":
        for event in await used(rig, name):
            allowed = SHARE * event.decode_ms + 1000 * CHUNK_S
            assert event.used_ms <= allowed + 0.01, (seed, event)
    await rig.stop()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_share_is_never_passed_by_more_than_a_chunk(seed: int) -> None:
    virtual(lambda: _turns(120, seed))()


@pytest.mark.slow
def test_the_share_is_never_passed_in_a_thousand_turns() -> None:
    """The same for 14,000 turns, seeds 10 to 19 with 1,400 each, takes four minutes."""
    virtual(lambda: _turns(1_000, 10))()


# -- the idle window ---------------------------------------------------------------------------


@virtual
async def test_a_poll_looks_so_often_and_an_event_at_once() -> None:
    for poll_s, latest in ((None, 0.001), (0.2, 0.201)):
        rig = Rig(chunk_s=CHUNK_S, idle_poll_s=poll_s).start()
        await rig.whole_turn("s", LONG[: 3 * GRID], "t1")
        await quiet(10)
        await rig.whole_turn("s", LONG, "t2")
        await asyncio.sleep(latest + 2 * CHUNK_S + 0.002)  # compared with the ids, and a chunk
        assert len(rig.read_of("s")) >= 4 * GRID
        await quiet(10)
        rig.assert_exact("s")
        await rig.stop()


@virtual
async def test_looks_of_a_poll_go_on_in_its_steps_while_nothing_is_there_to_read() -> None:
    """An idle window that begins between two looks waits for the next one."""
    rig = Rig(chunk_s=CHUNK_S, idle_poll_s=5.0).start()
    await rig.whole_turn("s", LONG[: 3 * GRID], "t1")
    await asyncio.sleep(6)
    (first,) = [e.at for e in await all_entries(rig.journal, "s") if isinstance(e.event, t.Read)]
    looked_s = first - START_WALL
    await rig.clock_to(looked_s + 12.0)
    await rig.whole_turn("s", LONG, "t2")
    await rig.clock_to(looked_s + 14.9)
    assert len(rig.read_of("s")) == 3 * GRID
    await rig.clock_to(looked_s + 15.2)
    assert len(rig.read_of("s")) > 3 * GRID
    await rig.stop()


@virtual
async def test_while_a_hold_is_on_nothing_is_read_and_it_ends_by_itself() -> None:
    rig = Rig().start()
    rig.windows.holds.begin("a benchmark", 5.0)
    await rig.whole_turn("s", LONG, "t1")
    await asyncio.sleep(4.5)
    assert not rig.read_of("s")
    assert "a hold is on: a benchmark" in rig.reader.roster.why_unread("s", len(LONG))
    reply = await rig.ask("s", wait="now")
    assert reply.position == 0, "whoever asks is answered"
    await quiet(60)
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_a_hold_ends_a_burst_after_its_chunk() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", LONG, "t1")
    await asyncio.sleep(0.25)
    rig.windows.holds.begin("a benchmark", 5.0)
    await asyncio.sleep(1)
    assert len(rig.read_of("s")) == 3 * GRID
    await rig.stop()


def test_the_box_lock_keeps_others_and_us_apart(tmp_path: Path) -> None:
    path = tmp_path / "box.lock"

    @virtual
    async def play() -> None:
        rig = Rig(box_lock=path).start()
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        await rig.whole_turn("s", LONG, "t1")
        await asyncio.sleep(5)
        assert not rig.read_of("s")
        assert rig.reader.roster.why_unread("s", len(LONG)) == "waits for the box lock"
        fcntl.flock(other, fcntl.LOCK_UN)
        await asyncio.sleep(0.35)
        assert rig.read_of("s")
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        await quiet(60)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        rig.assert_exact("s")
        os.close(other)
        await rig.stop()

    play()


def test_a_box_lock_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "box.lock"
    box = BoxLock(path)
    assert box.try_take()
    box.release()
    path.unlink()
    assert box.try_take(), "nobody has the new one"
    other = BoxLock(path)
    assert not other.try_take()
    box.release()
    assert other.try_take()
    other.close()
    path.unlink()
    path.mkdir()
    assert not box.try_take()
    assert "cannot be taken" in box.problem
    box.close()
    box.close()


def test_a_box_lock_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"box_lock .* cannot be opened"):
        BoxLock(tmp_path / "nowhere" / "box.lock")
    assert BoxLock(None).try_take()


# -- holds -------------------------------------------------------------------------------------


@virtual
async def test_holds_are_bounded_named_and_extended() -> None:
    holds = Holds(LoopClock(), Bound("holds", 2), 100.0)
    ended: list[tuple[str, str]] = []
    holds.on_end = lambda hold, why: ended.append((hold, why))
    first = holds.begin("one", 10.0)
    second = holds.begin("two", 20.0)
    with pytest.raises(BusyError):
        holds.begin("three", 1.0)
    for owner, seconds in (("", 1.0), ("x" * 201, 1.0), ("a\nb", 1.0), ("a", 0.0), ("a", 100.5)):
        with pytest.raises(InvalidInputError):
            holds.begin(owner, seconds)
    await asyncio.sleep(5)
    assert holds.extend(first.hold, 50.0).left_s == 50.0
    assert [hold.owner for hold in holds.shown()] == ["two", "one"]
    await asyncio.sleep(16)
    assert ended == [(second.hold, "expired")]
    with pytest.raises(NotFoundError):
        holds.end(second.hold)
    with pytest.raises(NotFoundError):
        holds.extend("nobody", 1.0)
    assert [hold.owner for hold in holds.shown()] == ["one"]
    holds.end(first.hold)
    assert not holds.shown()
    last = holds.begin("four", 10.0)
    holds.close()
    assert ended[1:] == [(first.hold, "released"), (last.hold, "closed")]
    await asyncio.sleep(100)
    assert len(ended) == 3


# -- lending -----------------------------------------------------------------------------------


@virtual
async def test_only_requests_lend_and_only_where_nobody_waits() -> None:
    lease = Lease(LoopClock())
    assert lease.lend(Rank.READER, "reader") is None, "it is free: take it"
    request = await lease.acquire(Rank.REQUEST, "one")
    lent = lease.lend(Rank.READER, "reader")
    assert lent is not None
    assert lease.lend(Rank.READER, "again") is None
    another = asyncio.create_task(lease.acquire(Rank.REQUEST, "two"))
    await asyncio.sleep(0)
    assert not another.done(), "who comes meanwhile waits"
    assert lease.wanted(Rank.READER)
    lease.release(lent)
    await another
    drafter = asyncio.create_task(lease.acquire(Rank.DRAFTER, "d"))
    await asyncio.sleep(0)
    assert lease.lend(Rank.READER, "reader") is None, "a drafter waits"
    lease.release(request)
    lease.release(another.result())
    await drafter
    assert lease.lend(Rank.READER, "reader") is None, "a drafter has it"


# -- the arithmetic ----------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=20))
def test_the_least_of_all_allowances_counts(turns: list[tuple[float, float]]) -> None:
    ration = Ration(SHARE)
    assert ration.allowance_s(5.0) == float("inf")
    for number, (since, spent) in enumerate(turns):
        ration.begin(f"s{number}", "t", since)
        ration.charge(spent)
    now = 101.0
    expected = [
        SHARE * (now - since) - sum(spent for _, spent in turns[number:])
        for number, (since, _) in enumerate(turns)
    ]
    assert ration.allowance_s(now) == pytest.approx(min(expected, default=float("inf")))
    ended = ration.end("s0")
    assert (ended is not None) == bool(turns)
    assert ration.end("s0") is None


def test_a_chunk_s_cost_is_that_of_the_last_ones_as_deep() -> None:
    costs = ChunkCosts()
    assert costs.estimate_s(0) is None
    assert costs.least_s() == 0
    for seconds in (0.9, 0.1, 0.3, 0.2):
        costs.observe(100, seconds)
    assert costs.estimate_s(DEPTH_IDS - 1) == 0.3
    assert costs.estimate_s(50 * DEPTH_IDS) == 0.3
    costs.observe(10 * DEPTH_IDS, 0.7)
    assert costs.estimate_s(9 * DEPTH_IDS) == 0.7
    assert costs.estimate_s(5 * DEPTH_IDS) == 0.7, "of two as near, the deeper"
    assert costs.estimate_s(2 * DEPTH_IDS) == 0.3
    assert costs.least_s() == 0.3
