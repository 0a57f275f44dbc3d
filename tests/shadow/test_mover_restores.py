"""States that come back beside the reader: when, from what, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events import types as t
from shadow_reader.shadow.mover import RESTORING
from shadow_reader.shadow.orphans import remove_orphans
from tests.fake_device import InlineDevice
from tests.fakes import GRID, FakeEngine, settle, virtual
from tests.shadow.disk_rig import DiskRig, engine_for_two, on_disk, read_in_turn, two_and_one_more
from tests.shadow.rig import Rig, ids, quiet, units


@virtual
async def test_a_question_brings_it_back_too() -> None:
    with on_disk(engine=engine_for_two(1)) as rig:
        await two_and_one_more(rig)
        before = rig.engine.chunks("a")
        for wait in ("now", "fresh"):
            reply = await rig.ask("a", wait=wait)
            assert reply.position == 10 * GRID
        assert rig.engine.chunks("a") == before
        await rig.check_laws("a")
        await rig.stop()


@virtual
async def test_case_19_after_a_restore_a_rewind_goes_to_a_restored_checkpoint() -> None:
    with on_disk(engine=FakeEngine(cap=units(10) + 1 + units(10) + 1)) as rig:
        rig.start()
        await rig.whole_turn("a", ids(4 * GRID + 3), "t1", ids(10 * GRID)[4 * GRID + 3 :])
        await quiet(10)
        for seed, name in enumerate("bc", start=1):
            await rig.whole_turn(name, ids(10 * GRID, seed), "t1")
            await quiet(10)
        assert "a" not in rig.engine.states
        await rig.whole_turn("a", [*ids(5 * GRID), *ids(6 * GRID, 5)], "t3")
        await quiet()
        (restore,) = await rig.events("a", t.Restore)
        assert restore.position == 4 * GRID, "what lies above the cut is not even read"
        rig.assert_exact("a")
        await rig.check_laws("a")
        await rig.stop()


def foreign(rig: DiskRig, found: Any) -> Any:
    """The snapshot as another model would have written it."""
    return replace(found, engine={**found.engine, "weights": "f" * 16})


def of_another_session(rig: DiskRig, found: Any) -> Any:
    """One that was opened at another time under the same name."""
    return replace(found, opened_at=found.opened_at - 1)


def of_other_ids(rig: DiskRig, found: Any) -> Any:
    """One whose ids are not what it says."""
    return replace(found, ids_hash="0" * 32)


@pytest.mark.parametrize("change", [foreign, of_another_session, of_other_ids])
def test_a_refused_snapshot_is_named_removed_and_read_from_the_journal(
    change: Callable[[DiskRig, Any], Any],
) -> None:
    @virtual
    async def refused() -> None:
        with on_disk(engine=engine_for_two()) as rig:
            await two_and_one_more(rig)
            find = rig.store.find

            def changed(session: str) -> Any:
                found = find(session)
                return found and change(rig, found)

            rig.store.find = changed  # type: ignore[method-assign]
            await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
            await quiet()
            (restore,) = await rig.events("a", t.Restore)
            assert restore.position == 0
            assert restore.refused
            assert rig.reader.roster.notes("a").refused == restore.refused
            rig.assert_exact("a")
            await rig.check_laws("a")
            rig.store.find = find  # type: ignore[method-assign]
            assert rig.store.find("a") is None
            await rig.stop()

    refused()


@virtual
async def test_others_are_read_and_asked_while_one_comes_back() -> None:
    with on_disk(engine=FakeEngine(cap=3 * units(10) + 4), disk_s=5.0) as rig:
        await read_in_turn(rig, "abcd", 60)
        rig.assert_alone("b", "c", "d")
        await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
        await asyncio.sleep(1)
        assert rig.reader.roster.notes("a").moving == RESTORING
        asking = rig.ask("d", timeout_s=4)
        await rig.whole_turn("d", ids(11 * GRID, 3), "t2")
        assert (await asking).position > 0
        assert "a" not in rig.engine.states
        await quiet()
        rig.assert_exact("a")
        rig.assert_exact("d")
        await rig.stop()


@virtual
async def test_a_session_that_cannot_come_back_for_want_of_room_is_told_and_tried_again() -> None:
    with on_disk(engine=engine_for_two()) as rig:
        await two_and_one_more(rig)
        rig.engine.cap = units(5)
        (refused,) = await settle(rig.ask("a"))
        assert isinstance(refused, OutOfRoomError)
        assert rig.reader.roster.notes("a").blocked
        rig.engine.cap = 3 * units(10)
        await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
        await quiet()
        assert [restore.position for restore in await rig.events("a", t.Restore)] == [10 * GRID]
        rig.assert_exact("a")
        await rig.stop()


@virtual
async def test_a_new_process_finds_what_the_old_one_spilled() -> None:
    with TemporaryDirectory() as folder:
        one = DiskRig(root=Path(folder) / "snapshots").start()
        await one.whole_turn("a", ids(10 * GRID), "t1")
        await quiet(10)
        await one.stop()
        two = DiskRig(root=Path(folder) / "snapshots", journal=one.journal).start()
        await quiet()
        two.assert_exact("a")
        assert two.engine.chunks() == 0
        assert [r.position for r in await two.events("a", t.Restore)] == [10 * GRID]
        await two.stop()


@virtual
async def test_older_checkpoints_give_way_to_a_restore_before_another_session_does() -> None:
    with on_disk(engine=FakeEngine(cap=units(10))) as rig:
        rig.start()
        await rig.whole_turn("a", ids(10 * GRID), "t1")
        await quiet(10)
        for turn in (3, 6, 9):
            await rig.whole_turn("b", ids(turn * GRID, 1), f"t{turn}")
            await quiet(10)
        rig.assert_alone("b")
        rig.engine.cap = 1000
        await rig.whole_turn("b", ids(9 * GRID + 1, 1), "t10")
        await quiet(10)
        stats = rig.engine.state_stats("b")
        assert stats is not None
        assert len(stats.checkpoints) > 1
        rig.engine.cap = rig.engine.used + 10  # the pages alone: its state needs one unit more
        await rig.whole_turn("a", ids(10 * GRID + 1), "t2")
        await quiet()
        rig.assert_alone("a", "b")
        rig.assert_exact("a")
        after = rig.engine.state_stats("b")
        assert after is not None
        assert after.checkpoints == stats.checkpoints[1:]
        await rig.stop()


@virtual
async def test_a_snapshot_of_a_session_that_the_journal_does_not_have_goes_at_the_start() -> None:
    """The process was killed between the journal's erasure and the snapshot's."""
    with TemporaryDirectory() as folder:
        one = DiskRig(root=Path(folder) / "snapshots").start()
        for seed, name in enumerate(("kept", "erased", "opened again")):
            await one.whole_turn(name, ids(10 * GRID, seed), "t1")
            await quiet(10)
        await Rig.stop(one)
        await one.mover.spill_all(lambda _progress: None)
        for name in ("erased", "opened again"):
            await one.sessions.erase(name)
        await one.whole_turn("opened again", ids(3), "t1")
        await one.kill_mover()
        one.store.close()
        two = DiskRig(root=Path(folder) / "snapshots", journal=one.journal).start()
        await remove_orphans(two.journal, InlineDevice(0.0), two.store)
        await quiet()
        assert set(two.store.sessions()) == {"kept", "opened again"}
        await two.whole_turn("opened again", ids(12 * GRID, 5), "t2")
        await quiet()
        (refused,) = await two.events("opened again", t.Restore)
        assert "another session" in refused.refused
        assert set(two.store.sessions()) == {"kept"}
        two.assert_exact("kept")
        two.assert_exact("opened again")
        await two.stop()


@virtual
async def test_a_prompt_that_cuts_while_the_state_comes_back_is_compared_with_it() -> None:
    """The session is fresh with less than was restored, so nothing else would look at it again."""
    for delay in range(0, 60, 2):
        with on_disk(engine=engine_for_two(), disk_s=0.04) as rig:
            await two_and_one_more(rig)
            name = next(n for n in ("a", "b", "c") if not rig.read_of(n))
            known = list(rig.view(name).known)
            await rig.whole_turn(name, [*known, *ids(GRID, 9)], "more")
            await asyncio.sleep(delay * 0.02)
            await rig.whole_turn(name, known[: 2 * GRID - 3], "cut")
            await quiet(60)
            rig.assert_exact(name)
            await rig.stop()
