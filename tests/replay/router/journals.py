"""Journals that a real runtime wrote, whose turns the router was asked about; and engines to ask
again with."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shadow_reader.profiles import Profile, ShadowProfile
from shadow_reader.replay.router.asking import Asker
from shadow_reader.replay.router.evaluate import Report, evaluate
from shadow_reader.replay.router.past import Filter
from shadow_reader.replay.router.wordings import Variant
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.torch_engine import TorchEngine
from shadow_reader.store.reader import JournalReader
from tests.fakes import fake_vocabulary
from tests.runtimes import runtime, until
from tests.shadow.models import SMALL, small_model
from tests.shadow.states import GIB

GRID = 32
VOCABULARY = fake_vocabulary()
IM_END = VOCABULARY.special.im_end
CLASSES = {"code_edit": "changes to code", "chat": "", "debug": "finding a fault"}
EVERY = Filter()
CONFIG = replace(SMALL, vocab=320)


def engine(*, grid: int = GRID, gib: float = 1.0, context: int = 0, **changes: Any) -> TorchEngine:
    """The small real model; with the same arguments the same identity."""
    model = small_model(config=replace(CONFIG, **changes))
    if changes:
        model.weights_hash = "another"
    return TorchEngine(model, grid=grid, cap_bytes=int(gib * GIB), context_ids=context)


@asynccontextmanager
async def live(folder: Path, **changes: Any) -> AsyncIterator[Runtime]:
    """A runtime whose profile ``coding`` asks the router's question."""
    shadow: dict[str, Any] = {
        "mode": "on",
        "router": "shadow",
        "router_min_tokens": 8,
        "router_classes": CLASSES,
    }
    settings: dict[str, Any] = {
        "profiles": {"coding": Profile(shadow=ShadowProfile(**shadow))},
        "branches": 2,
        "branch_min_ids": 16,
        **changes,
    }
    async with runtime(folder, engine(), **settings) as found:
        yield found


async def turn(shadow: Runtime, session: str, ids: Sequence[int], name: str, **more: Any) -> None:
    """One turn, whose question is answered before this returns."""
    await shadow.prompt(session, list(ids), turn=name, profile="coding", **more)
    await shadow.end(session, name)

    async def settled() -> bool:
        found = (await shadow.status()).router
        assert found is not None
        return found.open == 0

    await until(settled)


def some_ids(chance: random.Random, count: int) -> list[int]:
    """Text of so many ids that ends a message."""
    return [*(chance.randrange(256) for _ in range(count - 1)), IM_END]


async def talk(folder: Path, seed: int, turns: int = 12, **changes: Any) -> int:
    """A random history of prompts that go on, go back and branch off; its turns."""
    chance = random.Random(seed)
    known: dict[str, list[int]] = {}
    async with live(folder, **changes) as shadow:
        for number in range(turns):
            session = chance.choice("ab")
            before = known.get(session, [])
            keep = chance.choice([len(before), chance.randrange(len(before) + 1), 0])
            ids = before[:keep] + some_ids(chance, chance.randrange(9, 5 * GRID))
            own = chance.choice([*CLASSES, None])
            decided = None if own is None else chance.random() < 0.5
            await turn(shadow, session, ids, f"t{number}", router=own, decided=decided)
            known[session] = ids
    return turns


async def replay(
    journal: Path,
    *variants: Variant,
    asker: TorchEngine | None = None,
    chosen: Filter = EVERY,
    snapshots: Path | None = None,
    **more: Any,
) -> Report:
    """The evaluation of a closed journal."""
    own = asker or engine()
    try:
        async with await JournalReader.open(journal) as reader:
            asking = Asker(own, VOCABULARY, snapshots)
            report = await evaluate(reader, asking, chosen, variants, **more)
        assert own.stats().sessions == 0, "a session was kept"
        return report
    finally:
        own.close()


def rewrite(journal: Path, kind: str, change: Callable[[str], str]) -> None:
    """Change the JSON of the first entry of a kind, behind the journal's back."""
    with sqlite3.connect(journal) as db:
        first = "SELECT seq, data FROM journal WHERE kind = ? ORDER BY seq LIMIT 1"
        seq, data = db.execute(first, (kind,)).fetchone()
        changed = change(data)
        assert changed != data
        db.execute("UPDATE events SET data = ? WHERE seq = ?", (changed.encode(), seq))
    db.close()
