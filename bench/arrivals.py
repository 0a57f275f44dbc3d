"""How long a request waits that arrives while the reader reads: one chunk at most.

    python -m bench.arrivals --arrivals 1000 --json

Two ways in, both with a reader that always has something to read. *Library*: an engine in the
same process takes the lease (``async with lease.request()``), and waits until it has it. *Server*:
an engine tells a server over HTTP that a turn begins; from then on nothing may be read but the
chunk in flight, and the journal says when that was over. Arrivals come at random moments, from a
seed. Beside the waits stand the chunks' own times in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.ingest_server import running_server
from bench.machine import this_machine
from shadow_reader.config import Settings
from shadow_reader.events import types as t
from shadow_reader.http.client import ShadowClient
from shadow_reader.replay.ledger.freshness import percentile
from shadow_reader.runtime import Runtime
from shadow_reader.store.reader import JournalReader

PROMPT_IDS = 8192
BACKLOG = 3
"""Sessions that are to be read at any time, at least."""
PAUSE_S = (0.02, 0.25)
"""Between a request's end and the next one's arrival."""
HOLD_S = 0.1
"""How long a request runs; on a server, so that the journal shows what was still read."""
LOAD_S = 120.0


@dataclass(frozen=True, slots=True)
class Waits:
    """Of all arrivals, ms. ``waited``: those that found a chunk in flight.

    ``chunk_p50`` and ``chunk_max``: of the chunks read in the same run.
    """

    way: str
    arrivals: int
    waited: int
    p50: float
    p90: float
    p99: float
    max: float
    chunk_p50: float
    chunk_max: float


def waits_of(way: str, waits_s: Sequence[float], chunks_s: Sequence[float]) -> Waits:
    """Sum up; a percentile is the nearest rank."""

    def ms(values: Sequence[float], share: float) -> float:
        return round(percentile([round(1e6 * value) for value in values], share) / 1000, 3)

    return Waits(
        way=way,
        arrivals=len(waits_s),
        waited=sum(wait > 0.0005 for wait in waits_s),
        p50=ms(waits_s, 0.5),
        p90=ms(waits_s, 0.9),
        p99=ms(waits_s, 0.99),
        max=ms(waits_s, 1),
        chunk_p50=ms(chunks_s, 0.5),
        chunk_max=ms(chunks_s, 1),
    )


class Crowd:
    """Sessions without end, each with ids of its own, so that there is always something to read."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._made = 0

    def next(self) -> tuple[str, list[int]]:
        """A session's name and prompt."""
        self._made += 1
        ids = [self._random.randrange(200_000) for _ in range(PROMPT_IDS)]
        return f"crowd-{self._made}", ids

    def pause_s(self) -> float:
        """Until the next arrival."""
        return self._random.uniform(*PAUSE_S)


def settings(folder: Path, model: str, **more: object) -> dict[str, object]:
    """A service that reads all the time and writes no state to the disk."""
    return {
        "model": model,
        "journal": str(folder / "shadow.db"),
        "disk": "off",
        "cap_gb": 1.0,
        "threads": 1,
        **more,
    }


async def over_the_library(model: str, arrivals: int, seed: int, folder: Path) -> Waits:
    """The lease, as an engine in the same process takes it."""
    crowd, waits = Crowd(seed), []
    async with Runtime(Settings.model_validate(settings(folder, model))) as shadow:
        await shadow.load(timeout_s=LOAD_S)
        for _ in range(arrivals):
            while (await shadow.status(shown=0)).totals.behind < BACKLOG * PROMPT_IDS // 2:
                name, ids = crowd.next()
                await shadow.prompt(name, ids, turn="t")
                await shadow.end(name, "t")
            await asyncio.sleep(crowd.pause_s())
            began = time.perf_counter()
            async with shadow.lease.request():
                waits.append(time.perf_counter() - began)
                await asyncio.sleep(0.005)
    return waits_of("library", waits, await chunk_times(folder / "shadow.db"))


async def over_http(model: str, arrivals: int, seed: int, folder: Path) -> Waits:
    """Turns told to a server; what was still read behind each one's prompt is in the journal."""
    crowd = Crowd(seed)
    with running_server(folder, settings(folder, model)) as server:
        async with ShadowClient(server.url) as client:
            await client.load(timeout_s=LOAD_S)
            for number in range(arrivals):
                while (await client.status()).totals.behind < BACKLOG * PROMPT_IDS // 2:
                    name, ids = crowd.next()
                    await client.prompt(name, ids, turn="t")
                    await client.end(name, "t")
                await asyncio.sleep(crowd.pause_s())
                await client.prompt("requests", [number % 1000], turn=f"r{number}")
                await asyncio.sleep(HOLD_S)
                await client.end("requests", f"r{number}")
    journal = folder / "shadow.db"
    return waits_of("server", await read_behind(journal), await chunk_times(journal))


async def chunk_times(journal: Path) -> list[float]:
    """Seconds a chunk, of every burst that was journaled."""
    found = []
    async with await JournalReader.open(journal) as reader:
        async for entry in reader.entries(kinds=["read", "engine.loaded"]):
            match entry.event:
                case t.EngineLoaded(grid=grid):
                    ids = grid
                case t.Read(start=start, stop=stop, ms=ms):
                    chunks = (stop - start) // ids
                    found += [ms / 1000 / chunks] * chunks
                case _:
                    pass
    return found


async def read_behind(journal: Path) -> list[float]:
    """For each request's prompt: how long the reader was still at work behind it, in seconds."""
    waits: list[float] = []
    began_s: float | None = None
    async with await JournalReader.open(journal) as reader:
        async for entry in reader.entries(kinds=["prompt", "read", "turn.ended"]):
            match entry.event:
                case t.Prompt() if entry.session == "requests":
                    began_s, wait_s = entry.at, 0.0
                case t.Read() if began_s is not None:
                    wait_s = entry.at - began_s
                case t.TurnEnded() if entry.session == "requests" and began_s is not None:
                    waits.append(wait_s)
                    began_s = None
                case _:
                    pass
    return waits


def main(argv: Sequence[str] | None = None) -> None:
    """Run both and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--arrivals", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", choices=("library", "server", "both"), default="both")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.arrivals < 1:
        parser.error(f"--arrivals must be at least 1, not {args.arrivals}")
    rows = []
    for way, run in (("library", over_the_library), ("server", over_http)):
        if args.way in (way, "both"):
            with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
                rows.append(asyncio.run(run(args.model, args.arrivals, args.seed, Path(folder))))
    machine = this_machine()
    if args.json:
        body = {"rows": [asdict(row) for row in rows], "seed": args.seed}
        print(json.dumps(body | {"machine": machine.to_json()}))
        return
    print(machine.line())
    print(f"{args.model}, seed {args.seed}; ms")
    columns = ("arrivals", "waited", "p50", "p90", "p99", "max", "chunk p50", "chunk max")
    print(f"{'':8}" + "".join(f"{column:>10}" for column in columns))
    for row in rows:
        times = (row.p50, row.p90, row.p99, row.max, row.chunk_p50, row.chunk_max)
        print(
            f"{row.way:8}{row.arrivals:10,}{row.waited:10,}"
            + "".join(f"{value:10.1f}" for value in times)
        )


if __name__ == "__main__":
    main()
