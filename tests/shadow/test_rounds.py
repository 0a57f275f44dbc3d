"""The ration: what the reader uses of running turns, in rounds that are called or streamed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.events import types as t
from shadow_reader.shadow.costs import DEPTH_IDS, ChunkCosts
from shadow_reader.shadow.ration import Ration
from tests.fakes import GRID, virtual
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
async def test_a_round_that_comes_while_the_reader_is_at_work_ends_no_other() -> None:
    """The first engine stays paused until its slice is over; the second one does not wait."""
    rig = rationed().start()
    for session in ("s", "other"):
        await rig.prompt(session, LONG, "t1")
        await rig.output(session, "t1", 0, [1])
    await asyncio.sleep(60)
    await rig.reader.round()  # what a chunk costs is not known before
    first = asyncio.create_task(rig.reader.round())
    await asyncio.sleep(CHUNK_S / 2)
    began = rig.clock.monotonic()
    assert (await rig.reader.round()).read == 0
    assert rig.clock.monotonic() == began
    assert not first.done(), "a chunk is being read in it"
    assert (await first).read == 3 * GRID
    await rig.stop()


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
