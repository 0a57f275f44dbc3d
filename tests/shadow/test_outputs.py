"""Outputs that came in a row are what the same outputs are one by one."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.clock import ManualClock
from shadow_reader.errors import ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.shadow.sessions import Accepted, Sessions
from shadow_reader.store.memory import MemoryJournal

LIMITS = Limits(vocabulary=100, context_ids=24, question_ids=8, open_questions=3)

IDS = st.lists(st.integers(0, 3), max_size=4) | st.sampled_from([[100], [-1], ["x"], 7])
DELTAS = st.lists(st.tuples(st.integers(-1, 12), IDS), max_size=8)
GROWING = st.lists(st.integers(0, 4), max_size=8).map(
    lambda sizes: [(sum(sizes[:n]), [n] * size) for n, size in enumerate(sizes)]
)


async def one_by_one(sessions: Sessions, deltas: list[tuple[int, Any]]) -> list[Any]:
    found: list[Any] = []
    for offset, ids in deltas:
        try:
            found.append(await (await sessions.output("s", "t", offset=offset, ids=ids)))
        except ShadowError as error:
            found.append((type(error), error.message, error.details))
    return found


async def in_a_row(sessions: Sessions, deltas: list[tuple[int, Any]]) -> list[Any]:
    receipt = await sessions.outputs("s", "t", deltas)
    seqs = await receipt
    return [
        (type(outcome), outcome.message, outcome.details)
        if isinstance(outcome, ShadowError)
        else Accepted("s", "t", *outcome[:2], None if outcome[2] is None else seqs[outcome[2]])
        for outcome in receipt.outcomes
    ]


async def history(deltas: list[tuple[int, Any]], ended: bool, how: Any) -> Any:
    journal = MemoryJournal()
    sessions = Sessions(journal, ManualClock(), LIMITS, 4)
    await (await sessions.prompt("s", [1, 2], turn="t"))
    await (await sessions.output("s", "t", offset=0, ids=[0]))
    if ended:
        await (await sessions.end("s", "t"))
    replies = await how(sessions, deltas)
    entries = [entry async for entry in journal.entries()]
    live = sessions.peek("s")
    assert live is not None
    views = live.tentative, live.durable
    await journal.close()
    return replies, entries, views


@settings(max_examples=150, deadline=None)
@given(DELTAS | GROWING, st.booleans())
def test_in_a_row_is_one_by_one(deltas: list[tuple[int, Any]], ended: bool) -> None:
    alone = asyncio.run(history(deltas, ended, one_by_one))
    together = asyncio.run(history(deltas, ended, in_a_row))
    assert together == alone


async def test_each_knows_its_own_entry() -> None:
    journal = MemoryJournal()
    sessions = Sessions(journal, ManualClock(), LIMITS, 4)
    await (await sessions.prompt("s", [1], turn="t"))
    deltas: list[tuple[int, object]] = [(0, [5]), (0, [5]), (3, [9]), (1, [6, 7])]
    found = await in_a_row(sessions, deltas)
    assert [a.seq for a in found if isinstance(a, Accepted)] == [3, None, 4]
    assert [a.output for a in found if isinstance(a, Accepted)] == [1, 1, 3]
    events = [entry.event async for entry in journal.entries(kinds=["output"])]
    assert [e.offset for e in events if isinstance(e, t.Output)] == [0, 1]
    await journal.close()
