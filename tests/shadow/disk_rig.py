"""A reader with a mover over snapshots in a real folder, everything under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeAlias

from shadow_reader.bounds import Bound
from shadow_reader.shadow.erasures import Erasures
from shadow_reader.shadow.mover import Mover
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.store import FileSnapshots, SnapshotLimits
from tests.fake_device import InlineDevice
from tests.fakes import GRID, FakeEngine
from tests.shadow.rig import Rig, ids, quiet, units

DISK_BYTES = 1 << 20
TTL_S = 48 * 3600.0

Loop: TypeAlias = Coroutine[Any, Any, None]


@dataclass
class DiskRig(Rig):
    """The rig with a mover over a real folder.

    Attributes:
        root: of the snapshots. disk: their file system, which may take ``disk_bytes``.
        disk_s: how long a job of the disk's thread takes.
    """

    root: Path = field(kw_only=True)
    disk: Disk = field(default_factory=Disk)
    disk_bytes: int = DISK_BYTES
    disk_s: float = 0.0
    ttl_s: float = TTL_S
    moving: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = SnapshotLimits(self.disk_bytes, self.ttl_s)
        self.store = FileSnapshots.open(self.root, limits=limits, clock=self.clock, disk=self.disk)
        self.mover = Mover(
            engine=self.engine,
            device=self.device,
            disk=InlineDevice(self.disk_s),
            store=self.store,
            lease=self.lease,
            clock=self.clock,
            roster=self.reader.roster,
            line=self.line,
            windows=self.windows,
            wake=self.reader.wake,
        )
        self.reader.move_with(self.mover)
        self.erasures = Erasures(self.sessions, self.line, Bound("erasures", 8))
        self.erasures.forget = self.reader.forget

    def start(self, drive: Callable[[Loop], Loop] | None = None) -> Self:
        """As the runtime does it; ``drive`` goes around the mover's loop."""
        run = self.mover.run()
        self.moving = asyncio.create_task(run if drive is None else drive(run), name="mover")
        return super().start()

    async def stop(self) -> None:
        """As the runtime does it: everything in memory goes to the disk."""
        await super().stop()
        await self.kill_mover()
        await self.mover.spill_all(lambda _progress: None)
        assert all(not restore.units for restore in self.engine.restores)
        self.store.close()

    async def kill_mover(self) -> None:
        """End the mover's task, wherever it is."""
        assert self.moving is not None
        self.moving.cancel()
        await asyncio.gather(self.moving, return_exceptions=True)

    async def erase(self, session: str) -> None:
        """As the runtime does it."""
        await self.erasures.erase(session)

    def assert_alone(self, *sessions: str) -> None:
        """These have a state, and no other."""
        assert set(self.engine.states) == set(sessions)


@contextmanager
def on_disk(**more: Any) -> Iterator[DiskRig]:
    """A rig over a folder that goes away."""
    with TemporaryDirectory() as folder:
        yield DiskRig(root=Path(folder) / "snapshots", **more)


TWO = 2 * units(10)
"""Room for two of the sessions below."""


async def two_and_one_more(rig: DiskRig) -> None:
    """Sessions a, b and c, of which two fit; a is spilled."""
    await read_in_turn(rig, "abc", 10)
    rig.assert_alone("b", "c")


async def read_in_turn(rig: DiskRig, sessions: str, seconds: float) -> None:
    """Start, and give each session ten chunks and so many seconds."""
    rig.start()
    for seed, name in enumerate(sessions):
        await rig.whole_turn(name, ids(10 * GRID, seed), "t1")
        await quiet(seconds)


def engine_for_two(more: int = 0) -> FakeEngine:
    """An engine with room for two of them, and so many units more."""
    return FakeEngine(cap=TWO + more)
