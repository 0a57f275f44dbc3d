"""Live sessions: two views, one journal, and commits that fail whenever they like."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    JournalError,
    NotFoundError,
    ShadowError,
    ShutDownError,
    TooLargeError,
)
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.fold import fold, fold_all
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.sessions import Accepted, Receipt, Sessions
from shadow_reader.shadow.turn_watch import watch_turns
from shadow_reader.store.submission import Erasure, Result, Submission
from tests.fakes import (
    CONTEXT_IDS,
    EFFORT,
    VOCABULARY,
    FlakyJournal,
    LoopClock,
    all_entries,
    events_of,
    run_virtual,
    script,
    settle,
    steps,
    virtual,
)

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
        return await (await self.sessions.question(session, asked(question)))

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


# -- the two views -----------------------------------------------------------------------------


@virtual
async def test_nothing_is_acknowledged_or_durable_before_its_commit() -> None:
    house = House()
    house.journal.gate.clear()
    receipt = await house.sessions.prompt("s", [1, 2, 3], turn="t")
    waiting = asyncio.ensure_future(receipt_of(receipt))
    await steps()
    live = house.sessions.peek("s")
    assert live is not None
    assert live.tentative is not None
    assert list(live.tentative.known) == [1, 2, 3]
    assert live.durable is None
    assert not waiting.done()
    assert await all_entries(house.journal) == []
    assert house.changed == ["s"]  # that it was loaded

    # Decisions go on upon what was submitted.
    second = await house.sessions.output("s", "t", offset=0, ids=[4])
    house.journal.gate.set()
    first = await waiting
    assert first == Accepted("s", "t", 3, 0, seq=2)
    assert await second == Accepted("s", "t", 4, 1, seq=3)
    await house.check_views()
    assert house.changed == ["s"] * 3


async def receipt_of(receipt: Receipt) -> Accepted:
    return await receipt


@virtual
async def test_a_message_sent_again_while_in_flight_waits_for_the_first_one_s_commit() -> None:
    house = House()
    house.journal.gate.clear()
    original = asyncio.create_task(house.prompt("s", [1, 2, 3], turn="t"))
    await steps()
    again = asyncio.create_task(house.prompt("s", [1, 2, 3], turn="t"))
    await steps()
    assert not again.done()
    house.journal.gate.set()
    assert await original == Accepted("s", "t", 3, 0, seq=2)
    assert await again == Accepted("s", "t", 3, 0, seq=None)
    # And sent again later it is known at once.
    assert (await house.prompt("s", [1, 2, 3], turn="t")).seq is None
    assert len(await all_entries(house.journal)) == 2


@virtual
async def test_a_message_sent_again_fails_with_the_commit_it_hangs_on() -> None:
    house = House()
    house.journal.fails = script([True])
    house.journal.gate.clear()
    original = asyncio.create_task(house.prompt("s", [1, 2], turn="t"))
    await steps()
    again = asyncio.create_task(house.prompt("s", [1, 2], turn="t"))
    await steps()
    house.journal.gate.set()
    assert all(isinstance(r, JournalError) for r in await settle(original, again))
    assert await all_entries(house.journal) == []
    assert (await house.prompt("s", [1, 2], turn="t")).seq == 2
    await house.check_views()


@virtual
async def test_what_waits_behind_a_failed_commit_fails_and_is_forgotten() -> None:
    house = House()
    await house.prompt("s", [1, 2], turn="t")
    await house.prompt("other", [9], turn="t")
    house.journal.gate.clear()
    house.journal.fails = script([True])
    doomed = [await house.sessions.output("s", "t", offset=0, ids=[3])]
    await steps()  # the writer takes the first alone; the rest waits behind it
    doomed += [await house.sessions.output("s", "t", offset=1, ids=[4])]
    doomed += [await house.sessions.output("other", "t", offset=0, ids=[5])]
    house.journal.gate.set()
    results = await settle(*(receipt_of(receipt) for receipt in doomed))
    assert all(isinstance(result, JournalError) for result in results)
    # What failed is not known any more: the same offset again is new, a later one is a gap.
    with pytest.raises(ConflictError) as gap:
        await house.output("s", "t", 1, [4])
    assert gap.value.details["expected"] == 0
    assert (await house.output("s", "t", 0, [7])).known == 3
    await house.check_views()


@virtual
async def test_a_session_folded_again_after_a_failure_is_told_of() -> None:
    """The reader sleeps until it is told of a change; a session that came back is one."""
    house = House()
    await house.prompt("s", [1, 2], turn="t")
    house.changed.clear()
    house.journal.fails = script([True])
    with pytest.raises(JournalError):
        await house.output("s", "t", 0, [3])
    await settled(house)
    assert house.changed == ["s"]
    assert house.sessions.peek("s") is not None


@virtual
async def test_a_cancelled_sender_leaves_a_whole_message_or_none() -> None:
    for moment in range(12):
        house = House()
        await house.prompt("s", [1, 2], turn="t")
        sender = asyncio.create_task(house.output("s", "t", 0, [3, 4]))
        await steps(moment)
        sender.cancel()
        results = await settle(sender)
        await house.check_views()
        view = await house.journaled("s")
        assert view is not None
        assert list(view.known) in ([1, 2], [1, 2, 3, 4])
        if not isinstance(results[0], asyncio.CancelledError):
            assert list(view.known) == [1, 2, 3, 4], "it was acknowledged"
        again = await house.output("s", "t", 0, [3, 4])
        assert (again.known, again.output) == (4, 2)
        await house.check_views()


@virtual
async def test_a_sender_cancelled_while_the_queue_is_full_leaves_nothing() -> None:
    house = House(FlakyJournal(pending_limit=2))
    await house.prompt("s", [1], turn="t")
    house.journal.gate.clear()
    for offset in range(2):
        await house.sessions.output("s", "t", offset=offset, ids=[2])
    blocked = [asyncio.create_task(house.output("s", "t", offset, [2])) for offset in range(2, 6)]
    await steps()
    assert not any(task.done() for task in blocked)
    assert house.journal.stats().pending <= 2
    blocked[0].cancel()
    house.journal.gate.set()
    results = await settle(*blocked)
    assert isinstance(results[0], asyncio.CancelledError)
    # Those behind it find a gap: what it wanted to say was never said.
    assert all(isinstance(result, ConflictError) for result in results[1:])
    await house.check_views()


# -- loading and leaving memory ----------------------------------------------------------------


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


# -- erasing -----------------------------------------------------------------------------------


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


# -- what the reader says ----------------------------------------------------------------------


@virtual
async def test_a_checkpoint_is_kept_only_while_its_ids_are_known() -> None:
    house = House()
    await house.prompt("s", list(range(16)), turn="t")
    read = Ids.of(range(16))
    mark = t.Checkpoint(8, "digest", "engine")
    assert await house.sessions.record("s", mark, read=read) is not None
    # The prompt changes below the position while the digest is made.
    house.journal.gate.clear()
    await house.sessions.prompt("s", [0, 1, 2, 99], turn="t2")
    assert await house.sessions.record("s", mark, read=read) is None
    kept = await house.sessions.record("s", t.Read(0, 8, "idle", 1.0), mark, read=read)
    assert kept is not None
    house.journal.gate.set()
    await kept
    events = events_of(await all_entries(house.journal, "s"))
    assert events[-1] == t.Read(0, 8, "idle", 1.0)
    assert events.count(mark) == 1


@virtual
async def test_what_was_done_to_an_erased_session_is_not_said_of_its_successor() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    live = house.sessions.peek("s")
    assert live is not None
    assert live.durable is not None
    opened = live.durable.opened_at
    done = t.Read(0, 8, "idle", 1.0)
    assert await house.sessions.record("s", done, opened_at=opened) is not None
    await asyncio.sleep(1)
    await house.sessions.erase("s")
    assert await house.sessions.record("s", done, opened_at=opened) is None
    await house.prompt("s", [1], turn="t")
    assert await house.sessions.record("s", done, opened_at=opened) is None
    assert done not in events_of(await all_entries(house.journal, "s"))


@virtual
async def test_a_question_ends_once_whoever_ends_it() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    await house.ask("s", "q")
    answer = t.Answer("q", "yes", (0.5, 0.5), 1, 0, 1.0, 1.0)
    await house.sessions.record("s", t.QuestionEnded("q", "timeout"))
    assert await house.sessions.record("s", answer) is None
    assert await house.sessions.record("s", t.QuestionEnded("q", "cancelled")) is None
    await house.check_views()
    assert len(await all_entries(house.journal, "s")) == 4


@virtual
async def test_the_bound_on_open_questions_and_on_their_room() -> None:
    house = House()
    with pytest.raises(NotFoundError):
        await house.ask("nobody", "q")
    await house.prompt("s", [1] * (CONTEXT_IDS - 1), turn="t")
    with pytest.raises(TooLargeError):
        await house.ask("s", "q")
    await house.prompt("s", [1, 2], turn="t2")
    for number in range(3):
        await house.ask("s", f"q{number}")
    with pytest.raises(BusyError):
        await house.ask("s", "one too many")
    await house.sessions.record("s", t.QuestionEnded("q1", "cancelled"))
    await house.ask("s", "room again")


@virtual
async def test_a_question_whose_end_could_not_be_journaled_ends_when_it_is_folded_again() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    await house.ask("s", "ended")
    await house.ask("s", "still asked")
    house.journal.fails = script([True])
    receipt = await house.sessions.record("s", t.QuestionEnded("ended", "timeout"))
    assert receipt is not None
    with pytest.raises(JournalError):
        await receipt
    await settled(house)
    view = await house.journaled("s")
    assert view is not None
    assert set(view.questions) == {"still asked"}, "somebody still waits for the other one"
    last = (await all_entries(house.journal, "s"))[-1].event
    assert last == t.QuestionEnded("ended", "restart")
    await house.check_views()


@virtual
async def test_after_a_restart_open_questions_end_and_running_turns_run_on() -> None:
    house = House()
    await house.prompt("s", [1], turn="t")
    await house.output("s", "t", 0, [2])
    for question in ("q1", "q2"):
        await house.ask("s", question)
    again = House(house.journal)
    await again.sessions.load("s")
    await again.check_views()
    events = events_of(await all_entries(house.journal, "s"))
    assert events[-2:] == [t.QuestionEnded("q1", "restart"), t.QuestionEnded("q2", "restart")]
    assert (await again.output("s", "t", 1, [3])).output == 2
    assert (await again.end("s", "t")).seq is not None


# -- turns without news ------------------------------------------------------------------------


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


# -- everything at once ------------------------------------------------------------------------

SESSIONS = ("a", "b")
MOVES = st.tuples(
    st.sampled_from(["prompt", "again", "output", "overlap", "end", "ask", "answer", "erase"]),
    st.sampled_from(SESSIONS),
    st.integers(0, 7),  # what exactly
    st.integers(0, 5),  # how far the others get meanwhile
    st.booleans(),  # whether the sender is cancelled half-way
)


@dataclass
class Traffic:
    """Random senders, and what they were told."""

    house: House
    acknowledged: list[tuple[Accepted, int]] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    questions: list[tuple[str, str]] = field(default_factory=list)

    async def send(self, kind: str, session: str, pick: int) -> None:
        house, turn = self.house, f"t{self.turns.get(session, 0)}"
        live = house.sessions.peek(session)
        view = live.tentative if live else None
        known = list(view.known) if view else []
        output = view.output_length if view else 0
        call: Awaitable[Accepted]
        if kind == "prompt":
            self.turns[session] = self.turns.get(session, 0) + 1
            turn = f"t{self.turns[session]}"
            keep = min(len(known), 3 * pick)
            call = house.prompt(session, [*known[:keep], 100 + pick], turn=turn)
        elif kind == "again" and view and view.turn:
            prompt = known[: view.prompt_length]
            call = house.prompt(session, prompt, turn=view.turn.turn)
        elif kind == "output":
            call = house.output(session, turn, output, [pick] * (1 + pick))
        elif kind == "overlap" and view:
            start = max(0, output - pick)
            ids = known[view.prompt_length + start :] if view.turn else []
            call = house.output(session, turn, start, [*ids, pick])
        elif kind == "ask":
            self.questions.append((session, f"q{len(self.questions)}"))
            call = house.ask(*self.questions[-1])
        elif kind == "answer" and self.questions:
            name, question = self.questions[pick % len(self.questions)]
            await house.sessions.record(name, t.QuestionEnded(question, "cancelled"))
            return
        elif kind == "erase":
            await house.sessions.erase(session)
            return
        else:
            call = house.end(session, turn)
        accepted = await call
        self.acknowledged.append((accepted, house.journal.stats().last_seq))


@settings(max_examples=80 * EFFORT)
@given(
    moves=st.lists(MOVES, max_size=30),
    failures=st.lists(st.sampled_from([False, False, True]), max_size=40),
    commit_s=st.sampled_from([0.0, 0.0, 0.001]),
    pending_limit=st.sampled_from([1, 2, 8192]),
)
def test_no_history_of_failing_commits_loses_or_invents_anything(
    moves: list[tuple[str, str, int, int, bool]],
    failures: list[bool],
    commit_s: float,
    pending_limit: int,
) -> None:
    async def play() -> None:
        journal = WholeJournal(pending_limit=pending_limit, commit_s=commit_s)
        house = House(journal, capacity=3)
        journal.fails = script(failures)
        traffic = Traffic(house)
        senders = []
        for kind, session, pick, pace, cancel in moves:
            sender = asyncio.create_task(traffic.send(kind, session, pick))
            senders.append(sender)
            await steps(pace)
            if cancel:
                sender.cancel()
        for result in await settle(*senders):
            assert result is None or isinstance(result, ShadowError | asyncio.CancelledError), repr(
                result
            )
        await house.check_views()
        for accepted, last_seq in traffic.acknowledged:
            journal.check(accepted, last_seq)
        journal.fails = script([])
        # Whatever happened: every open question can still be ended, and every session goes on.
        for session in SESSIONS:
            await house.prompt(session, [1, 2, 3], turn="last")
        await house.check_views()

    run_virtual(play())


def committed(group: Sequence[Submission], results: Sequence[Result]) -> Iterator[t.Entry]:
    """What a group left in the journal, erased since or not."""
    for item, result in zip(group, results, strict=True):
        if isinstance(item, Erasure):
            assert isinstance(result, tuple)
            yield from result
        else:
            assert isinstance(result, range)
            for draft, seq in zip(item.drafts, result, strict=True):
                yield t.Entry(*draft, seq)


class WholeJournal(FlakyJournal):
    """Remembers every commit, erased or not, to compare acknowledgements with."""

    def __init__(self, *, pending_limit: int, commit_s: float) -> None:
        super().__init__(pending_limit=pending_limit, commit_s=commit_s)
        self.views: dict[str, list[tuple[int, SessionView | None]]] = {}

    async def _commit(self, group: Sequence[Submission]) -> Sequence[Result]:
        results = await super()._commit(group)
        for entry in committed(group, results):
            past = self.views.setdefault(entry.session, [(0, None)])
            past.append((entry.seq, fold(past[-1][1], entry)))
        return results

    def check(self, accepted: Accepted, last_seq: int) -> None:
        """What was acknowledged had been committed when it was."""
        past = self.views[accepted.session]
        if accepted.seq is not None:
            assert accepted.seq <= last_seq
            view = dict(past)[accepted.seq]
            assert view is not None
            assert (accepted.known, accepted.output) == (len(view.known), view.output_length)
        else:
            assert any(
                view is not None
                and (len(view.known), view.output_length) == (accepted.known, accepted.output)
                for seq, view in past
                if seq <= last_seq
            )


@virtual
async def test_bad_names_and_ids_change_nothing() -> None:
    house = House()
    bad: list[Callable[[], Awaitable[Any]]] = [
        lambda: house.prompt("", [1]),
        lambda: house.prompt("s" * 201, [1]),
        lambda: house.prompt("s\n", [1]),
        lambda: house.prompt("s", [1], turn=""),
        lambda: house.prompt("s", []),
        lambda: house.prompt("s", [VOCABULARY]),
        lambda: house.prompt("s", [-1]),
        lambda: house.prompt("s", [True]),
        lambda: house.prompt("s", [1], keep=-1),
        lambda: house.prompt("s", "text"),  # type: ignore[arg-type]  # that is the test
    ]
    for call in bad:
        with pytest.raises(InvalidInputError):
            await call()
    with pytest.raises(TooLargeError):
        await house.prompt("s", [1] * (CONTEXT_IDS + 1))
    with pytest.raises(ConflictError):
        await house.prompt("s", [1], keep=1)
    assert await all_entries(house.journal) == []
    assert all(live.tentative is None for live in house.sessions.live())
