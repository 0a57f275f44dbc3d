"""The journal on this machine's disk: events a second, append latency, bytes an event.

    python -m bench.journal [--json] [--folder DIR] [--seconds S]

The folder should lie on the disk that is to be measured; the journals made there are removed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.store.connection import Durability
from shadow_reader.store.journal import SqliteJournal

SESSIONS = 50
DELTA = Ids.of([17, 40_000, 151_000, 9])
BATCH = 64


@dataclass(frozen=True, slots=True)
class Throughput:
    """Events of four ids each, submitted 64 at a time by one task that waits only for room."""

    durability: str
    events: int
    events_per_s: float
    group_events: float
    bytes_per_event: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Single appends at a fixed rate, from the moment each is due to its acknowledgement, ms."""

    durability: str
    appends: int
    appends_per_s: float
    group_events: float
    p50_ms: float
    p99_ms: float
    worst_ms: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What a start-up asks of a journal."""

    events: int
    sessions: int
    entries_per_s: float
    one_session_ms: float
    recent_sessions_ms: float


@asynccontextmanager
async def opened(folder: Path, durability: Durability) -> AsyncIterator[SqliteJournal]:
    """A new journal in a folder of its own that goes away."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        journal = await SqliteJournal.open(Path(place) / "bench.db", durability=durability)
        try:
            yield journal
        finally:
            await journal.close()


def delta(number: int) -> t.Draft:
    """The number-th output delta, of one of the sessions."""
    session = f"session-{number % SESSIONS:02d}-0123456789abcdef"
    turn = f"turn-{number // 5000}-0123456789abcdef"
    return t.Draft(1.7e9 + number / 1000, session, turn, t.Output(number, DELTA))


async def fill(journal: SqliteJournal, events: int) -> float:
    """Submit that many events in batches, the same few over; seconds until all are committed."""
    prepared = [[delta(n) for n in range(first, first + BATCH)] for first in range(0, 2048, BATCH)]
    start = time.perf_counter()
    last = None
    for batch in islice(cycle(prepared), events // BATCH):
        await journal.room()
        last = journal.submit(batch)
    if last is not None:
        await last
    return time.perf_counter() - start


async def measure_throughput(folder: Path, durability: Durability, events: int) -> Throughput:
    """How many events a second one writer takes in big groups."""
    async with opened(folder, durability) as journal:
        seconds = await fill(journal, events)
        stats = journal.stats()
    return Throughput(
        durability,
        events,
        stats.events / seconds,
        stats.events / stats.commits,
        stats.bytes / stats.events,
    )


async def measure_latency(folder: Path, durability: Durability, seconds: float) -> Latency:
    """How long an append takes, at a thousand single appends a second."""
    loop = asyncio.get_running_loop()
    appends = int(seconds * 1000)
    took: list[float] = []

    async def append(number: int, due: float) -> None:
        await journal.room()
        await journal.submit([delta(number)])
        took.append((loop.time() - due) * 1e3)

    async with opened(folder, durability) as journal:
        start = loop.time() + 0.05
        tasks = []
        for number in range(appends):
            due = start + number / 1000
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(append(number, due)))
        await asyncio.gather(*tasks)
        elapsed = loop.time() - start
        stats = journal.stats()
    took.sort()
    return Latency(
        durability,
        appends,
        appends / elapsed,
        stats.events / stats.commits,
        took[appends // 2],
        took[int(appends * 0.99)],
        took[-1],
    )


async def measure_reading(folder: Path, events: int) -> Reading:
    """How fast everything, one session, and the list of sessions come out again."""
    async with opened(folder, "normal") as journal:
        await fill(journal, events)
        start = time.perf_counter()
        count = sum([1 async for _ in journal.entries()])
        all_s = time.perf_counter() - start
        start = time.perf_counter()
        session = delta(7).session
        assert sum([1 async for _ in journal.entries(session=session)]) > 0
        one_s = time.perf_counter() - start
        start = time.perf_counter()
        rows = await journal.recent_sessions(limit=500)
        recent_s = time.perf_counter() - start
    return Reading(count, len(rows), count / all_s, one_s * 1e3, recent_s * 1e3)


async def measure(folder: Path, seconds: float) -> dict[str, object]:
    """Every figure, as one JSON object."""
    events = int(seconds * 40_000) // BATCH * BATCH
    throughput = [
        asdict(await measure_throughput(folder, durability, events))
        for durability in ("normal", "full")
    ]
    latency = [
        asdict(await measure_latency(folder, durability, seconds))
        for durability in ("normal", "full")
    ]
    reading = asdict(await measure_reading(folder, events))
    return {"throughput": throughput, "latency": latency, "reading": reading}


def main() -> None:
    """Measure, then print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the journals are made")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.folder, options.seconds))
    from bench.machine import this_machine  # imports torch, whose objects slow every collection

    machine = this_machine()
    if options.json:
        print(json.dumps({"machine": machine.to_json(), **figures}))
        return
    print(machine.line())
    for name, rows in figures.items():
        for row in rows if isinstance(rows, list) else [rows]:
            assert isinstance(row, dict)
            line = ", ".join(
                f"{key} {value:,.2f}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()
            )
            print(f"{name}: {line}")


if __name__ == "__main__":
    main()
