"""How the contract of a journal opens the journals of one kind, and makes their commits fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shadow_reader.events.journal import Journal


class House(ABC):
    """Opens journals of one kind, each empty, and makes their commits fail and work again."""

    def __init__(self) -> None:
        self.opened: list[Journal] = []

    @abstractmethod
    async def make(self, pending_limit: int, pending_bytes: int) -> Journal:
        """An empty journal."""

    @abstractmethod
    async def break_commits(self, journal: Journal) -> None:
        """From here on no commit works."""

    @abstractmethod
    async def mend(self, journal: Journal) -> None:
        """From here on commits work again."""

    async def open(self, *, pending_limit: int = 8192, pending_bytes: int = 64 << 20) -> Journal:
        """An empty journal that is closed at the end of the test."""
        journal = await self.make(pending_limit, pending_bytes)
        self.opened.append(journal)
        return journal

    async def close(self) -> None:
        """Close what was opened."""
        for journal in self.opened:
            await journal.close()


class Contract:
    """Tests that only use what ``Journal`` promises."""

    @pytest.fixture
    def house(self, tmp_path: Any) -> House:
        """The implementation."""
        raise NotImplementedError

    @pytest.fixture
    async def journal(self, house: House) -> AsyncIterator[Journal]:
        """An empty journal."""
        yield await house.open()
        await house.close()
