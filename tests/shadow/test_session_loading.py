"""Live sessions come into memory once, and leave it when nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.errors import BusyError, ConflictError, JournalError, NotFoundError
from shadow_reader.events import types as t
from tests.fakes import settle, steps, virtual
from tests.shadow.house import House, settled


@virtual
async def test_many_who_want_a_session_load_it_once() -> None:
    house = House()
    await house.prompt("s", list(range(100)), turn="t")
    again = House(house.journal)
    house.journal.loads.clear()
    found = await asyncio.gather(*(again.sessions.load("s") for _ in range(20)))
    assert house.journal.loads == {"s": 1}
    assert len(set(map(id, found))) == 1
    assert found[0].durable == await house.journaled("s")


@virtual
async def test_a_cancelled_loader_does_not_take_the_others_along() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    again = House(house.journal)
    first, second = (asyncio.create_task(again.sessions.load("s")) for _ in range(2))
    await steps(1)
    first.cancel()
    results = await settle(first, second)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1].durable is not None


@virtual
async def test_the_least_recently_heard_idle_session_makes_room() -> None:
    house = House(capacity=3)
    for name in ("a", "b", "c"):
        await house.prompt(name, [1], turn="t")
        await house.end(name, "t")
        await asyncio.sleep(1)
    await house.end("a", "t")  # says nothing new, but "a" was heard of
    await asyncio.sleep(1)
    await house.prompt("d", [1], turn="t")
    assert {live.session for live in house.sessions.live()} == {"a", "c", "d"}
    # Who left is folded again from the journal when it is spoken of.
    assert (await house.prompt("b", [1, 2], turn="t2")).known == 2
    await house.check_views()


@virtual
async def test_sessions_with_something_open_do_not_leave() -> None:
    house = House(capacity=3)
    await house.prompt("running", [1], turn="t")
    await house.prompt("asked", [1], turn="t")
    await house.end("asked", "t")
    await house.ask("asked", "q")
    house.journal.gate.clear()
    receipt = await house.sessions.prompt("unsure", [1], turn="t")
    await house.sessions.end("unsure", "t")
    with pytest.raises(BusyError) as busy:
        await house.prompt("more", [1])
    assert busy.value.details["limit"] == 3
    house.journal.gate.set()
    await receipt
    await settled(house)
    await house.prompt("more", [1])
    assert {live.session for live in house.sessions.live()} == {"running", "asked", "more"}


@virtual
async def test_names_that_were_only_asked_for_push_nobody_out() -> None:
    house = House(capacity=3)
    for name in ("a", "b"):
        await house.prompt(name, [1], turn="t")
        await house.end(name, "t")
    for number in range(50):
        with pytest.raises(NotFoundError):
            await house.sessions.erase(f"nobody{number}")
    assert {"a", "b"} <= {live.session for live in house.sessions.live()}


@virtual
async def test_a_session_loaded_from_the_journal_is_as_old_as_its_last_entry() -> None:
    house = House()
    await house.prompt("old", [1], turn="t")
    await asyncio.sleep(500)
    await house.prompt("young", [1], turn="t")
    await asyncio.sleep(100)
    again = House(house.journal)
    for name in ("young", "old"):
        await again.sessions.load(name)
    heard = {live.session: live.heard_s for live in again.sessions.live()}
    assert heard == {"old": pytest.approx(0), "young": pytest.approx(500)}
    # A wall clock that went back makes nobody younger than now.
    house.clock.jumped = again.clock.jumped = -10_000
    third = House(house.journal, again.clock)
    assert (await third.sessions.load("old")).heard_s == pytest.approx(600)


@virtual
async def test_a_refused_message_is_not_news_and_one_that_repeats_is() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    live = house.sessions.peek("s")
    assert live is not None
    await asyncio.sleep(10)
    for _ in range(3):
        with pytest.raises(ConflictError):
            await house.output("s", "t", 5, [1])
    assert (live.heard_s, live.message) == (0.0, 1)
    await house.prompt("s", [1], turn="t")
    assert (live.heard_s, live.message) == (10.0, 2)


@virtual
async def test_a_session_that_cannot_be_folded_harms_only_itself() -> None:
    house = House()
    damaged = t.Draft(0.0, "damaged", "t", t.TurnEnded("stop"))
    await house.journal.submit([damaged])
    await house.prompt("s", [1], turn="t")
    for _ in range(2):
        with pytest.raises(JournalError):
            await house.prompt("damaged", [1], turn="t")
    assert (await house.output("s", "t", 0, [2])).known == 2
