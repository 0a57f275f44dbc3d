"""A disk that runs full, again and again, under a real server: a small file system of its own.

    python -m bench.faults_disk FOLDER --seed 1 --rounds 6

is what ``full_disk`` runs in a mount namespace, with a small tmpfs at FOLDER/disk. It needs root;
without it the report says that nothing was filled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.faults_nursery import Nursery
from bench.faults_report import Part
from bench.faults_world import Stuck, World, last_lines, world

DISK_BYTES: Final = 56 << 20
LEFT: Final = (0, 0, 1 << 17, 1 << 19, 3 << 18, 1 << 20)
"""Bytes that are left: for a journal's commit at most, for a piece but no head, for all but one."""

FULL_S: Final = 0.8
TALK_S: Final = 0.8
NOT_HERE: Final = "disk full: not allowed here (needs root and mount namespaces)"
_NO_MOUNT: Final = 77
_FULL_FILE: Final = re.compile(r"writing snapshot (\S+): the disk is full")


async def full_disk(folder: Path, seed: int, rounds: int) -> Part:
    """Run this module on a small file system of its own; what it found."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return Part(0, {NOT_HERE: 1}, (), 0, 0)
    disk = folder / "disk"
    disk.mkdir(parents=True)
    words = ["-m", "bench.faults_disk", str(folder), "--seed", str(seed), "--rounds", str(rounds)]
    run = shlex.join([sys.executable, *words])
    mount = shlex.join(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)])
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "sh", "-c", f"{mount} || exit {_NO_MOUNT}; exec {run}"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    out, _ = await process.communicate()
    if process.returncode == _NO_MOUNT:
        return Part(0, {NOT_HERE: 1}, (), 0, 0)
    assert process.returncode == 0, f"it ended with {process.returncode}"
    return Part.from_json(json.loads(out))


def main() -> None:
    """Fill the disk at FOLDER/disk, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    print(json.dumps(asdict(asyncio.run(_run(args.folder, args.seed, args.rounds)))))


async def _run(folder: Path, seed: int, rounds: int) -> Part:
    nursery = await Nursery.open()
    try:
        async with world(folder, nursery, seed=seed, disk=folder / "disk") as w:
            w.talk(5, seed=seed)
            stuck = ""
            try:
                for _ in range(rounds):
                    await fill_once(w)
                await w.start()
                await w.check()
                await w.prove()
                await w.stop()
                await w.check()
            except Stuck as error:
                stuck = f"{error}\n{last_lines(w.log)}"
            w.tally.faults.update(full_writes(w.log))
            return Part.of(w, stuck)
    finally:
        await nursery.close()


async def fill_once(w: World) -> None:
    """Start, talk, fill, talk on; then room again, a kill, or a stop, and nothing is lost."""
    choose = w.choices
    await w.start()
    await w.check()
    w.go()
    await asyncio.sleep(choose.uniform(0.2, TALK_S))
    ends = choose.choice(["room", "kill", "stop"])
    with filled(w.disk, leave=choose.choice(LEFT)):
        w.tally.faults["disk full"] += 1
        await asyncio.sleep(choose.uniform(0.2, FULL_S))
        if ends == "kill":
            await w.kill()
            w.tally.faults["kill on a full disk"] += 1
        elif ends == "stop":
            w.tally.faults["stop on a full disk"] += 1
            assert w.server is not None
            w.server.signal(signal.SIGTERM)
            w.line.close()
            await w.stopped()
    if ends == "room":
        await asyncio.sleep(TALK_S)
        await w.probe()
        await w.kill()
        w.tally.faults["kill under feeding"] += 1
    await w.check()


@contextmanager
def filled(disk: Path, *, leave: int) -> Iterator[None]:
    """All room of the file system but ``leave`` bytes is taken meanwhile."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        block = bytes(1 << 20)
        try:
            while len(block) >= 1 << 12:
                try:
                    if file.write(block) < len(block):
                        block = bytes(len(block) // 2)
                except OSError:
                    block = bytes(len(block) // 2)
        finally:
            if leave:
                file.truncate(max(0, file.tell() - leave))
    try:
        yield
    finally:
        filler.unlink()


def full_writes(log: Path) -> Counter[str]:
    """Which writes of snapshots found the disk full, as the servers' log tells."""
    files = _FULL_FILE.findall(log.read_text(errors="replace")) if log.exists() else []
    heads = sum(name.endswith("head.safetensors") for name in files)
    return Counter({"disk full in a head": heads, "disk full in a piece": len(files) - heads})


if __name__ == "__main__":
    main()
