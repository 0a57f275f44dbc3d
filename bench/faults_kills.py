"""SIGKILL at random moments: at starts, under feeding, in the middle of spills, during stops."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from bench.faults_world import POLL_S, Stuck, World
from shadow_reader.errors import ShadowError

Moment: TypeAlias = Callable[[World], Awaitable[str]]
"""Lets the running server get to the moment, and kills it there; what it was killed in."""

FEED_S: Final = 1.2
SPILL_WAIT_S: Final = 4.0
_LOOK_S: Final = 0.001


async def kill_once(world: World) -> None:
    """Start a server, kill it at a moment that the seed chooses, and check the journal."""
    choose = world.choices
    if choose.random() < 0.15:
        await _kill_at_start(world)
        return
    moment = choose.choices([m for m, _ in MOMENTS], [weight for _, weight in MOMENTS])[0]
    await kill_at(world, moment)


async def kill_at(world: World, moment: Moment) -> None:
    """Start a server, check, let the clients speak, kill it at the moment, and check."""
    await world.start()
    await world.check()
    await world.probe()
    world.go()
    what = await moment(world)
    world.tally.faults[what] += 1
    await world.check()


async def _kill_at_start(world: World) -> None:
    """Some time before, at, or right after the moment when it is ready."""
    ready = await world.fork_server()
    deadline = time.monotonic() + world.choices.uniform(0, 1.2)
    was_ready = False
    while time.monotonic() < deadline and not (was_ready := ready.exists()):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    await world.kill()
    ready.unlink(missing_ok=True)
    world.tally.faults["kill when just ready" if was_ready else "kill at start"] += 1


async def under_feeding(world: World) -> str:
    """After a while of talk."""
    await asyncio.sleep(world.choices.uniform(0.02, FEED_S))
    await world.kill()
    return "kill under feeding"


async def at_an_acknowledgement(world: World) -> str:
    """As soon as the next message (one of the next few) was acknowledged."""
    target = world.tally.acknowledged + world.choices.randrange(1, 60)
    deadline = time.monotonic() + SPILL_WAIT_S
    while world.tally.acknowledged < target and time.monotonic() < deadline:
        world.look_after()
        await asyncio.sleep(_LOOK_S)
    await world.kill()
    return "kill at an acknowledgement"


async def in_a_spill(world: World) -> str:
    """While a snapshot's file is being written, or right behind one."""
    found = await _sees_writing(world)
    if found and world.choices.random() < 0.5:
        await asyncio.sleep(world.choices.uniform(0, 0.01))
    await world.kill()
    return "kill in a spill" if found else "kill under feeding"


async def among_restores(world: World) -> str:
    """While questions about all sessions at once make states come and go."""
    await asyncio.sleep(world.choices.uniform(0.1, FEED_S))
    asked = [
        asyncio.create_task(
            world.client.ask(talker.book.session, [1, 2], ["yes", "no"], timeout_s=10.0)
        )
        for talker in world.talkers
    ]
    await asyncio.wait(asked, timeout=world.choices.uniform(0.02, 0.6))
    await world.kill()
    await asyncio.wait(asked)
    for question in asked:
        error = question.exception()
        if error is not None and not isinstance(error, ShadowError):
            raise error
    return "kill among restores"


async def in_an_erasure(world: World) -> str:
    """While sessions are erased: in the journal, in memory, on the disk."""
    await asyncio.sleep(world.choices.uniform(0.1, FEED_S))
    for talker in world.choices.sample(world.talkers, len(world.talkers) // 2):
        talker.erase_next = True
    deadline = time.monotonic() + SPILL_WAIT_S
    while not (found := any(talker.book.erasing for talker in world.talkers)):
        world.look_after()
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(world.choices.uniform(0, 0.05))
    await world.kill()
    return "kill in an erasure" if found else "kill under feeding"


async def in_a_stop(world: World) -> str:
    """Some time after a SIGTERM, which the clients talk into."""
    await asyncio.sleep(world.choices.uniform(0.1, FEED_S))
    assert world.server is not None
    world.server.signal(signal.SIGTERM)
    await asyncio.wait({world.server.ended}, timeout=world.choices.uniform(0, 0.35))
    in_time = world.server.runs
    if not in_time:
        await world.stopped()
        return "stop in order"
    await world.kill()
    return "kill in a stop"


async def in_a_stops_spill(world: World) -> str:
    """While a stop writes a snapshot."""
    await asyncio.sleep(world.choices.uniform(0.1, FEED_S))
    assert world.server is not None
    world.server.signal(signal.SIGTERM)
    found = await _sees_writing(world)
    if not world.server.runs:
        await world.stopped()
        return "stop in order"
    await world.kill()
    return "kill in a stop's spill" if found else "kill in a stop"


async def by_a_second_signal(world: World) -> str:
    """SIGTERM twice: the second one ends it at once."""
    await asyncio.sleep(world.choices.uniform(0.1, FEED_S))
    assert world.server is not None
    world.server.signal(signal.SIGTERM)
    await asyncio.wait({world.server.ended}, timeout=world.choices.uniform(0.001, 0.2))
    if not world.server.runs:
        await world.stopped()
        return "stop in order"
    world.server.signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(5):
            await asyncio.shield(world.server.ended)
    except TimeoutError:
        raise Stuck("a second SIGTERM did not end the server at once") from None
    await world.park()
    return "second SIGTERM"


MOMENTS: Final[tuple[tuple[Moment, int], ...]] = (
    (under_feeding, 5),
    (at_an_acknowledgement, 3),
    (in_a_spill, 4),
    (among_restores, 2),
    (in_an_erasure, 1),
    (in_a_stop, 2),
    (in_a_stops_spill, 2),
    (by_a_second_signal, 1),
)


def is_kill(what: str) -> bool:
    """Whether a fault's name is that of a SIGKILL."""
    return what.startswith("kill ")


async def _sees_writing(world: World) -> bool:
    """Wait until a snapshot's file is being written or has just come; False: none was in time.

    A file takes a millisecond or two, a spill writes several: behind one there is mostly another.
    """
    deadline = time.monotonic() + SPILL_WAIT_S
    assert world.server is not None
    before = _files(world.snapshots)
    while world.server.runs and time.monotonic() < deadline:
        world.look_after()
        now = _files(world.snapshots)
        if now - before:
            return True
        before = now
        await asyncio.sleep(_LOOK_S)
    return False


def _files(root: Path) -> frozenset[tuple[str, int]]:
    """Every file of a snapshot, finished or not: a new one has a number of its own."""
    try:
        with os.scandir(root) as entries:
            folders = [folder.path for folder in entries if folder.is_dir()]
        return frozenset(found for path in folders for found in _files_in(path))
    except FileNotFoundError:
        return frozenset()


def _files_in(folder: str) -> list[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.path, entry.inode()) for entry in entries]
    except FileNotFoundError:
        return []
