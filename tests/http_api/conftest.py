"""A served runtime for every test that wants one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shadow_reader.http.client import ShadowClient
from shadow_reader.shadow.vocabulary import load_vocabulary
from tests.http_api.fake_engine import FakeEngine
from tests.http_api.serving import OUTPUT, TURNS, Served, serving


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


@pytest.fixture
async def client(served: Served) -> AsyncIterator[ShadowClient]:
    """Of a service without a model."""
    async with ShadowClient(served.address.url) as found:
        yield found


@pytest.fixture
async def asker(asking: Served) -> AsyncIterator[ShadowClient]:
    """Of a service that answers."""
    async with ShadowClient(asking.address.url) as found:
        yield found


@pytest.fixture
async def fed(asking: Served) -> Served:
    """Two sessions: s1 after a turn t0, with t1 running at 5 + 2 ids; full has 8 ids left."""
    await asking.ok("POST", TURNS, {"turn": "t0", "ids": [1, 2, 3]})
    await asking.ok("POST", f"{TURNS}/t0/end", {})
    await asking.ok("POST", TURNS, {"turn": "t1", "ids": [1, 2, 3, 4, 5]})
    await asking.ok("POST", OUTPUT, {"offset": 0, "ids": [6, 7]})
    await asking.ok("POST", "/v1/sessions/full/turns", {"turn": "t0", "ids": [1] * 4088})
    return asking
