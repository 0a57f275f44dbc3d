"""Turns without news end at their time, whatever the clocks and the journal do."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.errors import ShutDownError
from shadow_reader.events import types as t
from shadow_reader.shadow.turn_watch import watch_turns
from tests.fake_journal import FlakyJournal, all_entries, events_of, script
from tests.fakes import steps, virtual
from tests.shadow.house import House, settled


@virtual
async def test_a_turn_without_news_ends_at_its_time_and_not_before() -> None:
    house = House()
    watch = asyncio.create_task(watch_turns(house.sessions, 60.0))
    await asyncio.sleep(10)
    await house.prompt("quiet", [1], turn="t")
    await asyncio.sleep(20)
    await house.prompt("busy", [1], turn="t")
    for offset in range(10):
        await asyncio.sleep(59)
        await house.output("busy", "t", offset, [2])
    await asyncio.sleep(61)
    watch.cancel()
    ended = {
        entry.session: (entry.at, entry.turn)
        for entry in await all_entries(house.journal)
        if entry.event == t.TurnEnded("timeout")
    }
    start = house.clock.wall() - house.clock.monotonic()
    assert {name: turn for name, (_, turn) in ended.items()} == {"quiet": "t", "busy": "t"}
    assert ended["quiet"][0] == pytest.approx(start + 70, abs=0.01)
    assert ended["busy"][0] == pytest.approx(start + 30 + 590 + 60, abs=0.01)
    await house.check_views()


@virtual
async def test_a_wall_clock_that_jumps_ends_no_turn_and_keeps_none() -> None:
    house = House()
    watch = asyncio.create_task(watch_turns(house.sessions, 60.0))
    await house.prompt("s", [1], turn="t")
    for jump in (100_000.0, -200_000.0):
        house.clock.jumped += jump
        await asyncio.sleep(25)
        assert [live.running for live in house.sessions.live()] == [True]
    await asyncio.sleep(11)
    assert [live.running for live in house.sessions.live()] == [False]
    watch.cancel()
    await house.check_views()


@virtual
async def test_a_turn_found_running_after_a_restart_has_its_whole_time_again() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    await asyncio.sleep(10_000)
    again = House(house.journal)
    await again.sessions.load("s")
    left = await again.sessions.end_stale_turns(60.0)
    assert left == pytest.approx(60)
    assert (await again.output("s", "t", 0, [2])).output == 1


@virtual
async def test_news_that_comes_while_there_is_no_room_saves_the_turn() -> None:
    for news in ("output", "another turn"):
        house = House(FlakyJournal(pending_limit=1))
        await house.prompt("s", [1], turn="t")
        await asyncio.sleep(100)
        house.journal.gate.clear()
        await house.sessions.prompt("full", [1], turn="t")
        if news == "output":
            sending = asyncio.create_task(house.output("s", "t", 0, [2]))
        else:
            sending = asyncio.create_task(house.prompt("s", [1, 2], turn="t2"))
        await steps()
        watching = asyncio.create_task(house.sessions.end_stale_turns(60.0))
        await steps()
        house.journal.gate.set()
        await sending
        await watching
        await settled(house)
        events = events_of(await all_entries(house.journal, "s"))
        assert t.TurnEnded("timeout") not in events, news
        await house.check_views()


@virtual
async def test_the_watch_survives_a_journal_that_refuses() -> None:
    house = House()
    watch = asyncio.create_task(watch_turns(house.sessions, 60.0))
    await house.prompt("s", [1], turn="t")
    house.journal.fails = script([True] * 3)
    await asyncio.sleep(400)
    assert not watch.done()
    view = await house.journaled("s")
    assert view is not None
    assert not view.running
    await house.journal.close()
    await asyncio.sleep(1000)
    assert not watch.done()
    watch.cancel()


@virtual
async def test_closed_is_closed() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    await house.journal.close()
    for call in (
        house.output("s", "t", 0, [2]),
        house.prompt("new", [1]),
        house.sessions.erase("s"),
    ):
        with pytest.raises(ShutDownError):
            await call
