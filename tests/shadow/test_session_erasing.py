"""Erasing a live session: the old one and the new one of its name never mix."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.errors import JournalError, NotFoundError
from tests.fake_journal import all_entries, events_of, script
from tests.fakes import settle, steps, virtual
from tests.shadow.house import House, settled


@virtual
async def test_erase_counts_what_it_removed_and_the_name_is_free_again() -> None:
    house = House()
    await house.prompt("s", [1, 2, 3], turn="t")
    await house.output("s", "t", 0, [4])
    erased = await house.sessions.erase("s")
    assert (erased.session, erased.events, erased.ids) == ("s", 3, 4)
    assert house.sessions.peek("s") is None
    for call in (house.sessions.erase("s"), house.output("s", "t", 1, [5])):
        with pytest.raises(NotFoundError):
            await call
    assert (await house.prompt("s", [7], turn="t")).known == 1
    await house.check_views()


@virtual
async def test_messages_wait_for_an_erasure_and_find_a_new_session() -> None:
    """The file's journal may say that an erasure is done long after later commits."""
    house = House()
    await house.prompt("s", [1, 2, 3], turn="t")
    house.journal.cleaned.clear()
    erasing = asyncio.create_task(house.sessions.erase("s"))
    await steps()
    live = house.sessions.peek("s")
    assert live is not None
    assert live.durable is None, "the reader must not go on reading it"
    after = asyncio.create_task(house.prompt("s", [9], turn="t"))
    elsewhere = await house.prompt("other", [1], turn="t")
    assert elsewhere.known == 1
    await settled(house)
    assert not after.done()
    house.journal.cleaned.set()
    await erasing
    assert (await after).known == 1
    await house.check_views()
    again = await house.journaled("s")
    assert again is not None
    assert list(again.known) == [9]


@virtual
async def test_an_erasure_that_fails_leaves_the_session_as_it_was() -> None:
    house = House()
    await house.prompt("s", [1, 2, 3], turn="t")
    house.journal.fails = script([True])
    with pytest.raises(JournalError):
        await house.sessions.erase("s")
    await settled(house)
    assert (await house.output("s", "t", 0, [4])).known == 4
    await house.check_views()


@virtual
async def test_a_failure_while_an_erasure_is_cleaned_up_does_not_mix_old_and_new() -> None:
    house = House()
    await house.prompt("s", [1, 2, 3], turn="t")
    await house.prompt("other", [1], turn="t")
    house.journal.cleaned.clear()
    erasing = asyncio.create_task(house.sessions.erase("s"))
    await steps()
    # Its rows are gone, but it is not done; now another commit fails, and all in flight is folded
    # again: the erased session as an unknown one.
    house.journal.fails = script([True])
    with pytest.raises(JournalError):
        await house.output("other", "t", 0, [2])
    await house.prompt("s", [9], turn="new")
    house.journal.gate.clear()
    receipt = await house.sessions.output("s", "new", offset=0, ids=[8])
    house.journal.cleaned.set()
    await erasing
    live = house.sessions.peek("s")
    assert live is not None
    assert live.tentative is not None
    assert list(live.tentative.known) == [9, 8], "the old one's end is nothing to the new one"
    house.journal.gate.set()
    await receipt
    await house.check_views()


@virtual
async def test_a_cancelled_eraser_does_not_take_the_erasure_back() -> None:
    for moment in range(8):
        house = House()
        await house.prompt("s", [1], turn="t")
        erasing = asyncio.create_task(house.sessions.erase("s"))
        await steps(moment)
        erasing.cancel()
        await settle(erasing)
        await house.check_views()
        kinds = [type(event).__name__ for event in events_of(await all_entries(house.journal))]
        assert kinds in (["SessionErased"], ["SessionOpened", "Prompt"])
        assert moment < 3 or kinds == ["SessionErased"]
