"""How fast messages come in: the real server in its own process, a journal on disk, one machine.

    python -m bench.ingest --seconds 5 --json

Deltas of 4 ids go through ``/v1/feed`` (one session, then several), then as single posts paced at
1,000 a second; a post's latency counts from the moment it was due, so a late start is not
forgiven. ``/healthz`` is asked all the while: its latency is how long the event loop was busy. At
the end the journal must hold exactly what was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop

from bench.ingest_server import Server, running_server
from bench.machine import this_machine
from shadow_reader.events.branches import split_name

CAP_GB = 1.0
DELTA_IDS = 4
TURN_DELTAS = 2_500
PROMPT = list(range(1, 65))
BLOCK_LINES = 100
IDS_BELOW = 1_000
POST_SESSIONS = 64
OUTPUT = b'{"kind":"output"'


@dataclass(frozen=True, slots=True)
class Row:
    """One run. Latencies in ms; None where the run has none."""

    run: str
    deltas: int
    seconds: float
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    health_p50_ms: float
    health_p99_ms: float
    health_max_ms: float
    server_cpu: float


@dataclass(slots=True)
class Acknowledged:
    """What the server has said is in the journal: (session, turn) -> deltas."""

    deltas: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    latencies_ms: list[float] = field(default_factory=list)
    first_due: float | None = None
    """When a paced run began, after its sessions were opened."""

    @property
    def total(self) -> int:
        """All deltas."""
        return sum(self.deltas.values())


def main() -> None:
    """Parse, measure, check, print: the table last, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--model", default="random:tiny", help="empty: no model")
    parser.add_argument("--durability", choices=["normal", "full"], default="normal")
    parser.add_argument("--turn-share", type=float, default=0.02, help="0: nothing is read")
    parser.add_argument("--sessions", type=int, default=8, help="in the run with several")
    parser.add_argument("--rate", type=int, default=1_000, help="single posts a second")
    parser.add_argument("--cores", type=int, default=2, help="for server and client together")
    parser.add_argument("--folder", type=Path, help="where the journal lies; a temporary one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])

    settings = {
        "model": args.model,
        "durability": args.durability,
        "turn_share": args.turn_share,
        "cap_gb": CAP_GB,
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        with running_server(Path(folder), settings) as server:
            rows, checked = uvloop.run(measure(server, args))
        size = (Path(folder) / "shadow.db").stat().st_size
    figures = {"entries_checked": checked, "journal_bytes": size}
    if args.json:
        head = {"machine": this_machine().to_json(), **settings, "delta_ids": DELTA_IDS}
        print(json.dumps({**head, "rows": [asdict(row) for row in rows], **figures}))
    else:
        print(this_machine().line())
        print(f"model {args.model or 'off'}, durability {args.durability}, {DELTA_IDS}-id deltas")
        print(f"journal {size:,} bytes; {checked:,} deltas read back and found as sent")
        print_table(rows)


async def measure(server: Server, args: argparse.Namespace) -> tuple[list[Row], int]:
    """All runs, then the comparison with the journal; the rows and the deltas compared."""
    rows: list[Row] = []
    everything: dict[tuple[str, str], int] = {}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, connector=connector) as http:
        if args.model:
            await post(http, "/v1/conductor/shadow/load", {})
        for count in (1, args.sessions):
            name = f"feed, {count} session{'s' if count > 1 else ''}"
            acknowledged = Acknowledged()
            feeds = [
                feed(http, f"feed{count}-{n}", args.seconds, acknowledged) for n in range(count)
            ]
            rows.append(await timed(server, name, acknowledged, feeds))
            everything |= acknowledged.deltas
        acknowledged = Acknowledged()
        name = f"single posts, {args.rate:,}/s asked for"
        rows.append(await timed(server, name, acknowledged, posters(http, args, acknowledged)))
        everything |= acknowledged.deltas
        await check_journal(http, everything)
    return rows, sum(everything.values())


async def timed(
    server: Server,
    name: str,
    acknowledged: Acknowledged,
    works: Sequence[Coroutine[None, None, None]],
) -> Row:
    """Run the works together and time them, the health sampler beside them."""
    with health_sampler(server) as health:
        cpu_s, began = server.cpu_s(), time.perf_counter()
        await asyncio.gather(*works)
        ended = time.perf_counter()
        wall_s, seconds = ended - began, ended - (acknowledged.first_due or began)
        cpu_s = server.cpu_s() - cpu_s
    latencies = acknowledged.latencies_ms
    return Row(
        run=name,
        deltas=acknowledged.total,
        seconds=seconds,
        per_second=acknowledged.total / seconds,
        p50_ms=quantile(latencies, 0.5) if latencies else None,
        p99_ms=quantile(latencies, 0.99) if latencies else None,
        health_p50_ms=quantile(health, 0.5),
        health_p99_ms=quantile(health, 0.99),
        health_max_ms=max(health),
        server_cpu=cpu_s / wall_s,
    )


async def feed(
    http: aiohttp.ClientSession, session: str, seconds: float, acknowledged: Acknowledged
) -> None:
    """Turn after turn through one feed until the time is over; every reply must be an ok."""
    deadline = time.perf_counter() + seconds
    kinds: deque[tuple[str, bool]] = deque()

    async def body() -> AsyncIterator[bytes]:
        turn = 0
        while time.perf_counter() < deadline:
            for lines in turn_blocks(session, f"t{turn}"):
                kinds.extend((f"t{turn}", line.startswith(OUTPUT)) for line in lines)
                yield b"".join(lines)
            turn += 1

    async with http.post("/v1/feed", data=body()) as reply:
        assert reply.status == 200, await reply.text()
        async for row in rows_of(reply):
            turn, is_delta = kinds.popleft()
            assert row["ok"], row
            assert row["turn"] == turn, row
            if is_delta:
                acknowledged.deltas[session, turn] += 1
    assert not kinds, f"{len(kinds)} lines were not answered"


def turn_blocks(session: str, turn: str) -> Iterator[list[bytes]]:
    """The lines of one turn, as an engine would send them."""
    head = {"session": session, "turn": turn}
    yield [
        line({"kind": "prompt", **head, "ids": PROMPT}),
        line({"kind": "first_token", **head}),
    ]
    for start in range(0, TURN_DELTAS, BLOCK_LINES):
        yield [
            line({"kind": "output", **head, "offset": DELTA_IDS * k, "ids": delta(turn, k)})
            for k in range(start, start + BLOCK_LINES)
        ]
    yield [line({"kind": "end", **head, "produced": DELTA_IDS * TURN_DELTAS})]


def line(message: dict[str, object]) -> bytes:
    """A message as a line of a feed."""
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)


