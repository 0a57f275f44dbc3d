"""Whatever is said, asked, erased, damaged or killed, in any order: every law, all the time.

One service at a time: a real small engine under a cap that makes sessions push each other out, an
SQLite journal, snapshots in a folder with a cap of its own. Only the threads are not there
(``parts.py``): time is virtual, so each history is the same every time.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import async_solipsism
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bench.faults_damage import KINDS
from shadow_reader.events.types import EndReason
from shadow_reader.shadow.model.facts import least_bytes
from tests.fakes import EFFORT
from tests.machine.book import Talk, Turn, Wait
from tests.machine.checked_engine import GRID
from tests.machine.checks import check_now, quiet
from tests.machine.parts import on_virtual_time
from tests.machine.world import MODEL, NAMES, World

PAGE_BYTES: Final = GRID * MODEL.row_bytes(4)
LEAST_BYTES: Final = least_bytes(MODEL, 4, GRID)

sessions = st.sampled_from(NAMES)
numbers = st.integers(0, 1_000)
pauses = st.sampled_from([0.0, 0.001, 0.004, 0.05, 0.11, 0.23, 0.7, 3.0])
kinds = st.sampled_from(["on", "on", "back", "back", "other", "like", "like", "shorter"])
KILLED_S: Final = (0.0, 0.001, 0.0035, 0.02, 0.07, 0.15, 0.4, 1.0)
JUMPS_S: Final = (-1e7, -90.0, 90.0, 1e5)
DAMAGE: Final = [
    *(kind for kind in KINDS if kind.name != "a stray file added"),
    *(kind for kind in KINDS if "flipped" in kind.name),
]
"""Nothing is ever removed from a folder with something strange in it, an erased session's too."""


