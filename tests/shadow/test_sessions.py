"""Live sessions: two views, one journal, and what the reader says of them."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.errors import (
    BusyError,
    ConflictError,
    JournalError,
    NotFoundError,
    TooLargeError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.sessions import Accepted, Receipt
from tests.fake_journal import FlakyJournal, all_entries, events_of, script
from tests.fakes import CONTEXT_IDS, settle, steps, virtual
from tests.shadow.house import House, settled

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
