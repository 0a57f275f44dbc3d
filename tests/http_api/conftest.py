"""A served runtime for every test that wants one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shadow_reader.shadow.vocabulary import load_vocabulary
from tests.http_api.fake_engine import FakeEngine
from tests.http_api.serving import Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Without a model: sessions are journaled, nothing is read."""
    async with serving(tmp_path) as found:
        yield found


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that answers at once, or when the test lets it."""
    return FakeEngine()


@pytest.fixture
async def asking(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Served]:
    """With a counting engine and the real vocabulary."""
    vocabulary = load_vocabulary("random:tiny")
    async with serving(tmp_path, engine=engine, vocabulary=vocabulary, question_ids=512) as found:
        yield found
