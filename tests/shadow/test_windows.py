"""When the reader may read unasked: idle windows, holds, the box lock; and who lends the lease."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from shadow_reader.bounds import Bound
from shadow_reader.errors import BusyError, InvalidInputError, NotFoundError, SettingsError
from shadow_reader.events import types as t
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.holds import Holds
from shadow_reader.shadow.lease import Lease, Rank
from tests.fake_journal import all_entries
from tests.fakes import GRID, START_WALL, LoopClock, virtual
from tests.shadow.rig import Rig, quiet

CHUNK_S = 0.04
LONG = list(range(40 * GRID))


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
