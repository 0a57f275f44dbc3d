"""How long a start takes with a long journal, and a stop with much in memory.

    python -m bench.startup --events 1000000 --sessions 500 --json

The journal is filled through the store's own writer with sessions that fold: turns of a prompt, a
first token, deltas of a few ids, an end. Then the real server starts on it, as a new process, again
and again: the time runs from its beginning to a 200 from ``/readyz``, from where on messages are
taken, and on to the loaded model. What a start is made of is timed on its own beside it.
``bench/startup_stop.py`` has the stops.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.ingest_server import running_server
from bench.machine import this_machine
from bench.startup_stop import Stop, print_stops, stops
from shadow_reader.events import types as t
from shadow_reader.events.fold import fold
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.reader import JournalReader

TARGET_S = 2.0
TURN_DELTAS = 46
TURN_EVENTS = TURN_DELTAS + 3
DELTA_IDS = 4
NEW_IDS = 60
BATCH = 500
RECENT = 32
CAP_GB = 1.0
IMPORTS = {
    "torch": "import torch",
    "the engine": "import shadow_reader.shadow.torch_engine",
    "the server without a model": "import shadow_reader.http.serve",
}


@dataclass(frozen=True, slots=True)
class Start:
    """Starts of one kind, the fastest and the median. Seconds."""

    what: str
    best_s: float
    median_s: float


def main() -> None:
    """Parse, fill, measure, print: tables, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stop-model", default="random:tiny", help="empty: no stops")
    parser.add_argument("--stop-ids", type=int, nargs="*", default=[4_096, 16_384, 32_768])
    parser.add_argument("--stop-grid", type=int, default=512)
    parser.add_argument("--folder", type=Path, help="where the journal lies; a temporary one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        journal = Path(name) / "shadow.db"
        fill_s = timed(lambda: asyncio.run(fill(journal, args.events, args.sessions)))
        size = journal.stat().st_size
        starts = [*whole_starts(Path(name), args), *parts(journal, args.runs)]
    stopped = stops(args.stop_model, args.stop_ids, args.stop_grid) if args.stop_model else []
    ready_s = starts[0].median_s
    figures = {
        "events": args.events,
        "sessions": args.sessions,
        "journal_bytes": size,
        "fill_s": round(fill_s, 1),
        "target_s": TARGET_S,
        "reached": ready_s <= TARGET_S,
    }
    if args.json:
        rows = {"starts": [asdict(s) for s in starts], "stops": [asdict(s) for s in stopped]}
        print(json.dumps({"machine": this_machine().to_json(), **figures, **rows}))
    else:
        print(this_machine().line())
        print_starts(starts, figures, stopped)


# -- the journal -----------------------------------------------------------------------------------


async def fill(path: Path, events: int, sessions: int) -> None:
    """A journal of so many events, dealt out over the sessions turn by turn."""
    journal = await SqliteJournal.open(path)
    batch: list[t.Draft] = []
    for number, draft in enumerate(drafts(sessions)):
        if number >= events:
            break
        batch.append(draft)
        if len(batch) == BATCH:
            await journal.room()
            journal.submit(batch)
            batch = []
    if batch:
        await journal.room()
        await journal.submit(batch)
    await journal.close()


def drafts(sessions: int) -> Iterator[t.Draft]:
    """Turn after turn of every session, for ever; a second a turn."""
    known = dict.fromkeys((f"session-{n:04d}" for n in range(sessions)), 0)
    at, turn = time.time() - 86_400.0, 0
    while True:
        turn += 1
        for session, length in known.items():
            at += 0.001
            if length == 0:
                yield t.Draft(at, session, "", t.SessionOpened())
            name = f"turn-{turn}"
            yield t.Draft(at, session, name, t.Prompt(length, numbered(length, NEW_IDS)))
            yield t.Draft(at, session, name, t.FirstToken())
            for offset in range(0, TURN_DELTAS * DELTA_IDS, DELTA_IDS):
                delta = numbered(length + NEW_IDS + offset, DELTA_IDS)
                yield t.Draft(at, session, name, t.Output(offset, delta))
            yield t.Draft(at, session, name, t.TurnEnded("stop"))
            known[session] = length + NEW_IDS + TURN_DELTAS * DELTA_IDS


def numbered(start: int, count: int) -> Ids:
    """Ids that depend on where they stand."""
    return Ids.of([(start + i) * 31 % 1000 for i in range(count)])


# -- starts ----------------------------------------------------------------------------------------


def whole_starts(folder: Path, args: argparse.Namespace) -> Iterator[Start]:
    """The real server, from its process's beginning to ``/readyz``, with and without a model."""
    for model in dict.fromkeys([args.model, ""]):
        seconds = [one_start(folder, model) for _ in range(args.runs)]
        yield summary(f"to /readyz, {model or 'no model'}", [ready for ready, _ in seconds])
        if model:
            yield summary(f"to the loaded model, {model}", [loaded for _, loaded in seconds])


def one_start(folder: Path, model: str) -> tuple[float, float]:
    """Seconds until messages are taken, and until the model stands."""
    began = time.perf_counter()
    settings = {"model": model, "foreground": "lease", "cap_gb": CAP_GB}
    with running_server(folder, settings) as server:
        while not is_ready(server.url):
            time.sleep(0.005)
        ready = time.perf_counter() - began
        while model and not is_loaded(server.url):
            time.sleep(0.005)
        return ready, time.perf_counter() - began


def is_loaded(url: str) -> bool:
    """Whether the model stands."""
    with urllib.request.urlopen(f"{url}/v1/conductor/shadow/status", timeout=30) as reply:
        return bool(json.load(reply)["slot"]["state"] == "loaded")


def is_ready(url: str) -> bool:
    """Whether the server says so."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError:
        return False


def parts(journal: Path, runs: int) -> Iterator[Start]:
    """What a start is made of, each in a process or a call of its own."""
    for what, code in IMPORTS.items():
        seconds = [timed(lambda code=code: python(code)) for _ in range(runs)]  # type: ignore[misc]  # bound now
        yield summary(f"a process that imports {what}", seconds)
    yield summary(
        "opening the journal", [timed(lambda: asyncio.run(opened(journal))) for _ in range(runs)]
    )
    yield summary(
        f"folding the {RECENT} sessions last heard of",
        [timed(lambda: asyncio.run(folded(journal))) for _ in range(runs)],
    )
    yield summary("making the model", [made("engine") for _ in range(runs)])
    yield summary("making the vocabulary", [made("vocabulary") for _ in range(runs)])


def python(code: str) -> None:
    """A process that does this and ends."""
    subprocess.run([sys.executable, "-c", code], check=True)


async def opened(path: Path) -> None:
    """What a start does first."""
    journal = await SqliteJournal.open(path)
    await journal.close()


async def folded(path: Path) -> None:
    """What the reader does first."""
    async with await JournalReader.open(path) as reader:
        for row in await reader.recent_sessions(limit=RECENT):
            view: SessionView | None = None
            async for entry in reader.entries(session=row.session):
                view = fold(view, entry)


def made(what: str) -> float:
    """Seconds that a new process takes to make it, the imports left out."""
    makes = {
        "engine": (
            "from shadow_reader.config import Settings\n"
            "from shadow_reader.shadow.torch_engine import build_engine",
            "build_engine(Settings(model='random:tiny'))",
        ),
        "vocabulary": (
            "from shadow_reader.shadow.vocabulary import load_vocabulary",
            "load_vocabulary('random:tiny')",
        ),
    }
    imports, call = makes[what]
    code = (
        f"import time\n{imports}\nt = time.perf_counter()\n{call}\nprint(time.perf_counter() - t)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def summary(what: str, seconds: list[float]) -> Start:
    """The fastest and the median."""
    ordered = sorted(seconds)
    return Start(what, round(ordered[0], 3), round(ordered[len(ordered) // 2], 3))


def print_starts(starts: list[Start], figures: dict[str, Any], stopped: list[Stop]) -> None:
    """For people; whether the target was reached comes last."""
    print(
        f"journal of {figures['events']:,} events and {figures['sessions']:,} sessions: "
        f"{figures['journal_bytes']:,} bytes, filled in {figures['fill_s']} s"
    )
    for start in starts:
        print(f"{start.what:<50} best {start.best_s:7.3f} s, median {start.median_s:7.3f} s")
    print_stops(stopped)
    verdict = "reached" if figures["reached"] else "MISSED"
    print(f"target {TARGET_S:g} s to /readyz: {verdict}")


if __name__ == "__main__":
    main()
