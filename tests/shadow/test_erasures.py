"""Erasures: one of a session at a time, a bounded number, each to its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from shadow_reader.bounds import Bound
from shadow_reader.errors import BusyError, JournalError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.shadow.changes import Changes
from shadow_reader.shadow.erasures import Erasures
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.sessions import Sessions
from tests.fake_journal import FlakyJournal, all_entries
from tests.fakes import CONTEXT_IDS, VOCABULARY, LoopClock, settle, steps, virtual

LIMITS = Limits(vocabulary=VOCABULARY, context_ids=CONTEXT_IDS, question_ids=64, open_questions=8)


@dataclass
class House:
    """Erasures over a journal whose commits, and whose dropping of states, can be held back."""

    journal: FlakyJournal = field(default_factory=FlakyJournal)
    forgotten: list[str] = field(default_factory=list)
    may_forget: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        clock = LoopClock()
        self.sessions = Sessions(self.journal, clock, LIMITS, capacity=64)
        self.bound = Bound("erasures", 2)
        line = QuestionLine(self.sessions, clock, None, 30.0)
        self.erasures = Erasures(self.sessions, line, self.bound, self._forget)
        self.may_forget.set()

    async def _forget(self, session: str) -> None:
        await self.may_forget.wait()
        self.forgotten.append(session)

    async def prompt(self, session: str, turn: str = "t1") -> None:
        await (await self.sessions.prompt(session, [1, 2], turn=turn))

    async def erased(self) -> int:
        """Erasures in the journal."""
        found = await all_entries(self.journal)
        return sum(isinstance(entry.event, t.SessionErased) for entry in found)


@virtual
async def test_who_asks_again_meanwhile_waits_for_the_same_one() -> None:
    house = House()
    await house.prompt("s")
    house.journal.gate.clear()
    tasks = len(asyncio.all_tasks())
    for _ in range(100):
        leaving = asyncio.create_task(house.erasures.erase("s"))
        await steps(5)
        leaving.cancel()
        await settle(leaving)
    assert house.bound.used == 1
    assert len(asyncio.all_tasks()) <= tasks + 3, "the erasure, and its journal's"
    asking = [asyncio.create_task(house.erasures.erase("s")) for _ in range(3)]
    await steps()
    house.journal.gate.set()
    results = await asyncio.gather(*asking)
    assert {(r.session, r.events) for r in results} == {("s", 2)}
    assert (await house.erased(), house.forgotten, house.bound.used) == (1, ["s"], 0)


@virtual
async def test_a_session_that_came_back_is_erased_for_itself() -> None:
    """The first erasure still drops the state when the name is used, and erased, again."""
    house = House()
    await house.prompt("s")
    house.may_forget.clear()
    first = asyncio.create_task(house.erasures.erase("s"))
    await steps()
    same = asyncio.create_task(house.erasures.erase("s"))
    await steps()
    await house.prompt("s")
    second = asyncio.create_task(house.erasures.erase("s"))
    await steps()
    assert (await house.erased(), house.bound.used) == (1, 1)
    house.may_forget.set()
    assert await first == await same
    assert (await second).events == 2 + 1, "the first erasure's own entry among them"
    assert house.sessions.peek("s") is None
    assert (house.forgotten, house.bound.used) == (["s", "s"], 0)


@virtual
async def test_more_than_the_bound_are_sent_away() -> None:
    house = House()
    for name in "abc":
        await house.prompt(name)
    house.journal.gate.clear()
    erasing = [asyncio.create_task(house.erasures.erase(name)) for name in "ab"]
    await steps()
    with pytest.raises(BusyError) as error:
        await house.erasures.erase("c")
    assert error.value.details == {"field": "erasures", "found": 2, "limit": 2}
    settling = asyncio.create_task(house.erasures.settle())
    await steps()
    assert not settling.done()
    house.journal.gate.set()
    await settling
    await asyncio.gather(*erasing)
    assert (await house.erasures.erase("c")).events == 2


@virtual
async def test_one_that_fails_gives_its_place_back() -> None:
    house = House()
    for _ in range(3):
        with pytest.raises(NotFoundError):
            await house.erasures.erase("nobody")
    await house.prompt("s")
    house.journal.fails = lambda _group: True
    for _ in range(3):
        with pytest.raises(JournalError):
            await house.erasures.erase("s")
    house.journal.fails = lambda _group: False
    assert (await house.erasures.erase("s")).events == 2
    assert house.bound.used == 0


@virtual
async def test_every_commit_wakes_all_who_wait_for_a_change() -> None:
    house, changes = House(), Changes()
    house.sessions.on_change = changes.tell
    waiting = [asyncio.create_task(changes.next()) for _ in range(3)]
    await steps()
    await house.prompt("s")
    await asyncio.gather(*waiting)
    again = asyncio.create_task(changes.next())
    await steps()
    assert not again.done(), "what was told is told once"
    await house.erasures.erase("s")
    await again
