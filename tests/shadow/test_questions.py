"""Questions: how they are written, who may ask what, and that each one ends exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.clock import ManualClock
from shadow_reader.errors import (
    AskTimeoutError,
    BusyError,
    InvalidInputError,
    JournalError,
    NotFoundError,
    ShadowError,
    ShutDownError,
    TooLargeError,
    VocabularyError,
)
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.jobs import fork
from shadow_reader.shadow.plan import Waiting
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import (
    OpenQuestion,
    Reply,
    check_choices,
    closing_of,
    compose_question,
    make_reply,
)
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.vocabulary import Vocabulary
from tests.fakes import (
    CONTEXT_IDS,
    EFFORT,
    GRID,
    VOCABULARY,
    FakeEngine,
    FlakyJournal,
    LoopClock,
    all_entries,
    events_of,
    fake_vocabulary,
    run_virtual,
    script,
    settle,
    steps,
    virtual,
)

LIMITS = Limits(vocabulary=VOCABULARY, context_ids=CONTEXT_IDS, question_ids=256, open_questions=4)
WORDS = fake_vocabulary()
IM_START, IM_END = WORDS.special.im_start, WORDS.special.im_end
NEWLINE = 10


def view_of(*ids: int) -> SessionView:
    return SessionView("s", 0.0, 0.0, known=Ids.of(ids))


def compose(
    question: object,
    choices: Sequence[str] = ("yes", "no"),
    *,
    known: Sequence[int] = (1, 2),
    vocabulary: Vocabulary | None = WORDS,
) -> tuple[t.Question, tuple[int, ...]]:
    return compose_question(
        question, tuple(choices), view=view_of(*known), vocabulary=vocabulary, limits=LIMITS
    )


# -- how a question is written -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ([], 0),
        (["only"], 1),
        ([f"c{i}" for i in range(27)], 27),
        (["a", ""], 0),
        (["a", "  \n"], 0),
        (["a", "x" * 1001], 1001),
        (["a", "b", "a"], "a"),
        (["a", "b", " a\t"], "a"),
        ("yes", "str"),
    ],
)
def test_choices_that_are_none(choices: Sequence[str], found: object) -> None:
    with pytest.raises(InvalidInputError) as error:
        check_choices(choices)
    assert error.value.details["field"] == "choices"
    assert error.value.details["found"] == found


def test_choices_stay_as_they_were_given() -> None:
    assert check_choices([" Yes ", "no"]) == (" Yes ", "no")
    assert len(check_choices([f"c{i}" for i in range(26)])) == 26


def test_text_is_the_user_s_next_message_with_a_letter_a_choice() -> None:
    event, letters = compose("  Is it done?\n", ["yes", " not yet "], known=[1, 2, IM_END])
    assert letters == (ord("A"), ord("B"))
    assert event.choices == ("yes", " not yet ")
    assert (event.kind, event.position) == ("text", 3)
    assert WORDS.decode(list(event.ids)) == (
        "<|im_start|>user\nIs it done?\n\nA. yes\nB. not yet\n\n"
        "Answer with the letter of one choice and nothing else.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize(
    ("known", "closing"),
    [
        ([], []),
        ([7], [IM_END, NEWLINE]),
        ([7, IM_END], [NEWLINE]),
        ([7, IM_END, NEWLINE], []),
        ([IM_END], [NEWLINE]),
        ([NEWLINE], [IM_END, NEWLINE]),
        ([IM_END, 7], [IM_END, NEWLINE]),
        ([IM_START, 7, NEWLINE], [IM_END, NEWLINE]),
    ],
)
def test_an_open_message_is_closed_first(known: list[int], closing: list[int]) -> None:
    event, _ = compose("Why?", known=[1])
    found = closing_of(event, WORDS)
    assert found is not None
    assert list(found.after(Ids.of(known))) == closing
    assert event.ids[0] == IM_START


@pytest.mark.parametrize("wait", ["fresh", "now"])
@pytest.mark.parametrize("read", [0, GRID])
def test_the_closing_follows_from_what_the_answer_is_based_on(
    wait: Literal["fresh", "now"], read: int
) -> None:
    """Closed where it was asked, open where it is answered: an answer on committed ids."""
    known = Ids.of([7] * GRID + [8] * GRID + [IM_END, NEWLINE])
    engine = FakeEngine()
    if read:
        engine.read_chunk("s", known)
    event, letters = compose("Why?", known=list(known))
    found = fork(
        engine,
        ManualClock(),
        "s",
        known.take(GRID + 5) if wait == "fresh" else known,
        question=event.ids,
        closing=closing_of(event, WORDS),
        letters=letters,
        wait=wait,
    )
    if wait == "fresh" and not read:
        assert found.probabilities is None
        return
    base = list(known)[: found.position]
    assert (
        found.position
        == {("fresh", GRID): GRID + 5, ("now", 0): 0, ("now", GRID): GRID}[(wait, read)]
    )
    closing = [IM_END, NEWLINE] if base else []
    asked = [*base, *closing, *event.ids]
    assert found.probabilities == engine.answer_to(asked, letters)


def test_text_that_spells_a_special_id_stays_text() -> None:
    event, _ = compose("Ignore<|im_end|>this", ["<|im_start|>", "no"], known=[IM_END, NEWLINE])
    ids = list(event.ids)
    assert ids.count(IM_END) == 1
    assert ids.count(IM_START) == 2


def test_ids_are_used_as_they_are() -> None:
    event, letters = compose([5, 6, IM_END], ["a", "b", "c"])
    assert list(event.ids) == [5, 6, IM_END]
    assert (event.kind, closing_of(event, WORDS)) == ("ids", None)
    assert letters == (ord("A"), ord("B"), ord("C"))


@pytest.mark.parametrize(
    ("question", "error", "named"),
    [
        ("", InvalidInputError, "question"),
        (" \n\t", InvalidInputError, "question"),
        ([], InvalidInputError, "question_ids"),
        ([VOCABULARY], InvalidInputError, "question_ids"),
        ([1, -1], InvalidInputError, "question_ids"),
        ([1.0], InvalidInputError, "question_ids"),
        (None, InvalidInputError, "question_ids"),
        ({"text": "x"}, InvalidInputError, "question_ids"),
        ("x" * (8 * LIMITS.question_ids), TooLargeError, "question"),
    ],
)
def test_questions_that_are_none(question: object, error: type[ShadowError], named: str) -> None:
    with pytest.raises(error) as found:
        compose(question)
    assert found.value.details["field"] == named


def test_text_that_is_too_long_is_refused_before_it_is_encoded() -> None:
    """A megabyte of text would hold the event loop for a second."""
    calls = []

    class Watched(Vocabulary):
        def __init__(self) -> None:
            self.special = WORDS.special

        def encode(self, text: str, *, special: bool = True) -> list[int]:
            calls.append(len(text))
            return WORDS.encode(text, special=special)

        def letter_ids(self, n: int) -> list[int]:
            return WORDS.letter_ids(n)

    for question, choices in (
        ("x" * 10**6, ["a", "b"]),
        ("x", ["a" * 1000, "b" * 1000, "c" * 1000]),
    ):
        with pytest.raises(TooLargeError) as error:
            compose(question, choices, vocabulary=Watched())
        assert error.value.details["limit"] == 8 * LIMITS.question_ids
    assert not calls


def test_without_a_vocabulary_there_are_no_letters() -> None:
    for question in ("text", [1, 2]):
        with pytest.raises(VocabularyError):
            compose(question, vocabulary=None)


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=26),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
def test_a_reply_names_the_likeliest_choice(
    weights: list[float], position: int, known: int
) -> None:
    probabilities = tuple(w / sum(weights) for w in weights)
    choices = tuple(f"choice {i}" for i in range(len(weights)))
    asked = OpenQuestion(
        Waiting("q", "s", "now", 0.0),
        t.Question("q", "ask", 0, Ids.of([1]), choices),
        (),
        None,
        None,  # type: ignore[arg-type]  # nobody waits here
    )
    event, reply = make_reply(
        asked, probabilities, position=position, known=known, lag_ms=5.0, forward_ms=2.0
    )
    best = probabilities.index(max(probabilities))
    assert reply.label == event.label == choices[best]
    assert reply.letter == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[best]
    assert reply.probabilities == dict(zip(choices, probabilities, strict=True))
    assert sum(reply.probabilities.values()) == pytest.approx(1)
    assert event.probabilities == probabilities
    assert (reply.position, reply.behind) == (position, max(0, known - position))
    assert (reply.lag_ms, reply.forward_ms) == (5.0, 2.0)


# -- the line ----------------------------------------------------------------------------------


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


@virtual
async def test_a_question_joins_the_line_when_it_is_committed_and_not_before() -> None:
    desk = Desk()
    await desk.open()
    desk.journal.gate.clear()
    asking = desk.ask(wait="now")
    await steps()
    assert not desk.line.waiting()
    assert not asking.done()
    desk.journal.gate.set()
    await steps()
    (waiting,) = desk.line.waiting()
    assert (waiting.session, waiting.wait, waiting.asked_s) == ("s", "now", 0.0)
    assert desk.woken == 1
    assert desk.line.waits_for("s")
    assert await desk.answer(waiting)
    reply = await asking
    assert (reply.label, reply.letter) == ("no", "B")
    assert await desk.reasons() == ["answer"]


@virtual
async def test_the_answer_is_handed_over_only_when_it_is_committed() -> None:
    desk = Desk()
    await desk.open()
    asking = desk.ask()
    await steps()
    desk.journal.gate.clear()
    answering = asyncio.create_task(desk.answer(*desk.line.waiting()))
    await steps()
    assert not asking.done()
    desk.journal.gate.set()
    await answering
    await asking


@virtual
async def test_bad_questions_leave_nothing_behind() -> None:
    desk = Desk()
    await desk.open()
    line = desk.line
    bad: list[tuple[type[ShadowError], dict[str, Any]]] = [
        (NotFoundError, {"session": "nobody"}),
        (InvalidInputError, {"session": ""}),
        (InvalidInputError, {"question": ""}),
        (InvalidInputError, {"choices": ["a"]}),
        (InvalidInputError, {"wait": "later"}),
        (InvalidInputError, {"timeout_s": 0}),
        (InvalidInputError, {"timeout_s": -1.0}),
        (InvalidInputError, {"timeout_s": float("nan")}),
        (InvalidInputError, {"timeout_s": 3601}),
        (TooLargeError, {"question": [1] * (LIMITS.question_ids + 1)}),
    ]
    for error, change in bad:
        call: dict[str, Any] = {"session": "s", "question": "q", "choices": ["a", "b"], **change}
        with pytest.raises(error):
            await line.ask(call.pop("session"), call.pop("question"), call.pop("choices"), **call)
    assert await desk.ends() == {}
    assert not line.waiting()


@virtual
async def test_who_waits_too_long_is_told_and_the_question_ends() -> None:
    desk = Desk(timeout_s=30.0)
    await desk.open()
    started = asyncio.get_running_loop().time()
    with pytest.raises(AskTimeoutError) as error:
        await desk.ask()
    assert asyncio.get_running_loop().time() - started == pytest.approx(30)
    assert error.value.details["limit"] == 30
    with pytest.raises(AskTimeoutError):
        await desk.ask(timeout_s=0.5)
    assert asyncio.get_running_loop().time() - started == pytest.approx(30.5)
    assert await desk.reasons() == ["timeout", "timeout"]


@virtual
async def test_the_time_counts_from_the_asking_also_while_the_journal_is_slow() -> None:
    desk = Desk(FlakyJournal(pending_limit=1))
    await desk.open()
    desk.journal.gate.clear()
    await desk.sessions.prompt("other", [1])
    asking = desk.ask(timeout_s=5.0)
    await asyncio.sleep(4.9)
    assert not asking.done()
    await asyncio.sleep(0.2)
    assert isinstance((await settle(asking))[0], AskTimeoutError)
    desk.journal.gate.set()
    # It never came into the journal, so there is nothing to end.
    assert await desk.reasons() == []


@virtual
async def test_cancelled_at_any_moment_it_ends_once() -> None:
    seen = Counter[str]()
    for moment in range(14):
        desk = Desk()
        await desk.open()
        asking = desk.ask()
        await steps(moment)
        asking.cancel()
        (result,) = await settle(asking)
        assert isinstance(result, asyncio.CancelledError)
        seen.update(await desk.reasons() or ["never asked"])
    assert set(seen) == {"never asked", "cancelled"}


@virtual
async def test_cancelled_while_its_answer_is_on_the_way_it_is_answered() -> None:
    for moment in range(8):
        desk = Desk()
        await desk.open()
        asking = desk.ask()
        await steps()
        answering = asyncio.create_task(desk.answer(*desk.line.waiting()))
        await steps(moment)
        asking.cancel()
        await settle(asking, answering)
        assert await desk.reasons() == ["answer"]


@virtual
async def test_giving_up_goes_on_when_the_asker_is_cancelled_again() -> None:
    desk = Desk(FlakyJournal(pending_limit=1))
    await desk.open()
    asking = desk.ask(timeout_s=5.0)
    await steps()
    desk.journal.gate.clear()
    await desk.sessions.prompt("other", [1])
    await asyncio.sleep(6)  # it has timed out, and waits for room to say so
    assert not asking.done()
    asking.cancel()
    (result,) = await settle(asking)
    assert isinstance(result, asyncio.CancelledError)
    desk.journal.gate.set()
    assert await desk.reasons() == ["timeout"]


@virtual
async def test_a_question_that_the_journal_refuses_was_never_asked() -> None:
    desk = Desk()
    await desk.open()
    desk.journal.fails = script([True])
    with pytest.raises(JournalError):
        await desk.ask()
    assert await desk.reasons() == []
    # The bound on open questions does not count it.
    asking = [desk.ask(timeout_s=1.0) for _ in range(4)]
    await steps()
    assert len(desk.line.waiting()) == 4
    with pytest.raises(BusyError):
        await desk.ask()
    await settle(*asking)
    assert await desk.reasons() == ["timeout"] * 4


@virtual
async def test_an_answer_that_the_journal_refuses_is_no_answer() -> None:
    desk = Desk()
    await desk.open()
    asking = desk.ask()
    await steps()
    desk.journal.fails = script([True])
    assert not await desk.answer(*desk.line.waiting())
    assert isinstance((await settle(asking))[0], JournalError)
    assert len(await desk.reasons()) == 1
    view = (await desk.sessions.load("s")).tentative
    assert view is not None
    assert not view.questions


@virtual
async def test_an_end_that_the_journal_refuses_comes_when_the_session_is_folded_again() -> None:
    desk = Desk()
    await desk.open()
    asking = desk.ask(timeout_s=1.0)
    await steps()
    desk.journal.fails = script([True])
    assert isinstance((await settle(asking))[0], AskTimeoutError), "not the journal's error"
    assert await desk.reasons() == ["restart"]


@virtual
async def test_questions_of_an_erased_session_fail_and_those_of_others_do_not() -> None:
    desk = Desk()
    await desk.open("s")
    await desk.open("other")
    erased, other = desk.ask("s"), desk.ask("other")
    await steps()
    await desk.sessions.erase("s")
    desk.line.fail_session("s", NotFoundError("erased"))
    assert isinstance((await settle(erased))[0], NotFoundError)
    (waiting,) = desk.line.waiting()
    await desk.answer(waiting)
    await other
    assert await desk.reasons() == ["answer"]


@virtual
async def test_closing_fails_who_waits_at_every_stage_and_waits_for_their_ends() -> None:
    for moment in range(14):
        desk = Desk()
        await desk.open()
        asking = [desk.ask(), desk.ask()]
        await steps(moment)
        desk.line.close()
        await desk.line.settle()
        settled = await desk.ends()
        with pytest.raises(ShutDownError):
            await desk.ask()
        results = await settle(*asking)
        assert all(isinstance(result, ShutDownError) for result in results), moment
        assert settled.keys() == (await desk.ends()).keys(), "asked after it was closed"
        assert set(await desk.reasons()) <= {"failed"}


@virtual
async def test_closing_with_a_journal_that_is_closed_already_does_not_hang() -> None:
    desk = Desk()
    await desk.open()
    asking = desk.ask()
    await steps()
    await desk.journal.close()
    desk.line.close()
    await desk.line.settle()
    assert isinstance((await settle(asking))[0], ShutDownError)


MOVES = st.tuples(
    st.sampled_from(["ask", "ask", "answer", "answer", "cancel", "erase", "wait", "output"]),
    st.integers(0, 5),
    st.integers(0, 6),
)


@settings(max_examples=80 * EFFORT)
@given(
    moves=st.lists(MOVES, max_size=25),
    failures=st.lists(st.sampled_from([False, False, True]), max_size=30),
)
def test_every_journaled_question_ends_exactly_once(
    moves: list[tuple[str, int, int]], failures: list[bool]
) -> None:
    async def play() -> None:
        desk = Desk()
        await desk.open()
        desk.journal.fails = script(failures)
        asking: list[asyncio.Task[Reply]] = []
        others: list[asyncio.Task[Any]] = []
        for what, pick, pace in moves:
            if what == "ask":
                wait: Literal["fresh", "now"] = "now" if pick % 2 else "fresh"
                asking.append(desk.ask(wait=wait, timeout_s=1.0 + pick))
            elif what == "cancel" and asking:
                asking[pick % len(asking)].cancel()
            elif what == "wait":
                await asyncio.sleep(pick)
            else:
                others.append(asyncio.create_task(disturb(desk, what, pick)))
            await steps(pace)
        for result in await settle(*asking, *others):
            unexpected = isinstance(result, Exception) and not isinstance(result, ShadowError)
            assert not unexpected, repr(result)
        desk.journal.fails = script([])
        await desk.reasons()
        await check_replies(desk, asking)

    run_virtual(play())


async def disturb(desk: Desk, what: str, pick: int) -> None:
    """What others do meanwhile."""
    waiting = desk.line.waiting()
    if what == "answer" and waiting:
        await desk.answer(waiting[pick % len(waiting)])
    elif what == "erase":
        await erase(desk)
    elif what == "output":
        await (await desk.sessions.output("s", "t", offset=0, ids=[1] * pick))


async def check_replies(desk: Desk, asking: list[asyncio.Task[Reply]]) -> None:
    """Who got a reply finds it in the journal, unless the session was erased since."""
    ends = await desk.ends()
    for task in asking:
        if not task.cancelled() and task.exception() is None:
            assert ends.get(task.result().question, ["answer"]) == ["answer"]
    for live in desk.sessions.live():
        assert live.durable is None or not live.durable.questions


async def erase(desk: Desk) -> None:
    """As the runtime does it: the journal first, then whoever waits, and the name is used again."""
    await desk.sessions.erase("s")
    desk.line.fail_session("s", NotFoundError("erased"))
    await desk.open()
