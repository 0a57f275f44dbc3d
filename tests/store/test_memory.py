"""The journal in memory: the contract, and its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadow_reader.errors import JournalFullError
from shadow_reader.events.journal import Journal
from shadow_reader.store.memory import MemoryJournal
from tests.store.contract import JournalContract
from tests.store.contract_house import House
from tests.store.drafts import erased, output, seqs


class MemoryHouse(House):
    """Breaks a commit with a limit of no bytes."""

    async def make(self, pending_limit: int, pending_bytes: int) -> Journal:
        return MemoryJournal(pending_limit=pending_limit, pending_bytes=pending_bytes)

    async def break_commits(self, journal: Journal) -> None:
        assert isinstance(journal, MemoryJournal)
        journal.limit_bytes = -1

    async def mend(self, journal: Journal) -> None:
        assert isinstance(journal, MemoryJournal)
        journal.limit_bytes = None


class TestMemoryJournal(JournalContract):
    """The contract."""

    @pytest.fixture
    def house(self, tmp_path: Path) -> House:
        return MemoryHouse()


async def test_a_full_journal_keeps_nothing_and_an_erasure_makes_room() -> None:
    journal = MemoryJournal(limit_bytes=1000)
    await journal.submit([output("a", 0, n=200)])
    with pytest.raises(JournalFullError, match="pass 1000"):
        await journal.submit([output("b", 0), output("b", 1, n=50)])
    assert await seqs(journal) == [1]
    await journal.erase(erased("a"))
    assert journal.stats().bytes < 200
    await journal.submit([output("b", 0), output("b", 1, n=50)])
    assert await seqs(journal) == [2, 3, 4]
