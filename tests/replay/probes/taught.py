"""A journal that can be learned from: what is right of a session is the last thing it said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.replay.held_state import HeldState
from shadow_reader.replay.probes.fit import Rules
from shadow_reader.replay.probes.labels import Wanted, find_labels
from shadow_reader.replay.probes.training import Evaluated, Trained, evaluate, train
from shadow_reader.replay.probes.vectors import Reading
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.probe_file import TrainedProbe
from shadow_reader.shadow.torch_engine import TorchEngine
from shadow_reader.store.reader import JournalReader
from tests.replay.probes.told import KIND, reading
from tests.replay.router.journals import IM_END, engine
from tests.shadow.models import SMALL

SAYS = {"alpha": 65, "beta": 66, "gamma": 67}
LEARNED = Reading(Ids.of([IM_END]), (SMALL.layers,), last=8)
QUICK = Rules(strengths=(1.0, 0.1, 0.01))


async def teach(
    shadow: Runtime, *, sessions: int = 6, each: int = 10, seed: int = 0, prefix: str = "s"
) -> None:
    """Sessions that say one of three things at each turn's end, and labels and classes that say
    which; and labels that say nothing."""
    chance = random.Random(seed)
    for number in range(sessions):
        session, ids = f"{prefix}{number}", [chance.randrange(256) for _ in range(20)]
        for turn in range(each):
            value = chance.choice(list(SAYS))
            ids += [*(chance.randrange(256) for _ in range(6)), *[SAYS[value]] * 8, IM_END]
            await shadow.prompt(session, list(ids), turn=f"t{turn}", router=value)
            await shadow.end(session, f"t{turn}")
            label = t.Label("kind", len(ids), value, "tests")
            dice = t.Label("dice", len(ids), chance.choice(["low", "high"]), "tests")
            await shadow.label(session, [label, dice])


async def taught(folder: Path, **more: Any) -> Path:
    """Such a journal, closed."""
    async with reading(folder, engine()) as shadow:
        await teach(shadow, **more)
    return folder / "shadow.db"


async def learn(
    journal: Path,
    wanted: Wanted = KIND,
    how: Reading = LEARNED,
    rules: Rules = QUICK,
    *,
    name: str = "said",
    own: TorchEngine | None = None,
) -> Trained:
    """A probe of the journal."""
    used = own or engine()
    try:
        async with await JournalReader.open(journal) as source:
            found = await find_labels(source, wanted, IM_END)
            return await train(source, found, HeldState(used), name, how, rules)
    finally:
        used.close()


async def judge(
    journal: Path, probe: TrainedProbe, wanted: Wanted = KIND, own: TorchEngine | None = None
) -> Evaluated:
    """A probe on the journal."""
    used = own or engine()
    try:
        async with await JournalReader.open(journal) as source:
            found = await find_labels(source, wanted, IM_END)
            return await evaluate(source, found, HeldState(used), probe)
    finally:
        used.close()
