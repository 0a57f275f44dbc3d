"""What a long session costs: bytes of its state by part, and bytes of its journal.

    python -m bench.memory --ids 100000 --turns 60 --json

A session of ``turns`` turns is fed through the library and read by the model; each turn's prompt
is the whole conversation so far, outputs come in deltas of a few ids, and every fifth turn drops
some of what the turn before produced. The journal's file is then closed and weighed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.machine import this_machine
from shadow_reader.config import Settings
from shadow_reader.events.ids import ID_BYTES
from shadow_reader.events.journal import JournalStats
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.status import SessionStatus

DELTA_IDS = 6
OUTPUT_SHARE = 0.3
WORDS = 248_000


@dataclass(frozen=True, slots=True)
class Cost:
    """One session's cost.

    Attributes:
        ids: known at the end. fed_ids: new ids ever journaled. events: entries of the session.
        state_bytes: of its pages, state and checkpoints. journal_bytes: of the closed file.
        empty_journal_bytes: of a journal without the session.
        bytes_an_event: what the journal takes beyond the ids, an entry.
    """

    ids: int
    turns: int
    fed_ids: int
    events: int
    pages: int
    checkpoints: int
    state_bytes: int
    account_peak_bytes: int
    journal_bytes: int
    empty_journal_bytes: int
    times_the_ids: float
    bytes_an_event: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(model=args.model, journal=Path(folder) / "session.db")
        cost = asyncio.run(measure(settings, args.ids, args.turns, args.seed))
    machine = this_machine("cpu")
    if args.json:
        print(json.dumps({"machine": machine.to_json(), "model": args.model} | asdict(cost)))
        return
    print(machine.line())
    for name, value in asdict(cost).items():
        print(
            f"{name:>20}  {value:>14,.2f}"
            if isinstance(value, float)
            else f"{name:>20}  {value:>14,}"
        )


async def measure(settings: Settings, ids: int, turns: int, seed: int) -> Cost:
    """Feed, read, close, weigh."""
    async with Runtime(settings.model_copy(update={"journal": empty_path(settings)})):
        pass
    async with Runtime(settings) as shadow:
        fed = await feed(shadow, ids, turns, random.Random(seed))
        status = await shadow.wait_fresh("s", timeout_s=600)
        events = sum([1 async for _ in shadow.journal_entries(session="s")])
        model = (await shadow.status()).model
        assert model is not None
        peak = model.memory.peak_bytes
        before: JournalStats = shadow.journal.stats()
    assert before.pending == 0
    return weigh(settings, status, fed, events, peak)


def weigh(settings: Settings, status: SessionStatus, fed: int, events: int, peak: int) -> Cost:
    """The figures of a closed journal."""
    journal = settings.journal.stat().st_size
    empty = empty_path(settings).stat().st_size
    own = journal - empty
    return Cost(
        ids=status.known,
        turns=status.turns,
        fed_ids=fed,
        events=events,
        pages=status.pages,
        checkpoints=len(status.checkpoints),
        state_bytes=status.bytes,
        account_peak_bytes=peak,
        journal_bytes=journal,
        empty_journal_bytes=empty,
        times_the_ids=own / (ID_BYTES * fed),
        bytes_an_event=(own - ID_BYTES * fed) / events,
    )


async def feed(shadow: Runtime, ids: int, turns: int, rng: random.Random) -> int:
    """Feed the session; how many new ids were journaled."""
    known: list[int] = []
    fed = 0
    for turn in range(turns):
        if turn % 5 == 4:
            known = known[: len(known) - len(known) // 50]
        share = (ids - len(known)) / (turns - turn)
        prompt = known + words(rng, share * (1 - OUTPUT_SHARE))
        fed += len(prompt) - len(known)
        name = f"t{turn}"
        await shadow.prompt("s", prompt, turn=name)
        output = words(rng, share * OUTPUT_SHARE)
        for start in range(0, len(output), DELTA_IDS):
            part = output[start : start + DELTA_IDS]
            await (await shadow.sessions.output("s", name, offset=start, ids=part))
        await shadow.end("s", name)
        known = prompt + output
        fed += len(output)
    return fed


def words(rng: random.Random, count: float) -> list[int]:
    """About ``count`` random ids, one at least."""
    return [rng.randrange(WORDS) for _ in range(max(1, round(count)))]


def empty_path(settings: Settings) -> Path:
    """Where the journal without a session lies."""
    return settings.journal.with_name("empty.db")


if __name__ == "__main__":
    main()
