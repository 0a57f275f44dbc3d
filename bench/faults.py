"""What the service survives: a real server, killed, cut off, damaged and filled up at random.

    python -m bench.faults --kills 200 --seed 1 --json

Clients feed several sessions over HTTP and keep what was acknowledged. After every restart the
journal is held against that; every so many kills, and at the end, every session's state is held
against a fresh prefill by another process. Exits with 1 when anything is lost, doubled, not exact,
or when the server does not do what it must in time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.faults_clock import under_a_jumping_clock
from bench.faults_damage import damage_rounds
from bench.faults_disk import full_disk
from bench.faults_kills import is_kill, kill_once
from bench.faults_nursery import Nursery
from bench.faults_report import Part, Report, print_table
from bench.faults_world import Stuck, World, last_lines, world
from bench.machine import this_machine

SESSIONS = 6


def main() -> None:
    """Parse, run, print: a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs of the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prove-every", type=int, default=25, help="kills between two proofs")
    parser.add_argument("--damage", type=int, default=1, help="rounds of every kind of damage")
    parser.add_argument("--disk", type=int, default=6, help="times that the disk is filled")
    parser.add_argument("--clock", type=int, default=4, help="starts under a jumping clock")
    parser.add_argument("--folder", type=Path, help="where journals lie; a temporary one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = asyncio.run(run(args))
    if args.json:
        machine = this_machine().to_json()
        print(json.dumps({**report.to_json(), "seed": args.seed, "machine": machine}))
    else:
        print(this_machine().line())
        print_table(report)
    sys.exit(0 if report.good else 1)


async def run(args: argparse.Namespace) -> Report:
    """Everything that was asked for, one after the other."""
    began = time.monotonic()
    report = Report()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="faults-") as name:
        folder = Path(name)
        nursery = await Nursery.open()
        try:
            if args.kills:
                await kills(args, folder / "kills", nursery, report)
            if args.damage:
                await damage(args, folder / "damage", nursery, report)
            if args.clock:
                await clock(args, folder / "clock", nursery, report)
        finally:
            await nursery.close()
        if args.disk:
            report.parts.append(await full_disk(folder / "full", args.seed, args.disk))
    report.seconds = time.monotonic() - began
    return report


@asynccontextmanager
async def part(
    args: argparse.Namespace, folder: Path, nursery: Nursery, report: Report
) -> AsyncIterator[World]:
    """A world of its own, whose part of the report is there at the end, stuck or not."""
    async with world(folder, nursery, seed=args.seed) as w:
        stuck = ""
        try:
            yield w
        except Stuck as error:
            stuck = f"{error}\n{last_lines(w.log)}".rstrip()
        report.parts.append(Part.of(w, stuck))


async def kills(args: argparse.Namespace, folder: Path, nursery: Nursery, report: Report) -> None:
    """The kills, with proofs in between and one at the end."""
    async with part(args, folder, nursery, report) as w:
        w.talk(SESSIONS, seed=args.seed)
        done = proved = 0
        while done < args.kills:
            await kill_once(w)
            done = sum(count for what, count in w.tally.faults.items() if is_kill(what))
            if done >= proved + args.prove_every and done < args.kills:
                proved = done
                await prove(w)
            progress(f"{done} kills, {w.tally.acknowledged} acknowledged")
        await prove(w)


async def damage(args: argparse.Namespace, folder: Path, nursery: Nursery, report: Report) -> None:
    """Damage of every kind, each refused, read again and exact."""
    async with part(args, folder, nursery, report) as w:
        w.talk(3, seed=args.seed, cuts=0.0)
        await damage_rounds(w, args.damage)
        await prove(w)


async def clock(args: argparse.Namespace, folder: Path, nursery: Nursery, report: Report) -> None:
    """A server in this process whose wall clock jumps."""
    async with part(args, folder, nursery, report) as w:
        w.talk(3, seed=args.seed, cuts=0.0)
        for _ in range(args.clock):
            await under_a_jumping_clock(w)


async def prove(w: World) -> None:
    """With a server that nobody speaks to; it is stopped in order at the end."""
    await w.start()
    await w.check()
    await w.prove()
    await w.stop()
    await w.check()


def progress(what: str) -> None:
    """Say how far it is, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r{what} ", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
