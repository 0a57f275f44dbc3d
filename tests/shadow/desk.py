"""A line of questions over live sessions, answered by the test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from shadow_reader.errors import ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.shadow.plan import Waiting
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import Reply, make_reply
from shadow_reader.shadow.sessions import Sessions
from tests.fake_journal import FlakyJournal, all_entries, events_of
from tests.fakes import CONTEXT_IDS, VOCABULARY, LoopClock, fake_vocabulary

LIMITS = Limits(vocabulary=VOCABULARY, context_ids=CONTEXT_IDS, question_ids=256, open_questions=4)


WORDS = fake_vocabulary()


@dataclass
class Desk:
    """A line of questions over a journal in memory, with the test in the reader's place."""

    journal: FlakyJournal = field(default_factory=FlakyJournal)
    timeout_s: float = 30.0
    woken: int = 0

    def __post_init__(self) -> None:
        clock = LoopClock()
        self.sessions = Sessions(self.journal, clock, LIMITS, 64)
        self.line = QuestionLine(self.sessions, clock, WORDS, self.timeout_s, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    async def open(self, session: str = "s") -> None:
        await (await self.sessions.prompt(session, [1, 2], turn="t"))

    def ask(self, session: str = "s", **more: Any) -> asyncio.Task[Reply]:
        return asyncio.create_task(self.line.ask(session, "Done?", ["yes", "no"], **more))

    async def answer(self, waiting: Waiting) -> bool:
        """What the reader does with a forward's result; whether it was journaled."""
        asked = self.line.get(waiting.question)
        assert asked is not None
        event, reply = make_reply(
            asked, (0.25, 0.75), position=2, known=2, lag_ms=1.0, forward_ms=1.0
        )
        receipt = await self.sessions.record(waiting.session, event)
        if receipt is None:
            return False
        try:
            await receipt
        except ShadowError as error:
            self.line.fail(waiting.question, error)
            return False
        self.line.answer(waiting.question, reply)
        return True

    async def ends(self) -> dict[str, list[str]]:
        """Every journaled question with its ends, named by their reason."""
        found: dict[str, list[str]] = {}
        for event in events_of(await all_entries(self.journal)):
            if isinstance(event, t.Question):
                assert event.question not in found
                found[event.question] = []
            elif isinstance(event, t.Answer):
                found[event.question].append("answer")
            elif isinstance(event, t.QuestionEnded):
                found[event.question].append(event.reason)
        return found

    async def reasons(self) -> list[str]:
        """The single end of each question."""
        await asyncio.sleep(1000)
        ends = await self.ends()
        assert all(len(reasons) == 1 for reasons in ends.values()), ends
        assert not self.line.waiting()
        return [reasons[0] for reasons in ends.values()]
