"""A reader with a mover, snapshots in a folder, and everything under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from shadow_reader.errors import NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.snapshots import Span
from shadow_reader.events.types import Entry
from tests.fake_journal import FlakyJournal, all_entries
from tests.fake_snapshots import FakePinned
from tests.fakes import FakeEngine
from tests.shadow.disk_rig import DiskRig
from tests.shadow.rig import quiet
from tests.store.snapshot_disk import TestDisk

T = TypeVar("T")

STRIDES = pytest.mark.parametrize("stride", [12, pytest.param(1, marks=pytest.mark.slow)])
"""Every twelfth moment by default, every one in the long run."""

CAP_UNITS = 14
DISK_S = 0.02


@dataclass
class MovingRig(DiskRig):
    """The rig over a disk that can be made to fail.

    Attributes:
        pins: every pin that was taken.
    """

    disk: TestDisk = field(init=False)
    disk_s: float = DISK_S
    pins: list[FakePinned] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = TestDisk(self.root, self.disk_bytes)
        super().__post_init__()
        self.disk.steps.clear()
        pin = self.engine.pin

        @wraps(pin)
        def pinned(session: str, written: Sequence[Span] = ()) -> FakePinned | None:
            found = pin(session, written)
            if found is not None:
                self.pins.append(found)
            return found

        vars(self.engine).update(pin=pinned)

    async def store_erased(self, session: str) -> None:
        """What a client does whose erasure failed at the disk: say it again."""
        with suppress(NotFoundError):
            await self.erase(session)

    async def answer(self, session: str) -> None:
        """Ask about the session, which makes it the last one heard of; its state is then exact."""
        await self.ask(session, timeout_s=500.0)
        self.assert_exact(session)

    # -- looking ------------------------------------------------------------------------------

    def snapshots(self) -> list[str]:
        """Sessions that have a snapshot, whole and readable."""
        names = [live.session for live in self.sessions.live()]
        return [name for name in names if self.store.find(name) is not None]

    def assert_sound(self) -> None:
        """Nothing is held, nothing is left over, and the account is right."""
        assert self.lease.free
        assert all(pin.released for pin in self.pins)
        assert all(restore.units == 0 for restore in self.engine.restores)
        assert self.engine.peak <= self.engine.cap
        files = [path for path in self.root.rglob("*") if path.is_file()]
        assert not [path for path in files if path.name.endswith(".tmp")]
        assert self.store.stats().bytes == sum(path.stat().st_size for path in files)
        for folder in self.root.iterdir():
            if folder.is_dir():
                assert (folder / "head.safetensors").exists(), list(folder.iterdir())

    async def check_moves(self, session: str, *, gaps: bool = False) -> None:
        """Where the journal's reads, rewinds, spills and restores say that the state stands."""
        check_moves(await all_entries(self.journal, session), gaps=gaps)


def check_moves(entries: Sequence[Entry], *, gaps: bool = False) -> None:
    """Each deed begins where the last one left the state.

    With ``gaps``, an end of a process or a failed commit lies between, and only what an entry says
    of itself is held.
    """
    at = 0
    for entry in entries:
        match entry.event:
            case t.Read(start=start, stop=stop):
                assert gaps or start == at, f"{entry} where the state stood at {at}"
                assert start < stop
                at = stop
            case t.Rewind(cut=cut, to=to):
                assert gaps or to <= cut < at, f"{entry} where the state stood at {at}"
                at = to
            case t.Shared(position=position):
                at = position
            case t.Spill(position=position, kept=kept):
                assert gaps or position <= at, f"{entry} where the state stood at {at}"
                at = at if kept else 0
            case t.Restore(position=position, refused=refused):
                assert gaps or at == 0, f"{entry} where the state stood at {at}"
                assert (position == 0) == (refused is not None)
                at = position
            case t.Dropped(committed=committed):
                assert gaps or committed == at, f"{entry} where the state stood at {at}"
                at = 0
            case t.SessionErased():
                at = 0
            case _:
                pass


class CancelledAt(Generic[T]):
    """Awaits a coroutine, and cancels the task that does so when it waits for the n-th time.

    Attributes:
        reached: whether it came to that.
    """

    def __init__(self, work: Coroutine[Any, Any, T], number: int) -> None:
        self._work = work
        self._number = number
        self.reached = False

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._work.__await__()
        thrown: BaseException | None = None
        task = asyncio.current_task()
        assert task is not None
        waits = 0
        while True:
            try:
                future = next(inner) if thrown is None else inner.throw(thrown)
            except StopIteration as done:
                found: T = done.value
                return found
            if waits == self._number:
                self.reached = True
                asyncio.get_running_loop().call_soon(task.cancel)
            waits += 1
            thrown = None
            try:
                yield future
            except BaseException as error:  # noqa: BLE001  # handed on to the coroutine
                thrown = error


def prompt_of(session: str, chunks: int, *, shared: int = 1) -> list[int]:
    """So many chunks of ids; the first ``shared`` ones are everybody's."""
    own = sum(session.encode()) * 37
    return [(7 * i if i < 8 * shared else own + 11 * i) % 1000 for i in range(8 * chunks)]


async def crowd(rig: MovingRig, sessions: Sequence[str] = ("a", "b", "c"), chunks: int = 5) -> None:
    """Sessions that do not fit together: each is read, and pushes the others out."""
    for session in sessions:
        await rig.whole_turn(session, prompt_of(session, chunks), f"{session}1", [1, 2, 3])
        await quiet(30)


def a_rig(root: Path, journal: FlakyJournal | None = None, **more: Any) -> MovingRig:
    """A rig whose memory holds two sessions of ``crowd``."""
    engine = FakeEngine(cap=more.pop("cap", CAP_UNITS))
    return MovingRig(journal=journal or FlakyJournal(), engine=engine, root=root, **more)
