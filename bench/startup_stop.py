"""From SIGTERM to the end of the process, by the bytes that are resident and must be spilled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ingest_server import running_server
from shadow_reader.http.client import ShadowClient

SESSIONS = 4
FRESH_S = 110.0
POLL_S = 0.002
CAP_GB = 8.0


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop.

    Attributes:
        ids: of all sessions together. resident_bytes: of the server's states when it was told.
        written_bytes: of all snapshots afterwards.
        seconds: from SIGTERM to the end of the process.
        write_s: a plain write of as many bytes to the same disk, brought to the medium.
    """

    model: str
    ids: int
    resident_bytes: int
    written_bytes: int
    seconds: float
    write_s: float


def stops(model: str, ids: Sequence[int], grid: int) -> list[Stop]:
    """A stop for each amount of ids, and one with nothing in memory."""
    return [_stop(model, count, grid) for count in (0, *ids)]


def print_stops(rows: Sequence[Stop]) -> None:
    """For people."""
    for row in rows:
        print(
            f"SIGTERM to exit, {row.model}, {row.ids:>7,} ids: {row.resident_bytes:>13,} bytes "
            f"resident, {row.written_bytes:>13,} written: {row.seconds:6.3f} s "
            f"(a plain write of them: {row.write_s:.3f} s)"
        )


def _stop(model: str, ids: int, grid: int) -> Stop:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {
            "model": model,
            "grid_ids": grid,
            "cap_gb": CAP_GB,
            "foreground": "lease",
            "disk": str(folder / "snapshots"),
        }
        with running_server(folder, settings) as server:
            resident = asyncio.run(_read(server.url, ids))
            seconds = _end(server.pid)
        written = sum(p.stat().st_size for p in folder.rglob("*.safetensors"))
        return Stop(model, ids, resident, written, seconds, _plain_write(folder, written))


async def _read(url: str, ids: int) -> int:
    """Feed so many ids, dealt out over the sessions, and wait until they are read."""
    choose = random.Random(ids)
    async with ShadowClient(url) as client:
        await client.load()
        for number in range(SESSIONS if ids else 0):
            session = f"s{number}"
            prompt = [choose.randrange(1000) for _ in range(ids // SESSIONS)]
            await client.prompt(session, prompt, turn="t1")
            await client.end(session, "t1")
            await client.wait_fresh(session, timeout_s=FRESH_S)
        status = await client.status()
    assert status.model is not None
    return status.model.memory.bytes


def _end(pid: int) -> float:
    """SIGTERM; seconds until the process, a child of ours, is a zombie."""
    began = time.perf_counter()
    os.kill(pid, signal.SIGTERM)
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(POLL_S)
    return round(time.perf_counter() - began, 3)


def _plain_write(folder: Path, size: int) -> float:
    block = memoryview(random.Random(1).randbytes(1 << 20))
    began = time.perf_counter()
    with (folder / "plain").open("wb", buffering=0) as file:
        for start in range(0, size, len(block)):
            file.write(block[: min(len(block), size - start)])
        os.fsync(file.fileno())
    return round(time.perf_counter() - began, 3)
