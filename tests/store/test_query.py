"""Filters: the SQL, the list of the journal in memory, and plain Python give the same entries."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.events import types as t
from shadow_reader.events.codec import KINDS, kind_of
from shadow_reader.events.ids import Ids
from shadow_reader.events.journal import Journal
from shadow_reader.store import query, reader
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.memory import MemoryJournal
from shadow_reader.store.query import EntryQuery, Span
from tests.store.drafts import erased, everything, opened, output, stopped

SESSIONS = ("a", "b", "")
TURNS = ("t1", "t2", "")


def some_drafts() -> list[t.Draft]:
    """Sixty drafts of two sessions and the engine, whose times jump back and forth."""
    drafts = []
    for number in range(20):
        at = float(number * 7 % 10)
        turn = TURNS[number // 8]
        drafts += [
            output("a", number, turn=turn, at=at),
            t.Draft(at, "b", TURNS[number % 3], t.FirstToken()),
            stopped(at) if number % 5 == 0 else opened("a", at),
        ]
    return drafts


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One loop for a module's journals, so that hypothesis need not make them anew."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def journals(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Journal]]:
    """Both kinds, with the same content: a session was erased, another begun again after it."""

    async def fill(journal: Journal) -> Journal:
        await journal.submit([output("gone", n, turn="t1") for n in range(5)])
        await journal.submit(some_drafts()[:30])
        await journal.erase(erased("gone"))
        await journal.erase(erased("b"))
        await journal.submit(some_drafts()[30:])
        return journal

    async def both() -> list[Journal]:
        path = tmp_path_factory.mktemp("journal") / "shadow.db"
        return [await fill(await SqliteJournal.open(path)), await fill(MemoryJournal())]

    journals = runner.run(both())
    yield journals
    for journal in journals:
        runner.run(journal.close())


filters = st.fixed_dictionaries(
    {},
    optional={
        "session": st.sampled_from([*SESSIONS, "gone", "unknown"]),
        "turn": st.sampled_from([*TURNS, "unknown"]),
        "kinds": st.lists(
            st.sampled_from(["output", "first_token", "engine.stopped", "answer", "session.erased"])
        ),
        "after": st.integers(0, 70),
        "since": st.floats(-1, 11),
        "until": st.floats(-1, 11),
        "limit": st.integers(0, 70),
        "newest_first": st.booleans(),
    },
)


@given(wanted=filters)
def test_every_filter_gives_what_plain_python_does(
    runner: asyncio.Runner, journals: list[Journal], wanted: dict[str, Any]
) -> None:
    async def ask(journal: Journal) -> tuple[list[t.Entry], list[t.Entry]]:
        every = await everything(journal)
        return every, [entry async for entry in journal.entries(**wanted)]

    rules = {name: value for name, value in wanted.items() if name != "limit"}
    if "kinds" in rules:
        rules["kinds"] = tuple(rules["kinds"])
    for journal in journals:
        every, found = runner.run(ask(journal))
        expected = [e for e in every if EntryQuery(**rules).holds(e, kind_of(e.event))]
        if wanted.get("newest_first"):
            expected.reverse()
        assert found == expected[: wanted.get("limit")]


def test_both_journals_hold_the_same(runner: asyncio.Runner, journals: list[Journal]) -> None:
    sqlite, memory = (runner.run(everything(journal)) for journal in journals)
    assert sqlite == memory
    assert {e.session for e in sqlite} == {"a", "b", "", "gone"}
    assert len(sqlite) == 52


@pytest.fixture(scope="module")
def db(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    """A journal's file with sessions, dead ones too, as a plain connection."""

    async def fill(path: Path) -> None:
        journal = await SqliteJournal.open(path)
        for session in ("a", "b", "gone"):
            await journal.submit([output(session, n, turn=f"t{n // 50}") for n in range(500)])
        await journal.submit([stopped()])
        await journal.erase(erased("gone"))
        await journal.close()

    path = tmp_path_factory.mktemp("journal") / "shadow.db"
    runner.run(fill(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(
    ("wanted", "finds"),
    [
        ({}, "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ({"since": 0.0}, "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ({"turn": "t2"}, "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ({"session": "a"}, "USING INDEX events_by_session (session=? AND rowid>? AND rowid<?)"),
        (
            {"session": "a", "turn": "t2", "kinds": ("output", "prompt")},
            "USING INDEX events_by_session (session=? AND rowid>? AND rowid<?)",
        ),
        (
            {"kinds": ("first_token", "engine.stopped", "session.erased"), "until": 9.0},
            "USING INDEX events_by_kind (kind=? AND rowid>? AND rowid<?)",
        ),
        (
            {"kinds": ("output", "engine.stopped")},
            "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        ),
    ],
)
def test_a_page_is_found_by_an_index_and_not_sorted(
    db: sqlite3.Connection, wanted: dict[str, Any], finds: str, newest_first: bool
) -> None:
    asked = EntryQuery(**wanted, newest_first=newest_first)
    statement = query._statement(db, asked, Span(0, 2000), 512)
    assert statement is not None
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement[0]}", statement[1])]
    assert any(finds in step for step in plan), plan
    reads_events = [step for step in plan if step.startswith(("SCAN e", "SCAN events"))]
    assert not reads_events, plan
    # all that may be sorted are a page's seqs of each kind, a few hundred each
    sorts = any("TEMP B-TREE" in step for step in plan)
    assert sorts == ("events_by_kind" in finds), plan


def test_sessions_are_listed_without_looking_at_events(db: sqlite3.Connection) -> None:
    for tail in ("AND name > 'a' ORDER BY name LIMIT 5", "ORDER BY last_seq DESC LIMIT 5"):
        sql = f"EXPLAIN QUERY PLAN {reader._SESSION_ROW} {tail}"
        plan = " ".join(row[3] for row in db.execute(sql))
        assert "sessions" in plan
        assert "events" not in plan


def test_ids_of_every_kind_come_back(runner: asyncio.Runner) -> None:
    async def ask() -> list[t.Entry]:
        journal = MemoryJournal()
        await journal.submit([t.Draft(1.0, "a", "t", t.Prompt(0, Ids.of([1])))])
        found = [e async for e in journal.entries(kinds=list(KINDS))]
        await journal.close()
        return found

    assert [e.seq for e in runner.run(ask())] == [1]
