"""Spilling beside the reader: virtual time, an engine that counts, real files."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping

from shadow_reader.events import types as t
from shadow_reader.events.snapshots import Piece, RawTensor
from shadow_reader.shadow.mover import SpillProgress
from shadow_reader.store.snapshots.disk import Disk
from tests.fakes import GRID, FakeEngine, virtual
from tests.shadow.disk_rig import engine_for_two, on_disk, read_in_turn, two_and_one_more
from tests.shadow.rig import CHUNK_S, Rig, ids, quiet, units


class FaultyDisk(Disk):
    """A file system whose writes fail when ``full`` is set."""

    full = False

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        return super().write(descriptor, data)


@virtual
async def test_what_makes_room_is_spilled_and_comes_back_when_it_is_fed() -> None:
    with on_disk(engine=engine_for_two(2)) as rig:
        await two_and_one_more(rig)
        (spill,) = await rig.events("a", t.Spill)
        assert (spill.position, spill.kept) == (10 * GRID, False)
        assert spill.written > 0
        assert await rig.events("a", t.Dropped) == []
        assert "spilled" in rig.reader.roster.notes("a").blocked
        await rig.whole_turn("a", ids(11 * GRID), "t2")
        await quiet()
        (restore,) = await rig.events("a", t.Restore)
        assert (restore.position, restore.refused) == (10 * GRID, None)
        assert restore.read > 0
        reads = [(read.start, read.stop) for read in await rig.events("a", t.Read)]
        assert reads == [(0, 10 * GRID), (10 * GRID, 11 * GRID)], "the tail alone was read"
        rig.assert_alone("a", "c")
        for name in "abc":
            await rig.check_laws(name)
        rig.assert_exact("a")
        assert rig.engine.peak <= rig.engine.cap
        await rig.stop()


@virtual
async def test_who_is_heard_of_while_it_is_spilled_stays() -> None:
    with on_disk(engine=engine_for_two(), disk_s=5.0) as rig:
        await read_in_turn(rig, "ab", 60)
        await rig.whole_turn("c", ids(10 * GRID, 2), "t1")
        await quiet(12)  # "a" is on its way to the disk
        assert "a" in rig.engine.states
        await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
        await quiet()
        (spill,) = await rig.events("a", t.Spill)
        assert spill.kept
        assert "a" in rig.engine.states
        assert await rig.events("a", t.Restore) == []
        for name in "abc":
            await rig.check_laws(name)
        await rig.stop()


@virtual
async def test_a_full_disk_costs_the_state_of_who_makes_room_and_nothing_else() -> None:
    disk = FaultyDisk()
    with on_disk(engine=engine_for_two(), disk=disk) as rig:
        disk.full = True
        await two_and_one_more(rig)
        assert await rig.events("a", t.Spill) == []
        assert await rig.events("a", t.Dropped) == [t.Dropped("cap", 10 * GRID)]
        assert rig.store.stats().sessions == 0
        disk.full = False
        await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
        await quiet()
        rig.assert_exact("a")
        assert await rig.events("b", t.Dropped) == []
        for name in "abc":
            await rig.check_laws(name)
        await rig.stop()


@virtual
async def test_where_an_old_and_a_new_snapshot_do_not_fit_together_the_old_one_goes() -> None:
    with on_disk(engine=engine_for_two()) as first:
        await two_and_one_more(first)
        size = first.store.stats().bytes
        await first.stop()
    with on_disk(engine=FakeEngine(cap=units(12)), disk_bytes=size + size // 2) as rig:
        rig.start()
        for turn in range(4):
            await rig.whole_turn("ab"[turn % 2], ids(9 * GRID + turn * GRID // 2), f"t{turn}")
            await quiet(100)
        assert await rig.events("a", t.Dropped) == []
        assert rig.store.stats().peak_bytes <= size + size // 2
        await rig.stop()


@virtual
async def test_erasing_at_any_moment_of_a_move_leaves_nothing() -> None:
    for moment in range(40):
        with on_disk(engine=engine_for_two(), disk_s=0.3) as rig:
            await read_in_turn(rig, "abc", 1)
            await rig.whole_turn("a", ids(10 * GRID + 1), "t2")  # comes back, and pushes b out
            await asyncio.sleep(0.1 * moment)
            for name in "ab":
                await rig.erase(name)
            assert rig.store.find("a") is None
            assert rig.store.find("b") is None
            await quiet()
            assert not {"a", "b"} & set(rig.engine.states)
            await rig.whole_turn("a", ids(3 * GRID, 9), "t1")
            await quiet()
            rig.assert_exact("a")
            rig.assert_exact("c")
            await rig.stop()


@virtual
async def test_law_5_holds_while_states_are_moved() -> None:
    for moment in range(30):
        with on_disk(engine=engine_for_two(), turns_block=False, disk_s=0.04) as rig:
            await read_in_turn(rig, "abc", 3)
            await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
            await asyncio.sleep(0.0511 * moment)
            began = rig.clock.monotonic()
            async with rig.lease.request():
                assert rig.clock.monotonic() - began <= CHUNK_S + 1e-6
            await quiet()
            rig.assert_exact("a")
            await rig.stop()


@virtual
async def test_nothing_is_moved_while_a_turn_runs() -> None:
    with on_disk(engine=engine_for_two(), disk_s=0.3) as rig:
        await read_in_turn(rig, "abc", 1)
        await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
        await asyncio.sleep(0.7)
        await rig.prompt("d", ids(3), "t1")
        await asyncio.sleep(1)
        calls = len(rig.engine.calls)
        await asyncio.sleep(60)
        assert len(rig.engine.calls) == calls
        await rig.end("d", "t1")
        await quiet()
        rig.assert_exact("a")
        await rig.stop()


@virtual
async def test_at_the_end_every_state_is_spilled_the_newest_first() -> None:
    with on_disk() as rig:
        await read_in_turn(rig, "abc", 10)
        await Rig.stop(rig)
        told: list[SpillProgress] = []
        seen = rig.journal.stats().last_seq
        await rig.mover.spill_all(told.append)
        await quiet(1)
        assert told == [SpillProgress(done, 3) for done in range(4)]
        spilled = [e.session async for e in rig.journal.entries(after=seen, kinds=["spill"])]
        assert spilled == ["c", "b", "a"]
        assert rig.store.stats().sessions == 3
        await rig.kill_mover()
        rig.store.close()


@virtual
async def test_a_later_spill_writes_only_what_is_new() -> None:
    """Not the pages of a piece that was written unfinished; in few pieces all the same."""
    with on_disk(engine=FakeEngine(cap=units(60))) as rig:
        rig.start()
        written: list[tuple[int, int]] = []
        write = rig.store.write_piece

        def watched(session: str, piece: Piece, tensors: Mapping[str, RawTensor]) -> None:
            written.append((piece.start, piece.stop))
            write(session, piece, tensors)

        vars(rig.store).update(write_piece=watched)
        for chunks, expected in (
            (3, [(0, 3)]),
            (5, [(3, 5)]),
            (5, []),
            (6, [(5, 6)]),
            (18, [(6, 16), (16, 18)]),
            (20, [(18, 20)]),
        ):
            await rig.whole_turn("a", ids(chunks * GRID + 1), f"t{chunks}.{len(written)}")
            await quiet()
            written.clear()
            await rig.mover.spill_all(lambda _progress: None)
            assert written == expected, chunks
        rig.engine.drop("a")
        rig.reader.roster.dropped("a", "for the test", 0)
        await rig.whole_turn("a", ids(20 * GRID + 2), "t21")
        await quiet()
        (restore,) = await rig.events("a", t.Restore)
        assert (restore.position, restore.refused) == (20 * GRID, None)
        rig.assert_exact("a")
        await rig.stop()
