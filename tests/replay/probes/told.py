"""Journals with labels that a real runtime wrote, and the vectors that its engine gave then."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.replay.held_state import HeldState
from shadow_reader.replay.probes.labels import Found, Wanted, find_labels
from shadow_reader.replay.probes.vectors import Reading, Vectors, read_vectors
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.torch_engine import TorchEngine
from shadow_reader.store.reader import JournalReader
from tests.replay.router.journals import GRID, IM_END, engine, some_ids
from tests.runtimes import runtime
from tests.shadow.models import SMALL

EVERY = tuple(range(SMALL.layers + 1))
READING = Reading(Ids.of([IM_END]), EVERY, last=2)
ROUTER = Wanted()
KIND = Wanted(name="kind")


@dataclass(slots=True)
class Talk:
    """A runtime that is talked to, and the live vector of every label, in the journal's order."""

    shadow: Runtime
    engine: TorchEngine
    chance: random.Random
    reading: Reading = READING
    known: dict[str, list[int]] = field(default_factory=dict)
    turns: int = 0
    seen: list[NDArray[np.float32]] = field(default_factory=list)
    routed: list[NDArray[np.float32]] = field(default_factory=list)

    async def turn(self, session: str, ids: list[int], router: str | None = None) -> None:
        """One turn; with the router's class the vector behind its prompt is looked at."""
        self.turns += 1
        name = f"t{self.turns}"
        await self.shadow.prompt(session, ids, turn=name, router=router)
        await self.shadow.wait_fresh(session)
        if router is not None:
            self.routed.append(await self.look(session, len(ids)))
        output = [self.chance.randrange(256) for _ in range(self.chance.randrange(GRID))]
        if output:
            await self.shadow.output(session, name, offset=0, ids=output)
        await self.shadow.end(session, name)
        await self.shadow.wait_fresh(session)
        self.known[session] = ids + output

    async def label(
        self, session: str, position: int, value: str, name: str = "kind", source: str = ""
    ) -> None:
        """Say what is right; where the vector can be looked at, it is."""
        self.seen.append(await self.look(session, position))
        await self.shadow.label(session, [t.Label(name, position, value, source)])

    async def look(self, session: str, position: int) -> NDArray[np.float32]:
        """The vectors of the running engine there."""
        line = position // GRID * GRID
        base = self.known.get(session, [])
        status = await self.shadow.session_status(session)
        async with self.shadow.lease.request():
            live = (await self.shadow.sessions.spoken(session)).durable
            assert live is not None
            base = list(live.known)
            return self.engine.vectors(
                status.session,
                tail=Ids.of([*base[line:position], *self.reading.suffix]),
                layers=self.reading.layers,
                last=self.reading.last,
                line=line,
            )

    async def positions(self, session: str) -> list[int]:
        """Where it can be looked at: above the committed line, and above checkpoints."""
        status = await self.shadow.session_status(session)
        stats = self.engine.state_stats(status.session)
        lines = {0} if stats is None else {0, stats.committed, *stats.checkpoints}
        known = status.known
        return [p for line in sorted(lines) for p in range(line, min(line + GRID, known + 1))]


def reading(folder: Path, own: TorchEngine, **changes: Any) -> Runtime:
    """A runtime that reads also while turns run."""
    return runtime(folder, own, foreground="lease", **changes)


async def talk(folder: Path, seed: int, steps: int = 14) -> Talk:
    """A random history: prompts that go on, go back and branch off, labels said and said again."""
    chance = random.Random(seed)
    own = engine()
    async with reading(folder, own, branches=2, branch_min_ids=16) as shadow:
        told = Talk(shadow, own, chance)
        for _ in range(steps):
            session = chance.choice("ab")
            before = told.known.get(session, [])
            if before and chance.random() < 0.5:
                position = chance.choice(await told.positions(session))
                await told.label(session, position, chance.choice("xyz"))
            else:
                keep = chance.choice([len(before), chance.randrange(len(before) + 1), 0])
                ids = before[:keep] + some_ids(chance, chance.randrange(9, 4 * GRID))
                await told.turn(session, ids, router=chance.choice([None, "chat", "debug"]))
    return told


async def found_in(folder: Path, wanted: Wanted) -> Found:
    """Labels of the journal in ``folder``."""
    async with await JournalReader.open(folder / "shadow.db") as journal:
        return await find_labels(journal, wanted, IM_END)


async def vectors_of(
    folder: Path,
    wanted: Wanted,
    reading: Reading = READING,
    *,
    snapshots: bool = False,
    skipped: Counter[str] | None = None,
    own: TorchEngine | None = None,
) -> tuple[Vectors, HeldState]:
    """Their vectors, of an engine of their own."""
    own = own or engine()
    held = HeldState(own, folder / "shadow.db-snapshots" if snapshots else None)
    try:
        async with await JournalReader.open(folder / "shadow.db") as journal:
            found = await find_labels(journal, wanted, IM_END)
            counts = Counter[str]() if skipped is None else skipped
            read = await read_vectors(journal, found, held, reading, counts)
        assert own.stats().sessions == 0, "a session was kept"
        return read, held
    finally:
        own.close()
