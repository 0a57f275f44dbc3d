"""The line of questions: every one that was journaled ends once, whatever happens to who asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from shadow_reader.errors import (
    AskTimeoutError,
    BusyError,
    InvalidInputError,
    JournalError,
    NotFoundError,
    ShadowError,
    ShutDownError,
    TooLargeError,
)
from tests.fake_journal import FlakyJournal, script
from tests.fakes import settle, steps, virtual
from tests.shadow.desk import LIMITS, Desk


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
