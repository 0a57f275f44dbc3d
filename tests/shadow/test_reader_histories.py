"""Random histories: whatever comes, in whatever order, the reader ends exact, asleep and honest."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import ShadowError
from shadow_reader.shadow.lease import Rank
from tests.fake_journal import FlakyJournal, script
from tests.fakes import EFFORT, FakeEngine, run_virtual, settle, steps
from tests.shadow.rig import CHUNK_S, Rig, quiet

SESSIONS = ("a", "b", "c")

MOVES = st.tuples(
    st.sampled_from(
        [
            "prompt",
            "prompt",
            "output",
            "end",
            "ask",
            "cancel",
            "erase",
            "request",
            "drafter",
            "fault",
        ]
    ),
    st.sampled_from(SESSIONS),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.1, 0.13, 0.7, 3.0]),
)
Move = tuple[str, str, int, float]


@dataclass
class Story:
    """Clients of three sessions, questions, requests and drafters, all at once."""

    rig: Rig
    turns: dict[str, int] = field(default_factory=dict)
    asking: list[asyncio.Task[Any]] = field(default_factory=list)
    others: list[asyncio.Task[Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rig.engine.before = self.fault

    def fault(self, method: str, _session: str) -> None:
        if method in self.faults:
            self.faults.remove(method)
            raise RuntimeError(f"no {method}")

    def do(self, what: str, session: str, pick: int) -> None:
        if what == "ask":
            wait = "now" if pick % 2 else "fresh"
            self.asking.append(self.rig.ask(session, wait=wait, timeout_s=0.5 + pick))
        elif what == "cancel" and self.asking:
            self.asking[pick % len(self.asking)].cancel()
        elif what == "fault":
            self.faults.append(("align", "read_chunk", "checkpoint", "ask")[pick % 4])
        elif what == "erase":
            self.later(self.rig.erase(session))
        elif what in ("request", "drafter"):
            self.later(self.hold(Rank.REQUEST if what == "request" else Rank.DRAFTER, pick / 10))
        elif what in ("prompt", "output", "end"):
            self.later(self.message(what, session, pick))

    def later(self, work: Any) -> None:
        self.others.append(asyncio.create_task(work))

    async def hold(self, rank: Rank, seconds: float) -> None:
        rig, came = self.rig, self.rig.clock.monotonic()
        alone = rank is Rank.REQUEST and not any(
            entry.rank == "drafter" for entry in rig.lease.status().holders
        )
        async with rig.lease.hold(rank, "somebody"):
            waited, jobs = rig.clock.monotonic() - came, rig.device.begun
            if alone:
                self.waits.append(waited)
            await asyncio.sleep(seconds)
            # Erasing drops a state whoever has the lease; nothing else may touch the device.
            dropped = sum(method == "drop" for method, _ in rig.engine.calls)
            assert rig.device.begun - jobs <= dropped

    async def message(self, what: str, session: str, pick: int) -> None:
        rig = self.rig
        live = await rig.sessions.load(session)
        view = live.tentative
        known = list(view.known) if view else []
        if what == "prompt":
            self.turns[session] = self.turns.get(session, 0) + 1
            keep = len(known) - len(known) * pick // 20 if pick < 5 else len(known)
            grown = [*known[:keep], *([100 * pick + self.turns[session]] * (9 * pick + 1))]
            await rig.prompt(session, grown[-3000:], f"t{self.turns[session]}")
        elif view and view.turn:
            turn = view.turn.turn
            if what == "output":
                await rig.output(session, turn, view.output_length, [pick] * (5 * pick + 1))
            else:
                await rig.end(session, turn)

    async def finish(self) -> None:
        """All that is on its way comes to its end; then a last turn of every session."""
        for result in await settle(*self.asking, *self.others):
            unexpected = isinstance(result, Exception) and not isinstance(result, ShadowError)
            assert not unexpected, repr(result)
        self.faults.clear()
        self.rig.journal.fails = script([])
        await quiet(100)  # questions come to their end, and what failed is folded again
        for live in self.rig.sessions.live():
            if live.tentative and live.tentative.turn and live.running:
                await self.rig.end(live.session, live.tentative.turn.turn)
        for session in SESSIONS:
            live = await self.rig.sessions.load(session)
            known = list(live.tentative.known) if live.tentative else []
            await self.rig.whole_turn(session, [*known, 1, 2, 3], "last")
        await quiet()


async def play(story: Story, moves: list[Move]) -> None:
    rig = story.rig.start()
    for what, session, pick, pause in moves:
        story.do(what, session, pick)
        if pause:
            await asyncio.sleep(pause)
        else:
            await steps(pick)
    await story.finish()
    assert rig.task is not None
    assert not rig.task.done(), "the loop died"
    assert max(story.waits, default=0.0) <= CHUNK_S + 1e-6, "law 5"
    assert rig.lease.free
    rounds = rig.reader.looks
    await quiet(10_000)
    assert rig.reader.looks == rounds, "it does not sleep"
    for live in rig.sessions.live():
        assert live.tentative == live.durable
        assert live.durable is None or not live.durable.questions


@settings(max_examples=80 * EFFORT)
@given(moves=st.lists(MOVES, max_size=30), turns_block=st.booleans())
def test_every_history_ends_exact_and_its_journal_says_what_happened(
    moves: list[Move], turns_block: bool
) -> None:
    async def main() -> None:
        story = Story(Rig(turns_block=turns_block))
        await play(story, moves)
        for session in SESSIONS:
            story.rig.assert_exact(session)
            await story.rig.check_laws(session)
        await story.rig.stop()

    run_virtual(main())


@settings(max_examples=50 * EFFORT)
@given(
    moves=st.lists(MOVES, max_size=25),
    failures=st.lists(st.sampled_from([False, False, True]), max_size=40),
    capacity=st.sampled_from([2, 64]),
)
def test_commits_that_fail_at_any_time_end_exact_too(
    moves: list[Move], failures: list[bool], capacity: int
) -> None:
    async def main() -> None:
        journal = FlakyJournal(commit_s=0.003)
        journal.fails = script(failures)
        story = Story(Rig(journal, turns_block=False, capacity=capacity))
        await play(story, moves)
        for live in story.rig.sessions.live():
            if live.durable is not None:
                story.rig.assert_exact(live.session)
        for session in SESSIONS:
            # What was done while commits failed is not journaled; what is journaled is true.
            await story.rig.check_laws(session, gaps=True)
        await story.rig.stop()

    run_virtual(main())


@settings(max_examples=50 * EFFORT)
@given(moves=st.lists(MOVES, max_size=25), cap=st.integers(3, 40))
def test_under_a_small_cap_nothing_thrashes(moves: list[Move], cap: int) -> None:
    async def main() -> None:
        story = Story(Rig(engine=FakeEngine(cap=cap), turns_block=False))
        rig = story.rig
        await play(story, moves)
        assert rig.engine.peak <= cap
        for session in SESSIONS:
            rig.assert_exact(session, fresh=False)
            await rig.check_laws(session)
            fresh = len(rig.view(session).known) - len(rig.read_of(session)) < rig.engine.grid
            assert fresh or rig.reader.roster.notes(session).blocked
        drops = sum(method == "drop" for method, _ in rig.engine.calls)
        erased = sum(what == "erase" for what, *_ in moves)
        # A message may push out every other session once; nothing else pushes anybody out.
        assert drops <= erased + len(SESSIONS) * (len(moves) + 3 * len(SESSIONS))
        await rig.stop()

    run_virtual(main())
