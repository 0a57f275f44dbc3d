"""Live sessions over a journal that fails when a test asks for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.fold import fold_all
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.sessions import Accepted, Sessions
from tests.fake_journal import FlakyJournal, all_entries
from tests.fakes import CONTEXT_IDS, VOCABULARY, LoopClock

LIMITS = Limits(vocabulary=VOCABULARY, context_ids=CONTEXT_IDS, question_ids=64, open_questions=3)


@dataclass
class House:
    """Sessions over a journal in memory, under virtual time."""

    journal: FlakyJournal = field(default_factory=FlakyJournal)
    clock: LoopClock = field(default_factory=LoopClock)
    capacity: int = 64
    changed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions = Sessions(
            self.journal, self.clock, LIMITS, self.capacity, self.changed.append
        )

    async def prompt(self, session: str, ids: list[int], **more: Any) -> Accepted:
        return await (await self.sessions.prompt(session, ids, **more))

    async def output(self, session: str, turn: str, offset: int, ids: list[int]) -> Accepted:
        return await (await self.sessions.output(session, turn, offset=offset, ids=ids))

    async def end(self, session: str, turn: str, **more: Any) -> Accepted:
        return await (await self.sessions.end(session, turn, **more))

    async def ask(self, session: str, question: str) -> Accepted:
        return await (await self.sessions.questions(session, [asked(question)]))

    async def journaled(self, session: str) -> SessionView | None:
        return fold_all(None, await all_entries(self.journal, session))

    async def check_views(self) -> None:
        """Once everything is settled, memory says what the journal says."""
        await settled(self)
        for live in self.sessions.live():
            expected = await self.journaled(live.session)
            assert live.tentative == live.durable == expected, live.session


async def settled(house: House) -> None:
    """Let everything that is queued happen."""
    await asyncio.sleep(1000.0)
    assert house.journal.stats().pending == 0


def asked(question: str) -> t.Question:
    return t.Question(question, "ask", 0, Ids.of([1, 2]), ("yes", "no"))
