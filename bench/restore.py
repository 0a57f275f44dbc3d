"""States to the disk and back: against the disk's own rate, and against reading the ids again.

    python -m bench.restore --model random:tiny --device cpu --lengths 8192,32768 --json

Each length is read once (which gives the time of reading it again), spilled, and restored with the
files out of the page cache, as the mover does it: a piece at a time, the next one read while one
goes to the device. The disk's rate is that of one file of the same size written with fsync, and
read from outside the cache, in the same run, in turns with ours; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.machine import this_machine
from shadow_reader.clock import SystemClock
from shadow_reader.config import GIB, Settings
from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.moves import Moves
from shadow_reader.shadow.torch_engine import build_engine
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.store import FileSnapshots, SnapshotLimits

SESSION = "s"
BLOCK = 4 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One length. Rates in GB (10^9 bytes) a second; ``share``: of the disk's own read rate."""

    ids: int
    gb: float
    read_again_s: float
    spill_s: float
    spill_gb_s: float
    disk_write_gb_s: float
    restore_s: float
    restore_gb_s: float
    disk_read_gb_s: float
    share: float


def main() -> None:
    """Parse, measure, print: the table last, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", default="8192,32768", help="ids, by commas")
    parser.add_argument("--times", type=int, default=3, help="restores a length")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settings = Settings.model_validate({"model": args.model, "device": args.device, "cap_gb": 16})
    lengths = [int(length) for length in args.lengths.split(",")]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows = asyncio.run(measure(settings, lengths, args.times, Path(folder)))
    machine = this_machine(args.device)
    if args.json:
        head = {"machine": machine.to_json(), "model": args.model, "times": args.times}
        print(json.dumps({**head, "rows": [asdict(row) for row in rows]}))
    else:
        print(machine.line())
        print(f"{args.model}, medians of {args.times}")
        print_table(rows)


async def measure(settings: Settings, lengths: list[int], times: int, folder: Path) -> list[Row]:
    """All lengths on one engine."""
    device, disk = JobThread(), JobThread("shadow-disk")
    engine = await device.run(build_engine, settings)
    limits = SnapshotLimits(64 * GIB, 3600.0)
    store = FileSnapshots.open(
        folder / "snapshots", limits=limits, clock=SystemClock(), disk=Disk(engine.host_buffer)
    )
    moves = Moves(engine, device, disk, store, Lease(SystemClock()), BoxLock(None), _no_gate)
    try:
        return [await one(engine, device, moves, length, times, folder) for length in lengths]
    finally:
        store.close()
        await device.run(engine.close)
        await device.close()
        await disk.close()


async def one(
    engine: Engine, device: JobThread, moves: Moves, length: int, times: int, folder: Path
) -> Row:
    """One length: read, spill, and restore several times."""
    known = Ids.of([(7919 * place) % engine.vocabulary for place in range(length)])
    view = SessionView(SESSION, opened_at=1.0, last_at=1.0, known=known)
    read_again_s = await device.run(read_all, engine, known)
    digest = await device.run(engine.digest, SESSION)
    began = time.perf_counter()
    moved = await moves.spill(view, seq=1, is_there=lambda: True)
    spill_s = time.perf_counter() - began
    assert moved is not None
    files = [path for path in (folder / "snapshots").rglob("*.safetensors") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    plain = folder / "plain"
    restores, reads, writes = [], [], []
    for _ in range(times):
        await device.run(engine.drop, SESSION)
        writes.append(write_plain(plain, size))
        drop_from_cache([plain, *files])
        reads.append(read_plain(plain))
        drop_from_cache(files)
        began = time.perf_counter()
        found = await moves.restore(view, _no_room)
        restores.append(time.perf_counter() - began)
        assert found is not None
        assert await device.run(engine.digest, SESSION) == digest
    await device.run(engine.drop, SESSION)
    moves.store.erase(SESSION)
    restore_s, gb = median(restores), size / 1e9
    disk_read = gb / median(reads)
    return Row(
        ids=length,
        gb=gb,
        read_again_s=read_again_s,
        spill_s=spill_s,
        spill_gb_s=gb / spill_s,
        disk_write_gb_s=gb / median(writes),
        restore_s=restore_s,
        restore_gb_s=gb / restore_s,
        disk_read_gb_s=disk_read,
        share=gb / restore_s / disk_read,
    )


def read_all(engine: Engine, known: Ids) -> float:
    """Read every whole chunk; seconds."""
    began = time.perf_counter()
    while (stats := engine.state_stats(SESSION)) is None or (
        stats.committed + engine.identity.grid <= len(known)
    ):
        engine.read_chunk(SESSION, known)
    engine.checkpoint(SESSION)
    return time.perf_counter() - began


def write_plain(path: Path, size: int) -> float:
    """Write and sync a file of random bytes; seconds."""
    block = memoryview(os.urandom(BLOCK))
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, BLOCK):
            file.write(block[: min(BLOCK, size - start)])
        os.fsync(file.fileno())
    return time.perf_counter() - began


def read_plain(path: Path) -> float:
    """Read a file into one buffer, as fast as plain reads do; seconds."""
    buffer = memoryview(bytearray(BLOCK))
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began


def drop_from_cache(files: list[Path]) -> None:
    """So that the next read comes from the disk."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _no_gate() -> None:
    """No foreground."""


async def _no_room(error: OutOfRoomError) -> None:
    raise error


def print_table(rows: list[Row]) -> None:
    """For people; the last thing printed."""
    print(
        f"{'ids':>8} {'GB':>6} {'read again s':>12} {'spill s':>8} {'GB/s':>6} {'disk':>6} "
        f"{'restore s':>9} {'GB/s':>6} {'disk':>6} {'share':>6}"
    )
    for row in rows:
        print(
            f"{row.ids:>8,} {row.gb:>6.3f} {row.read_again_s:>12.2f} {row.spill_s:>8.3f} "
            f"{row.spill_gb_s:>6.2f} {row.disk_write_gb_s:>6.2f} {row.restore_s:>9.3f} "
            f"{row.restore_gb_s:>6.2f} {row.disk_read_gb_s:>6.2f} {row.share:>6.2f}"
        )


if __name__ == "__main__":
    main()
