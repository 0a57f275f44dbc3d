"""One service at a time, on virtual time, with everybody who talks to it; see ``test_machine``."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from bench.faults_damage import HEAD, KINDS, Kind
from bench.faults_world import folder_of
from shadow_reader.config import GIB, Settings
from shadow_reader.errors import (
    ConflictError,
    NotFoundError,
    ShadowError,
    ShutDownError,
)
from shadow_reader.events import types as t
from shadow_reader.events.branches import MAX_BRANCHES, line_names
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.sessions import Receipt
from tests.fakes import LoopClock, fake_vocabulary
from tests.machine.book import Book, Talk, Turn, Wait
from tests.machine.checked_engine import GRID, CheckedEngine
from tests.machine.checks import check_erased, check_from_zero, check_journal
from tests.machine.oracle import Oracle
from tests.machine.parts import Life, files_below
from tests.shadow.models import SMALL, small_model
from tests.store.snapshot_disk import TestDisk

NAMES: Final = ("zoe in Oslo", "bob in Lima", "cyd in Kyiv", "dan in Rome")
MODEL: Final = replace(SMALL, vocab=4096)
CHOICES: Final = ("yes", "no")
LETTERS: Final = tuple(fake_vocabulary().letter_ids(len(CHOICES)))
TURN_TIMEOUT_S: Final = 120.0
LONGEST: Final = 9 * GRID + GRID // 2
MARK_IDS: Final = 8
OF_ONE: Final = [kind for kind in KINDS if "session" not in kind.name]
"""Kinds of damage that take no second session."""
ORACLE: Final = Oracle(small_model(config=MODEL), GRID)


@dataclass
class World:
    """See the module.

    Args:
        root: of all lives' folders.
        cap_bytes: of the engine's memory. disk_bytes: of the snapshots.
        foreground, branches: the service's settings.
        seed: of the ids that are said.
    """

    root: Path
    cap_bytes: int
    disk_bytes: int
    foreground: Literal["turns", "lease"]
    branches: int
    seed: int
    lives: int = 0
    clock: LoopClock = field(default_factory=LoopClock)
    said: int = 0
    waits: list[float] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    told: list[asyncio.Task[Any]] = field(default_factory=list)
    asking: list[asyncio.Task[Any]] = field(default_factory=list)
    holding: list[asyncio.Task[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.oracle = ORACLE
        self.book = Book(NAMES, ORACLE, LETTERS)
        self.marks: dict[str, list[list[int]]] = {name: [] for name in NAMES}
        self.life: Life
        self.disk: TestDisk

    # -- lives --------------------------------------------------------------------------------

    def make_disk(self) -> TestDisk:
        """The file system of the snapshots of the life that starts; it measures every step."""
        self.disk = TestDisk(self.root / str(self.lives) / "snapshots", self.disk_bytes)
        return self.disk

    async def start(self) -> None:
        """A process starts on what lies in the newest folder."""
        folder = self.root / str(self.lives)
        folder.mkdir(exist_ok=True)
        engine = CheckedEngine(
            small_model(config=MODEL), grid=GRID, cap_bytes=self.cap_bytes, poison=True
        )
        settings = Settings(
            journal=folder / "shadow.db",
            disk=str(folder / "snapshots"),
            disk_gb=self.disk_bytes / GIB,
            foreground=self.foreground,
            turn_timeout_s=TURN_TIMEOUT_S,
            pending_events=64,
            recent_sessions=2,
            branches=self.branches,
            branch_min_ids=GRID,
            sessions=32,
        )
        shadow = Runtime(settings, clock=self.clock, engine=engine, vocabulary=fake_vocabulary())
        self.life = life = Life(folder, shadow, engine)
        engine.watch(
            shadow.lease, lambda: shadow.state == "closing", partial(check_from_zero, self)
        )
        await shadow.__aenter__()
        life.ready = True

    async def stop(self) -> None:
        """In order: what is on its way is finished or refused, states are spilled."""
        self.life.ready = False
        await self.life.shadow.__aexit__(None, None, None)
        await self._all_end()
        assert self.life.engine.stats().bytes == 0, "law 6: something is held after the end"

    async def kill(self, after_s: float) -> None:
        """The process ends between two of its jobs, and nothing of it ever runs again.

        What a kill leaves is what the files hold at that moment: the next life gets a copy of
        them, and the old one is taken apart where nobody looks.
        """
        await asyncio.sleep(after_s)
        self.reap()
        old, unheard = self.life, [*self.told, *self.asking, *self.holding]
        self.told, self.asking, self.holding = [], [], []
        self.lives += 1
        shutil.copytree(old.folder, self.root / str(self.lives))
        old.ready = False
        for task in unheard:
            task.cancel()
        await asyncio.gather(*unheard, return_exceptions=True)
        await old.shadow.__aexit__(None, None, None)
        shutil.rmtree(old.folder)
        await self.start()
        await check_journal(self, adopt=True)

    async def restart(self) -> None:
        """Close in order, and open."""
        await self.stop()
        await self.start()
        entries = [e async for e in self.life.shadow.journal_entries(session="")]
        ends = [e.event for e in entries if isinstance(e.event, t.EngineStopped)]
        assert ends, "an orderly end is journaled"
        await check_journal(self, adopt=True)

    async def _all_end(self) -> None:
        for task in self.holding:
            task.cancel()
        await asyncio.gather(*self.told, *self.asking, *self.holding, return_exceptions=True)
        self.reap()

    # -- what clients say ---------------------------------------------------------------------

    def fresh(self, session: str, count: int) -> list[int]:
        """Ids that nobody said before, of one session."""
        made = [self.random.randrange(MODEL.vocab) for _ in range(count)]
        if count >= MARK_IDS:
            self.marks[session].append(made[:MARK_IDS])
        return made

    async def prompt(self, session: str, ids: list[int], *, at_once: bool) -> None:
        """A turn begins; ``at_once``: its client goes on before it is acknowledged."""
        self.said += 1
        talk = self.book.talks[session]
        turn = Turn(f"t{self.said}", ids[:LONGEST])
        talk.turns.append(turn)

        def heard() -> None:
            turn.opened = True

        work = self.life.shadow.sessions.prompt(session, list(turn.prompt), turn=turn.turn)
        await self._say(talk, turn, work, heard, at_once=at_once)

    async def output(
        self, session: str, turn: Turn, offset: int, ids: list[int], *, at_once: bool
    ) -> None:
        """Output from ``offset`` on, which must not lie above what was sent."""
        talk = self.book.talks[session]
        end = offset + len(ids)
        turn.output = [*turn.output[:offset], *ids, *turn.output[end:]]

        def heard() -> None:
            turn.heard = max(turn.heard, end)

        work = self.life.shadow.sessions.output(session, turn.turn, offset=offset, ids=list(ids))
        await self._say(talk, turn, work, heard, at_once=at_once)

    async def wrong_output(self, session: str, turn: Turn, offset: int, ids: list[int]) -> None:
        """Output that leaves a gap or contradicts what is known is refused."""
        await self.settle_told()
        with suppress(ConflictError, NotFoundError):
            await self.life.shadow.output(session, turn.turn, offset=offset, ids=ids)
            raise AssertionError(f"output of {turn.turn} at {offset} was taken")

    async def end(self, session: str, turn: Turn, reason: t.EndReason, *, at_once: bool) -> None:
        """The turn ends."""
        talk = self.book.talks[session]
        turn.reason = reason

        def heard() -> None:
            turn.ended = True

        work = self.life.shadow.sessions.end(session, turn.turn, reason=reason)
        await self._say(talk, turn, work, heard, at_once=at_once)

    async def erase(self, session: str, *, at_once: bool) -> None:
        """All of it goes."""
        talk = self.book.talks[session]
        talk.erasing = True

        async def erase() -> None:
            await self.life.shadow.erase(session)
            talk.was_erased()
            check_erased(self, session)

        task = asyncio.create_task(erase(), name=f"erase {session}")
        self.told.append(task)
        if not at_once:
            await asyncio.wait([task])
            self.reap()

    def ask(self, session: str, wait: Wait, timeout_s: float) -> None:
        """A question, whose answer is written down when it comes."""
        talk = self.book.talks[session]
        question = self.fresh(session, 12)

        async def asked() -> None:
            reply = await self.life.shadow.ask(
                session, question, CHOICES, wait=wait, timeout_s=timeout_s
            )
            if not talk.erasing:
                talk.replies.append(reply)

        self.asking.append(asyncio.create_task(asked(), name=f"ask {session}"))

    def hold(self, seconds: float) -> None:
        """A request of the big model has the lease for a while; law 5 says how long it waits."""

        async def hold() -> None:
            came, lease = self.clock.monotonic(), self.life.shadow.lease
            async with lease.request():
                self.waits.append(self.clock.monotonic() - came)
                await asyncio.sleep(seconds)

        self.holding.append(asyncio.create_task(hold(), name="request"))

    async def _say(
        self,
        talk: Talk,
        turn: Turn,
        deciding: Coroutine[Any, Any, Receipt],
        heard: Callable[[], None],
        *,
        at_once: bool,
    ) -> None:
        """As a feed does it: the next message comes after the decision, perhaps before the
        acknowledgement."""
        life = self.life
        try:
            receipt = await deciding
        except ConflictError:
            late = self.clock.monotonic() - turn.said_s >= TURN_TIMEOUT_S
            assert late or turn.refused or turn is not talk.last, f"{turn.turn} was refused"
            turn.refused = True
            if not turn.ended:
                turn.reason = None
            return
        turn.said_s = self.clock.monotonic()

        async def acknowledged() -> None:
            try:
                await receipt
            except ShutDownError:
                assert not life.ready
            else:
                heard()

        self.told.append(asyncio.create_task(acknowledged(), name=f"say {turn.turn}"))
        if not at_once:
            await self.settle_told()

    async def settle_told(self) -> None:
        if self.told:
            await asyncio.wait(self.told)
        self.reap()

    def reap(self) -> None:
        """Whatever ended in a way that nobody expected is a fault."""
        for tasks in (self.told, self.asking, self.holding):
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if task.cancelled() or (error := task.exception()) is None:
                    continue
                if tasks is self.told or not isinstance(error, ShadowError):
                    raise error

    # -- what may happen besides --------------------------------------------------------------

    def has_snapshot(self, session: str) -> bool:
        """Whether there is a whole one with a piece."""
        folder = folder_of(self.life.snapshots, session)
        return (folder / HEAD).exists() and len(files_below(folder)) > 1

    async def damage(self, kind: Kind, which: int) -> None:
        """The process is stopped, a session's snapshot damaged, and it starts again.

        A question follows, so that the session is not just left where it lies.
        """
        await self.stop()
        names = [name for name in NAMES if self.has_snapshot(name)]
        if names:
            session, other = (names[(which + n) % len(names)] for n in range(2))
            root = self.life.snapshots
            if session != other or kind in OF_ONE:
                kind.damage(folder_of(root, session), folder_of(root, other), self.random)
                self.damaged |= {session, other}
        await self.start()
        await check_journal(self, adopt=True)
        if names:
            self.ask(session, "fresh", 5.0)
            await asyncio.sleep(5.0)

    def lose_a_file(self, which: int) -> None:
        """A file of a snapshot is gone or cut short while the service runs."""
        files = [path for path in files_below(self.life.snapshots) if path.suffix != ".lock"]
        if not files:
            return
        path = sorted(files)[which % len(files)]
        if which % 2:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        self.damaged |= {
            name
            for name in NAMES
            for line in line_names(name, MAX_BRANCHES)
            if folder_of(self.life.snapshots, line) == path.parent
        }
