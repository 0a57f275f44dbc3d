"""Lines of talk under one session key: nothing is lost or mixed, and each is read for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shadow_reader.bounds import Bound
from shadow_reader.errors import ConflictError, InvalidInputError, JournalError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.shadow.erasures import Erasures
from tests.fake_journal import all_entries
from tests.fakes import GRID, steps, virtual
from tests.shadow.branching import a_rig, known
from tests.shadow.rig import quiet

MAIN = [i % 900 for i in range(3, 3 + 9 * GRID)]


TITLE = [901, 902, *range(40, 40 + 2 * GRID)]


@virtual
async def test_case_06_an_unrelated_prompt_costs_the_long_line_nothing() -> None:
    """A, then unrelated B, then a continuation of A: only the continuation is read."""
    rig = a_rig().start()
    await rig.whole_turn("s", MAIN, "a1", [1, 2])
    await quiet(30)
    await rig.whole_turn("s", TITLE, "b1", [5])
    await quiet(30)
    rig.assert_exact("s")
    rig.assert_exact("s~branch1")
    before = len(rig.deeds["s"])
    more = [*MAIN, 1, 2, *range(700, 700 + 2 * GRID)]
    await rig.whole_turn("s", more, "a2")
    await quiet(30)
    rig.assert_exact("s")
    chunks = [deed for deed in rig.deeds["s"][before:] if deed[0] == "read"]
    assert len(chunks) == len(more) // GRID - len(MAIN) // GRID
    assert not await rig.events("s", t.Rewind)
    assert await known(rig, "s~branch1") == [*TITLE, 5]
    await rig.stop()


@virtual
async def test_case_07_two_turns_at_once_are_both_taken_whole() -> None:
    """The title request begins and ends while the main one streams."""
    rig = a_rig().start()
    await rig.prompt("s", MAIN, "main")
    await rig.output("s", "main", 0, [1, 2])
    accepted = await rig.prompt("s", TITLE, "title")
    assert accepted.session == "s"
    assert accepted.known == len(TITLE)
    for offset in range(3):
        await rig.output("s", "title", offset, [10 + offset])
        await rig.output("s", "main", 2 + offset, [20 + offset])
    await rig.end("s", "title")
    await rig.output("s", "main", 5, [30])
    await rig.end("s", "main")
    assert await known(rig, "s") == [*MAIN, 1, 2, 20, 21, 22, 30]
    assert await known(rig, "s~branch1") == [*TITLE, 10, 11, 12]
    ended = [e.event for e in await all_entries(rig.journal) if isinstance(e.event, t.TurnEnded)]
    assert [event.reason for event in ended] == ["stop", "stop"]
    await quiet(30)
    rig.assert_exact("s")
    rig.assert_exact("s~branch1")
    await rig.stop()


@virtual
async def test_a_question_is_about_the_line_that_runs_then_about_the_last_spoken_of() -> None:
    rig = a_rig(turns_block=False).start()
    await rig.prompt("s", MAIN, "main")
    await rig.whole_turn("s", TITLE, "title")
    reply = await rig.ask("s")
    assert (reply.session, reply.position) == ("s", len(MAIN))
    await rig.end("s", "main")
    await rig.whole_turn("s", [*TITLE, 9], "title2")
    reply = await rig.ask("s")
    assert (reply.session, reply.position) == ("s~branch1", len(TITLE) + 1)
    reply = await rig.ask("s~branch0")
    assert (reply.session, reply.position) == ("s", len(MAIN))
    with pytest.raises(NotFoundError):
        await rig.ask("s~branch2")
    await rig.stop()


@virtual
async def test_nobody_can_speak_to_a_branch_by_its_name() -> None:
    rig = a_rig().start()
    await rig.whole_turn("s", MAIN, "t1")
    await rig.whole_turn("s", TITLE, "t2")
    for name in ("s~branch1", "s~branch0", "other~branch3"):
        with pytest.raises(InvalidInputError, match="name the session"):
            await rig.prompt(name, [1], "t3")
        with pytest.raises(InvalidInputError, match="name the session"):
            await rig.sessions.erase(name)
    await rig.stop()


@virtual
async def test_a_turn_id_is_used_once_in_all_lines() -> None:
    rig = a_rig()
    await rig.whole_turn("s", MAIN, "t1")
    await rig.whole_turn("s", TITLE, "t2")
    await rig.whole_turn("s", [*MAIN, 4], "t3")
    for turn in ("t1", "t2"):
        with pytest.raises(ConflictError):
            await rig.prompt("s", [5, 5, 5], turn)
        with pytest.raises(ConflictError, match="has ended"):
            await rig.output("s", turn, 0, [1])
    repeated = await rig.prompt("s", [*MAIN, 4], "t3")
    assert repeated.seq is None


@virtual
async def test_kept_ids_are_the_last_prompt_s_line_s_or_the_named_turn_s() -> None:
    rig = a_rig()
    await rig.whole_turn("s", MAIN, "a1")
    await rig.whole_turn("s", TITLE, "b1")

    async def prompt(ids: list[int], **more: Any) -> int:
        return (await (await rig.sessions.prompt("s", ids, **more))).known

    await prompt([7], keep=len(TITLE), turn="b2")
    assert await known(rig, "s~branch1") == [*TITLE, 7]
    await rig.end("s", "b2")
    await prompt([8], keep=len(MAIN), keep_of="a1", turn="a2")
    assert await known(rig, "s") == [*MAIN, 8]
    await rig.end("s", "a2")
    # What keeps too little of its line is an unrelated prompt, which gets a line of its own.
    await prompt([8, 9], keep=GRID, turn="c1")
    assert await known(rig, "s~branch2") == [*MAIN[:GRID], 8, 9]
    assert await known(rig, "s") == [*MAIN, 8]
    with pytest.raises(ConflictError, match="ids are known"):
        await prompt([8], keep=len(MAIN), turn="c2")
    with pytest.raises(NotFoundError, match="no turn 'nobody'"):
        await prompt([8], keep=1, keep_of="nobody", turn="c2")
    with pytest.raises(InvalidInputError, match="keep must be at least 0"):
        await prompt([8], keep=-1, turn="c2")
    with pytest.raises(InvalidInputError, match="keep_of says whose ids keep counts"):
        await prompt([8], keep_of="a1", turn="c2")


@virtual
async def test_with_all_lines_in_use_the_one_spoken_of_longest_ago_is_replaced() -> None:
    rig = a_rig(branches=1)
    await rig.whole_turn("s", MAIN, "a1")
    await rig.whole_turn("s", MAIN[::-1], "b1")
    await rig.prompt("s", [*range(300, 300 + 5 * GRID)], "c1")
    assert len(await known(rig, "s")) == 5 * GRID
    assert await known(rig, "s~branch1") == MAIN[::-1]
    # Both run now: the third supersedes the one that nobody spoke of for longer.
    await asyncio.sleep(1)
    await rig.prompt("s", [*MAIN[::-1], 1], "b2")
    await rig.prompt("s", [*range(600, 600 + 5 * GRID)], "d1")
    ended = [
        (entry.turn, entry.event.reason)
        for entry in await all_entries(rig.journal, "s")
        if isinstance(entry.event, t.TurnEnded)
    ]
    assert ended == [("a1", "stop"), ("c1", "superseded")]


@virtual
async def test_lines_come_back_after_a_restart_and_leave_with_their_session() -> None:
    one = a_rig().start()
    for turn, ids in enumerate((MAIN, TITLE, MAIN[::-1])):
        await one.whole_turn("s", ids, f"t{turn}")
    await quiet(30)
    await one.stop()
    rig = a_rig(one.journal).start()
    await quiet(30)
    for name in ("s", "s~branch1", "s~branch2"):
        rig.assert_exact(name)
    assert (await rig.prompt("s", [*TITLE, 5], "t5")).known == len(TITLE) + 1
    await rig.end("s", "t5")
    erasures = Erasures(rig.sessions, rig.line, Bound("erasures", 8), rig.reader.forget)
    erased = await erasures.erase("s")
    assert erased.branches == 2
    assert erased.ids == 2 * len(MAIN) + len(TITLE) + 1
    assert not rig.engine.states
    assert not await rig.journal.sessions()
    with pytest.raises(NotFoundError):
        await erasures.erase("s")
    await rig.whole_turn("s", [1, 2, 3], "t1")
    assert (await rig.sessions.load("s")).branches == 0
    await rig.stop()


@virtual
async def test_a_message_of_a_session_that_is_being_erased_waits_for_all_of_its_lines() -> None:
    rig = a_rig()
    await rig.whole_turn("s", MAIN, "t1")
    await rig.whole_turn("s", TITLE, "t2")
    rig.journal.gate.clear()
    erasing = asyncio.create_task(rig.sessions.erase("s"))
    await steps()
    prompting = asyncio.create_task(rig.prompt("s", TITLE, "t2"))
    await steps()
    assert not prompting.done()
    rig.journal.gate.set()
    await erasing
    assert (await prompting).known == len(TITLE)
    assert await known(rig, "s") == TITLE
    assert not await known(rig, "s~branch1")


@virtual
async def test_a_branch_whose_first_commit_failed_was_never_begun() -> None:
    rig = a_rig()
    await rig.whole_turn("s", MAIN, "t1")
    rig.journal.fails = lambda _group: True
    with pytest.raises(JournalError):
        await rig.prompt("s", TITLE, "t2")
    rig.journal.fails = lambda _group: False
    await quiet(1)
    assert not await known(rig, "s~branch1")
    await rig.whole_turn("s", TITLE, "t2")
    assert await known(rig, "s~branch1") == TITLE
    assert await known(rig, "s") == MAIN


@virtual
async def test_lines_are_found_again_when_they_had_to_leave_memory() -> None:
    rig = a_rig(capacity=4)
    await rig.whole_turn("s", MAIN, "t1")
    await rig.whole_turn("s", TITLE, "t2")
    for number in range(6):
        await rig.whole_turn(f"other {number}", [number], "t1")
    await quiet(1)
    assert rig.sessions.peek("s") is rig.sessions.peek("s~branch1") is None
    await rig.whole_turn("s", [*TITLE, 6], "t3")
    assert await known(rig, "s~branch1") == [*TITLE, 6]
    assert await known(rig, "s") == MAIN


@virtual
async def test_lines_that_their_session_left_make_room_first() -> None:
    rig = a_rig().start()
    await rig.whole_turn("s", MAIN, "t1")
    await quiet(5)
    await rig.whole_turn("other", MAIN, "t1")
    await quiet(5)
    for turn in range(3):  # a session that begins anew with every prompt
        ids = [(7 * turn + 5) * i % 901 for i in range(9 * GRID)]
        await rig.whole_turn("nonce", ids, f"t{turn}")
        await quiet(5)
    assert rig.reader.roster.residents() == [
        "nonce",
        "nonce~branch1",
        "s",
        "other",
        "nonce~branch2",
    ]
    await rig.stop()
