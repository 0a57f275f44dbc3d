"""Long texts are encoded beside the event loop, on real threads; too long ones not at all."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from shadow_reader.errors import AskTimeoutError, ShutDownError, TooLargeError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import LONG_CHARS, MAX_CHARS_AN_ID
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.vocabulary import PlainCodec, Vocabulary
from tests.fake_journal import FlakyJournal, all_entries
from tests.fakes import VOCABULARY, LoopClock, fake_vocabulary, settle, steps

PATIENCE_S = 20.0
LIMITS = Limits(
    vocabulary=VOCABULARY, context_ids=100_000, question_ids=2 * LONG_CHARS, open_questions=4
)
LONG = "x" * LONG_CHARS


@dataclass
class Desk:
    """A line of questions whose vocabulary can be stopped in the middle of a long text."""

    gate: threading.Event = field(default_factory=threading.Event)
    inside: threading.Event = field(default_factory=threading.Event)
    encoded: list[tuple[int, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()
        plain = fake_vocabulary()
        codec = PlainCodec(self._encode, lambda ids: plain.decode(ids), frozenset(range(256)))
        self.loop_thread = threading.get_ident()
        self.journal = FlakyJournal()
        self.sessions = Sessions(self.journal, LoopClock(), LIMITS, 64)
        words = Vocabulary(codec, plain.added, "gated")
        self.line = QuestionLine(self.sessions, LoopClock(), words, 30.0)
        self.encoded.clear()

    def _encode(self, text: str) -> list[int]:
        self.encoded.append((len(text), threading.get_ident() == self.loop_thread))
        if len(text) >= LONG_CHARS:
            self.inside.set()
            assert self.gate.wait(PATIENCE_S), "the test never opened the gate"
        return list(text.encode())

    async def questions(self) -> list[t.Question]:
        entries = await all_entries(self.journal)
        return [entry.event for entry in entries if isinstance(entry.event, t.Question)]


@pytest.fixture
async def desk() -> Desk:
    """One with a session of two ids."""
    found = Desk()
    await (await found.sessions.prompt("s", [1, 2], turn="t"))
    return found


async def asked(desk: Desk) -> None:
    """A question is in line."""
    async with asyncio.timeout(PATIENCE_S):
        while not desk.line.waiting():  # noqa: ASYNC110 - the line tells the reader alone
            await asyncio.sleep(0.001)


async def test_a_long_text_leaves_the_loop_free_and_stands_on_what_is_known_then(
    desk: Desk,
) -> None:
    desk.gate.clear()
    asking = asyncio.create_task(desk.line.ask("s", LONG, ["yes", "no"]))
    assert await asyncio.to_thread(desk.inside.wait, PATIENCE_S)
    receipt = await desk.sessions.output("s", "t", offset=0, ids=[3, 4, 5])
    assert (await receipt).known == 5, "messages go on meanwhile"
    desk.gate.set()
    await asked(desk)
    (question,) = await desk.questions()
    assert question.position == 5
    assert len(question.ids) > LONG_CHARS
    assert all(not here for size, here in desk.encoded if size >= LONG_CHARS)
    desk.line.close()
    await settle(asking)


async def test_a_short_text_is_not_worth_a_thread(desk: Desk) -> None:
    asking = asyncio.create_task(desk.line.ask("s", "Done?", ["yes", "no"]))
    await asked(desk)
    assert desk.encoded
    assert all(here for _, here in desk.encoded)
    desk.line.close()
    await settle(asking)


async def test_choices_count_too(desk: Desk) -> None:
    choices = [f"{letter}{'y' * 900}" for letter in "abcdef"]
    asking = asyncio.create_task(desk.line.ask("s", "Which?", choices))
    await asked(desk)
    assert [here for size, here in desk.encoded if size > LONG_CHARS] == [False]
    desk.line.close()
    await settle(asking)


async def test_a_text_past_the_limit_is_refused_before_it_is_encoded(desk: Desk) -> None:
    limit = MAX_CHARS_AN_ID * LIMITS.question_ids
    with pytest.raises(TooLargeError, match="question_ids") as error:
        await desk.line.ask("s", "x" * limit, ["yes", "no"])
    found = {"field": "question", "found": limit + len("yesno"), "limit": limit}
    assert error.value.details == found
    assert max(size for size, _ in desk.encoded) == 1, "the letters alone"


async def test_a_wait_that_is_over_before_the_text_is_encoded_asks_nothing(desk: Desk) -> None:
    desk.gate.clear()
    with pytest.raises(AskTimeoutError):
        await desk.line.ask("s", LONG, ["yes", "no"], timeout_s=0.01)
    leaving = asyncio.create_task(desk.line.ask("s", LONG, ["yes", "no"]))
    assert await asyncio.to_thread(desk.inside.wait, PATIENCE_S)
    leaving.cancel()
    await settle(leaving)
    closing = asyncio.create_task(desk.line.ask("s", LONG, ["yes", "no"]))
    await steps()
    desk.line.close()
    desk.gate.set()
    with pytest.raises(ShutDownError):
        await closing
    await desk.line.settle()
    assert await desk.questions() == []
