"""Any order of appends, erasures, failures and re-openings, against a list of entries."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shadow_reader.errors import JournalError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.store import reclaim
from shadow_reader.store.journal import SqliteJournal
from tests.store.drafts import erased, everything

T = TypeVar("T")

sessions = st.sampled_from(["a", "b", "c", "ä"])
drafts = st.builds(
    t.Draft,
    at=st.floats(0, 9),
    session=sessions,
    turn=st.sampled_from(["", "t1", "t2"]),
    event=st.one_of(
        st.just(t.FirstToken()),
        st.builds(
            t.Output,
            st.integers(0, 9),
            st.builds(Ids.of, st.lists(st.integers(0, 2**32 - 1), max_size=9)),
        ),
        st.builds(
            t.Prompt, st.just(0), st.builds(lambda n: Ids.of(range(n)), st.integers(0, 3000))
        ),
    ),
)
batches = st.lists(drafts, min_size=1, max_size=5)
erasures = st.lists(sessions, min_size=1, max_size=3, unique=True).map(tuple)
submissions = st.lists(st.one_of(batches, erasures), min_size=1, max_size=6)
Names: TypeAlias = tuple[str, ...]
"""Sessions that are erased together."""


class JournalModel(RuleBasedStateMachine):
    """A journal and the list it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "shadow.db"
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(reclaim, "LEAST_DEAD_BYTES", 4000)
        self.journal = self.run(SqliteJournal.open(self.path))
        self.model: list[t.Entry] = []
        self.last_seq = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.journal.close())
        self.runner.close()
        self.patched.undo()
        self.folder.cleanup()

    @rule(group=submissions)
    def submit(self, group: list[list[t.Draft] | Names]) -> None:
        async def all_at_once() -> list[range | tuple[t.Entry, ...]]:
            futures = [self._submit(item) for item in group]
            return [await future for future in futures]

        assert self.run(all_at_once()) == [self._expect(item) for item in group]

    @rule(group=submissions)
    def fail(self, group: list[list[t.Draft] | Names]) -> None:
        async def in_vain() -> None:
            writer = self.journal._parts.writer
            await writer.run(lambda db: db.execute("PRAGMA query_only = ON"))
            for future in [self._submit(item) for item in group]:
                with pytest.raises(JournalError):
                    await future
            await writer.run(lambda db: db.execute("PRAGMA query_only = OFF"))

        self.run(in_vain())

    @rule()
    def reopen(self) -> None:
        self.run(self.journal.close())
        self.journal = self.run(SqliteJournal.open(self.path))

    @invariant()
    def it_holds_the_model(self) -> None:
        assert self.run(everything(self.journal)) == self.model
        assert self.journal.stats().last_seq == self.last_seq
        rows = self.run(self.journal.sessions())
        live: dict[str, list[t.Entry]] = {}
        for entry in self.model:
            live.setdefault(entry.session, []).append(entry)
        named = sorted(
            name for name, mine in live.items() if not isinstance(mine[-1].event, t.SessionErased)
        )
        assert [row.session for row in rows] == named
        recent = self.run(self.journal.recent_sessions(limit=99))
        assert list(recent) == sorted(rows, key=lambda row: -row.last_seq)
        for row in rows:
            mine = live[row.session]
            assert (row.events, row.last_seq, row.last_at) == (len(mine), mine[-1].seq, mine[-1].at)

    def _submit(self, item: list[t.Draft] | Names) -> Any:
        if isinstance(item, tuple):
            return self.journal.erase(*map(erased, item))
        return self.journal.submit(item)

    def _expect(self, item: list[t.Draft] | Names) -> range | tuple[t.Entry, ...]:
        if isinstance(item, tuple):
            return tuple(self._erased(name) for name in item)
        seqs = [self._made(draft).seq for draft in item]
        return range(seqs[0], seqs[-1] + 1)

    def _erased(self, name: str) -> t.Entry:
        gone = [entry for entry in self.model if entry.session == name]
        self.model = [entry for entry in self.model if entry.session != name]
        ids = sum(len(e.event.ids) for e in gone if isinstance(e.event, t.Prompt | t.Output))
        return self._made(erased(name)._replace(event=t.SessionErased(len(gone), ids)))

    def _made(self, draft: t.Draft) -> t.Entry:
        self.last_seq += 1
        self.model.append(t.Entry(draft.at, draft.session, draft.turn, draft.event, self.last_seq))
        return self.model[-1]


JournalModel.TestCase.settings = settings(
    max_examples=settings().max_examples // 8, stateful_step_count=12
)
TestJournalModel = JournalModel.TestCase
