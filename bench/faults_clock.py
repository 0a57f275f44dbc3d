"""A wall clock that jumps by seconds to days, either way, under a server in this process."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from bench.faults_book import Finding
from bench.faults_world import World
from shadow_reader.clock import SystemClock
from shadow_reader.config import load_settings
from shadow_reader.events import types as t
from shadow_reader.http.serve import listening
from shadow_reader.runtime import Runtime
from shadow_reader.store.reader import JournalReader

JUMPS_S: Final = (-200_000.0, -3_600.0, -5.0, -0.01, 0.01, 5.0, 3_600.0, 200_000.0, 1e7, -1e7)
"""From less than a message takes to more than a snapshot lives."""

TALK_S: Final = 1.5


class JumpingClock(SystemClock):
    """The machine's clocks, the wall off by what the jumps came to."""

    def __init__(self) -> None:
        self.off_s = 0.0

    def wall(self) -> float:
        """Unix time in seconds, wrong."""
        return time.time() + self.off_s


async def under_a_jumping_clock(world: World) -> None:
    """A start, talk, a stop, with jumps in all of them; then everything is as it must be."""
    clock = JumpingClock()
    clock.off_s = world.choices.choice(JUMPS_S)
    settings = load_settings(overrides=world.all_settings)
    jumping = asyncio.create_task(_jump(clock, world), name="jumps")
    try:
        async with Runtime(settings, clock=clock) as runtime, listening(runtime) as address:
            await world.use(address.url)
            world.go()
            await asyncio.sleep(TALK_S)
            await world.park()
            await world.check()
            await world.prove()
            await world.client.close()  # so that nothing holds up the end
    finally:
        jumping.cancel()
        await asyncio.gather(jumping, return_exceptions=True)
    await _check_durations(world)


async def _jump(clock: JumpingClock, world: World) -> None:
    choose = random.Random(world.choices.random())
    while True:
        await asyncio.sleep(choose.uniform(0.01, 0.2))
        clock.off_s += choose.choice(JUMPS_S)
        world.tally.faults["jump of the wall clock"] += 1


async def _check_durations(world: World) -> None:
    """A duration is never taken from the wall clock: none is negative or takes days."""
    async with await JournalReader.open(world.journal) as reader:
        async for entry in reader.entries(kinds=["read", "spill", "restore", "answer"]):
            match entry.event:
                case t.Read(ms=ms) | t.Spill(ms=ms) | t.Restore(ms=ms) | t.Answer(lag_ms=ms):
                    if not 0 <= ms < 600_000:
                        what = f"{entry.event} took {ms} ms"
                        world.tally.findings.append(Finding("strange", entry.session, what))
                case _:
                    pass
