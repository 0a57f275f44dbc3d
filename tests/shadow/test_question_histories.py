"""Any history of the line: every journaled question ends exactly once."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import NotFoundError, ShadowError
from shadow_reader.shadow.questions import Reply
from tests.fake_journal import script
from tests.fakes import EFFORT, run_virtual, settle, steps
from tests.shadow.desk import Desk

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