def delta(turn: str, number: int) -> list[int]:
    """The ids of delta ``number`` of a turn; no two turns begin with the same."""
    first = (int(turn[1:]) + 1) * 15_485_863 + number * 7919
    return [(first + i * 104_729) % IDS_BELOW for i in range(DELTA_IDS)]


async def poster(
    http: aiohttp.ClientSession, session: str, dues: Sequence[float], acknowledged: Acknowledged
) -> None:
    """One session's deltas as single posts, each no sooner than it is due."""
    path = f"/v1/sessions/{session}/turns"
    await post(http, path, {"turn": "t0", "ids": PROMPT})
    for number, due in enumerate(dues):
        await asyncio.sleep(due - time.perf_counter())
        body = {"offset": DELTA_IDS * number, "ids": delta("t0", number)}
        await post(http, f"{path}/t0/output", body)
        acknowledged.latencies_ms.append((time.perf_counter() - due) * 1e3)
        acknowledged.deltas[session, "t0"] += 1
    await post(http, f"{path}/t0/end", {})


def posters(
    http: aiohttp.ClientSession, args: argparse.Namespace, acknowledged: Acknowledged
) -> list[Coroutine[None, None, None]]:
    """The paced posts, dealt out over the sessions."""
    acknowledged.first_due = began = time.perf_counter() + 0.5
    dues = [began + i / args.rate for i in range(int(args.rate * args.seconds))]
    return [
        poster(http, f"post-{n}", dues[n::POST_SESSIONS], acknowledged)
        for n in range(POST_SESSIONS)
    ]


async def post(http: aiohttp.ClientSession, path: str, body: dict[str, object]) -> None:
    """One post that must be accepted."""
    async with http.post(path, data=orjson.dumps(body)) as reply:
        answer = await reply.read()
        assert reply.status == 200, answer


async def check_journal(
    http: aiohttp.ClientSession, acknowledged: Mapping[tuple[str, str], int]
) -> None:
    """The journal holds every acknowledged delta once, in order, with its ids, and no other."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    query = {"kind": "output", "ids": "true"}
    async with http.get("/v1/journal", params=query) as reply:
        async for row in rows_of(reply):
            turn = split_name(row["session"])[0], row["turn"]
            number = found[turn]
            assert row["offset"] == DELTA_IDS * number, row
            assert row["ids"] == delta(row["turn"], number), row
            found[turn] = number + 1
    assert found == acknowledged, "the journal and the acknowledgements differ"


async def rows_of(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The rows of an NDJSON reply."""
    rest = b""
    async for block in reply.content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        for raw in lines:
            yield orjson.loads(raw)
    assert not rest, rest


@contextmanager
def health_sampler(server: Server) -> Iterator[list[float]]:
    """Latencies of ``/healthz`` in ms during the block, filled in at its end."""
    latencies: list[float] = []
    command = [sys.executable, "-m", "bench.health_sampler", server.host, str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sampler:
        yield latencies
        out, _ = sampler.communicate(b"stop\n", timeout=30)
        latencies.extend(json.loads(out))


def quantile(values: Sequence[float], part: float) -> float:
    """The value that ``part`` of the values do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def print_table(rows: Sequence[Row]) -> None:
    """For people; the last thing printed."""
    print(
        f"{'run':<30} {'deltas':>8} {'a second':>9} {'p50 ms':>7} {'p99 ms':>7} "
        f"{'health p50':>10} {'p99':>6} {'max':>6} {'server cores':>12}"
    )
    for row in rows:
        post_ms = [
            f"{ms:7.2f}" if ms is not None else f"{'-':>7}" for ms in (row.p50_ms, row.p99_ms)
        ]
        print(
            f"{row.run:<30} {row.deltas:>8,} {row.per_second:>9,.0f} {post_ms[0]} {post_ms[1]} "
            f"{row.health_p50_ms:>10.2f} {row.health_p99_ms:>6.2f} {row.health_max_ms:>6.2f} "
            f"{row.server_cpu:>12.2f}"
        )


if __name__ == "__main__":
    main()