class Machine(RuleBasedStateMachine):
    """See the module."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.unseen: list[dict[str, Any]] = []
        self.level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        self.stack = ExitStack()
        self.root = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.runner = self.stack.enter_context(
            asyncio.Runner(loop_factory=async_solipsism.EventLoop)
        )
        self.runner.get_loop().set_exception_handler(
            lambda _loop, context: self.unseen.append(context)
        )
        self.stack.enter_context(on_virtual_time(lambda: self.world.make_disk()))

    def run(self, work: Coroutine[Any, Any, None], pause_s: float = 0.0) -> None:
        """Do it, and let ``pause_s`` pass."""

        async def main() -> None:
            await work
            if pause_s:
                await asyncio.sleep(pause_s)

        self.runner.run(main())

    @initialize(
        pages=st.integers(12, 30),
        disk_pages=st.integers(8, 40),
        foreground=st.sampled_from(["turns", "lease"]),
        branches=st.integers(0, 2),
        seed=numbers,
    )
    def start(
        self,
        pages: int,
        disk_pages: int,
        foreground: Literal["turns", "lease"],
        branches: int,
        seed: int,
    ) -> None:
        """The memory holds one long session at least, the disk perhaps not even that."""
        cap_bytes = LEAST_BYTES + pages * PAGE_BYTES
        disk_bytes = disk_pages * PAGE_BYTES
        self.world = World(self.root, cap_bytes, disk_bytes, foreground, branches, seed)
        self.run(self.world.start())

    def talk(self, session: str) -> Talk:
        return self.world.book.talks[session]

    def open_turn(self, session: str, which: int) -> Turn | None:
        """Mostly the newest turn; else an older one, which runs on where it has a line."""
        turns = [turn for turn in self.talk(session).turns[-4:] if not turn.over]
        if not turns or self.busy(session):
            return None
        return turns[which % len(turns)] if which % 3 == 0 else turns[-1]

    def busy(self, session: str) -> bool:
        """Whether it is being erased: what is said then comes after it, and is not tried here."""
        return self.talk(session).erasing

    @rule(
        session=sessions,
        like=sessions,
        kind=kinds,
        where=numbers,
        more=st.integers(1, 4 * GRID),
        at_once=st.booleans(),
        pause_s=pauses,
    )
    def prompt(
        self,
        session: str,
        like: str,
        kind: str,
        where: int,
        more: int,
        at_once: bool,
        pause_s: float,
    ) -> None:
        """A turn begins."""
        if not self.busy(session):
            ids = self.ids_of_a_prompt(session, like, kind, where, more)
            self.run(self.world.prompt(session, ids, at_once=at_once), pause_s)

    @rule(
        session=sessions,
        like=sessions,
        kind=kinds,
        where=numbers,
        more=st.integers(GRID, 7 * GRID),
        output=st.integers(0, GRID),
        pause_s=pauses,
    )
    def whole_turn(
        self,
        session: str,
        like: str,
        kind: str,
        where: int,
        more: int,
        output: int,
        pause_s: float,
    ) -> None:
        """A turn from its beginning to its end, all of it acknowledged; states are read between."""
        if self.busy(session):
            return

        async def work() -> None:
            ids = self.ids_of_a_prompt(session, like, kind, where, more)
            await self.world.prompt(session, ids, at_once=True)
            turn = self.talk(session).turns[-1]
            new = self.world.fresh(session, output)
            half, again = output // 2, max(0, output // 2 - where % 7)
            if half:
                await self.world.output(session, turn, 0, new[:half], at_once=True)
            if output:  # what was sent already may come again
                await self.world.output(session, turn, again, new[again:], at_once=True)
            await self.world.end(session, turn, "stop", at_once=False)

        self.run(work(), pause_s)

    def ids_of_a_prompt(
        self, session: str, like: str, kind: str, where: int, more: int
    ) -> list[int]:
        """It goes on, goes back, is unrelated, begins like another session, or gets shorter."""
        known = self.talk(like if kind == "like" else session).known
        keep = {"on": len(known), "other": 0}.get(kind, where % (len(known) + 1))
        ids = known[:keep]
        return ids if kind == "shorter" and ids else ids + self.world.fresh(session, more)

    @rule(
        session=sessions,
        which=numbers,
        kind=st.sampled_from(["next", "next", "next", "again", "overlap", "gap", "other"]),
        more=st.integers(1, 100),
        at_once=st.booleans(),
        pause_s=pauses,
    )
    def output(
        self, session: str, which: int, kind: str, more: int, at_once: bool, pause_s: float
    ) -> None:
        """Output of a turn: the next ids, ids again, both, or ids that cannot be."""
        turn = self.open_turn(session, which)
        if turn is None:
            return
        sent = turn.output
        if kind in ("gap", "other"):
            wrong = [(sent[-1] + 1) % MODEL.vocab] if kind == "other" and sent else [1, 2]
            offset = len(sent) - 1 if kind == "other" and sent else len(sent) + more
            self.run(self.world.wrong_output(session, turn, offset, wrong), pause_s)
            return
        back = min(len(sent), more) if kind in ("again", "overlap") else 0
        ids = sent[len(sent) - back :]
        if kind != "again" or not ids:
            ids = ids + self.world.fresh(session, more)
        self.run(self.world.output(session, turn, len(sent) - back, ids, at_once=at_once), pause_s)

    @rule(
        session=sessions,
        which=numbers,
        reason=st.sampled_from(["stop", "length", "abort"]),
        at_once=st.booleans(),
        pause_s=pauses,
    )
    def end(
        self, session: str, which: int, reason: EndReason, at_once: bool, pause_s: float
    ) -> None:
        turn = self.open_turn(session, which)
        if turn is not None:
            self.run(self.world.end(session, turn, reason, at_once=at_once), pause_s)

    @rule(
        session=sessions,
        wait=st.sampled_from(["fresh", "now"]),
        timeout_s=st.sampled_from([0.05, 1.0, 30.0]),
        pause_s=pauses,
    )
    def ask(self, session: str, wait: Wait, timeout_s: float, pause_s: float) -> None:
        if self.busy(session):
            return

        async def work() -> None:
            self.world.ask(session, wait, timeout_s)

        self.run(work(), pause_s)

    @precondition(lambda self: self.world.asking)
    @rule(which=numbers, pause_s=pauses)
    def cancel_a_question(self, which: int, pause_s: float) -> None:
        async def work() -> None:
            asking = self.world.asking
            asking[which % len(asking)].cancel()

        self.run(work(), pause_s)

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0, 40.0]), pause_s=pauses)
    def request(self, seconds: float, pause_s: float) -> None:
        """A request of the big model holds the lease."""

        async def work() -> None:
            self.world.hold(seconds)

        self.run(work(), pause_s)

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.13, 0.5, 2.0, 10.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(session=sessions, at_once=st.booleans(), pause_s=pauses)
    def erase(self, session: str, at_once: bool, pause_s: float) -> None:
        talk = self.talk(session)
        if talk.turns and talk.turns[0].opened and not self.busy(session):
            self.run(self.world.erase(session, at_once=at_once), pause_s)

    @rule(which=numbers)
    def something_goes_wrong(self, which: int) -> None:
        """A kill, an orderly restart, a snapshot damaged, a file lost, a wall clock that jumps."""
        what, number = which % 5, which // 5
        if what == 0:
            self.run(self.world.kill(KILLED_S[number % len(KILLED_S)]))
        elif what == 1:
            self.run(self.world.restart())
        elif what == 2:
            self.run(self.world.damage(DAMAGE[number % len(DAMAGE)], number))
        elif what == 3:
            self.world.lose_a_file(number)
        else:
            self.world.clock.jumped += JUMPS_S[number % len(JUMPS_S)]

    @rule()
    def everything_comes_to_rest(self) -> None:
        self.run(quiet(self.world))

    @invariant()
    def every_law(self) -> None:
        if hasattr(self, "world"):
            check_now(self.world)
        assert not self.unseen, self.unseen

    def teardown(self) -> None:
        try:
            if hasattr(self, "world") and self.world.life.ready:
                self.run(quiet(self.world))
                self.run(self.world.restart())
                self.run(quiet(self.world))
                self.run(self.world.stop())
                assert not self.unseen, self.unseen
        finally:
            self.stack.close()
            logging.disable(self.level)


def run_as(examples: int, steps: int, *, same: bool) -> type:
    """The machine as a test class; ``same`` histories every time, or new ones."""
    case: type = type("Machine", (Machine.TestCase,), {})
    case.settings = settings(  # type: ignore[attr-defined]  # made by hypothesis
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=same,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return case


TestMachine = run_as(12 * EFFORT, 40, same=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestManyMachines:
    """New histories at every run; a failure prints how to have it again."""

    Machine = run_as(60 * EFFORT, 60, same=False)
