"""A reader over fakes under virtual time, and the laws that its journal must keep."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Self, TypeAlias

from shadow_reader.bounds import Bound
from shadow_reader.errors import NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.fold import fold
from shadow_reader.events.ids import Ids
from shadow_reader.events.types import Entry
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.engine import Aligned
from shadow_reader.shadow.holds import Holds
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import Reply
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Accepted, Sessions
from shadow_reader.shadow.windows import Windows
from tests.fake_device import InlineDevice
from tests.fake_journal import FlakyJournal, all_entries
from tests.fakes import CONTEXT_IDS, GRID, VOCABULARY, FakeEngine, LoopClock, fake_vocabulary

CHUNK_S = 0.1
BURST_S = 2.0
BURST_CHUNKS = round(BURST_S / CHUNK_S)
RECENT_SESSIONS = 32
LIMITS = Limits(vocabulary=VOCABULARY, context_ids=CONTEXT_IDS, question_ids=64, open_questions=8)
QUESTION = [5, 6, 7]


Deed: TypeAlias = tuple[str | int, ...]
"""Something that the engine did to a session: what, and where."""


def ids(count: int, seed: int = 0) -> list[int]:
    """Ids that differ between seeds at every place."""
    return [(7 * place + seed) % 900 for place in range(count)]


def units(count: int) -> int:
    """What a state of so many chunks takes, with its prompt's checkpoint."""
    return count + 2


class CountingReader(Reader):
    """Counts its rounds, so that a loop that spins is seen."""

    looks = 0

    async def _next(self) -> None:
        self.looks += 1
        await super()._next()


@dataclass
class Rig:
    """Everything between a message and the engine, without threads or real time."""

    journal: FlakyJournal = field(default_factory=FlakyJournal)
    engine: FakeEngine = field(default_factory=FakeEngine)
    turns_block: bool = True
    capacity: int = 64
    chunk_s: float = CHUNK_S
    share: float = 0.0
    streamed: bool = True
    idle_poll_s: float | None = None
    box_lock: Path | None = None
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.deeds = deeds_of(self.engine)
        self.since = self.journal.stats().last_seq
        self.clock = LoopClock()
        self.lease = Lease(self.clock)
        self.device = InlineDevice(self.chunk_s)
        self.sessions = Sessions(self.journal, self.clock, LIMITS, self.capacity)
        self.line = QuestionLine(self.sessions, self.clock, fake_vocabulary(), 30.0)
        self.windows = Windows(
            holds=Holds(self.clock, Bound("holds", 8), 3600.0),
            box=BoxLock(self.box_lock),
            turns_block=self.turns_block,
            burst_s=BURST_S,
            share=self.share,
            streamed=self.streamed,
            idle_poll_s=self.idle_poll_s,
        )
        self.reader = CountingReader(
            sessions=self.sessions,
            engine=self.engine,
            device=self.device,
            lease=self.lease,
            line=self.line,
            clock=self.clock,
            windows=self.windows,
            recent_sessions=RECENT_SESSIONS,
        )
        self.sessions.on_change = self.reader.wake
        self.line.wake = self.reader.wake
        self.windows.holds.on_change = self.reader.wake

    def start(self) -> Self:
        self.task = asyncio.create_task(self.reader.run(self.journal))
        return self

    async def stop(self) -> None:
        """As the runtime does it."""
        assert self.task is not None
        self.line.close()
        self.reader.stop()
        await self.task
        await self.line.settle()

    # -- messages -----------------------------------------------------------------------------

    async def prompt(self, session: str, ids: Sequence[int], turn: str) -> Accepted:
        return await (await self.sessions.prompt(session, list(ids), turn=turn))

    async def output(self, session: str, turn: str, offset: int, ids: Sequence[int]) -> Accepted:
        receipt = await self.sessions.output(session, turn, offset=offset, ids=list(ids))
        return await receipt

    async def end(self, session: str, turn: str) -> Accepted:
        return await (await self.sessions.end(session, turn))

    async def whole_turn(
        self, session: str, ids: Sequence[int], turn: str, output: Sequence[int] = ()
    ) -> None:
        await self.prompt(session, ids, turn)
        if output:
            await self.output(session, turn, 0, output)
        await self.end(session, turn)

    def ask(self, session: str, **more: Any) -> asyncio.Task[Reply]:
        return asyncio.create_task(self.line.ask(session, QUESTION, ["yes", "no"], **more))

    async def erase(self, session: str) -> None:
        """As the runtime does it."""
        await self.sessions.erase(session)
        self.line.fail_session(session, NotFoundError("erased"))
        await self.reader.forget(session)

    async def clock_to(self, at_s: float) -> None:
        """Sleep until the monotonic clock shows ``at_s``."""
        await asyncio.sleep(at_s - self.clock.monotonic())

    # -- looking ------------------------------------------------------------------------------

    def view(self, session: str) -> SessionView:
        live = self.sessions.peek(session)
        assert live is not None
        assert live.durable is not None
        return live.durable

    async def events(self, session: str, *kinds: type) -> list[Any]:
        """The session's journaled events of some kinds."""
        entries = await all_entries(self.journal, session)
        return [entry.event for entry in entries if isinstance(entry.event, kinds)]

    def read_of(self, session: str) -> list[int]:
        """The ids that the state has read."""
        state = self.engine.states.get(session)
        return list(state.read) if state else []

    def assert_exact(self, session: str, *, fresh: bool = True) -> None:
        """The state is a function of the known ids, and has read every whole chunk of them."""
        known = list(self.view(session).known)
        read = self.read_of(session)
        assert read == known[: len(read)]
        assert len(read) % GRID == 0
        if fresh:
            assert len(known) - len(read) < GRID, f"{len(read)} of {len(known)} ids are read"

    async def check_laws(self, session: str, *, gaps: bool = False) -> None:
        """What the reader journaled of the session follows from what it was told.

        With ``gaps``, commits have failed, and what was done meanwhile is not in the journal. What
        is there was done by the engine all the same, in this order.
        """
        entries = await all_entries(self.journal, session)
        check_history(entries, gaps=gaps)
        done = iter(self.deeds[session])
        for entry in entries:
            if entry.seq > self.since:
                for deed in deeds_in(entry.event):
                    assert deed in done, f"{deed} was not done then"


def deeds_of(engine: FakeEngine) -> dict[str, list[Deed]]:
    """What the engine does to each session from now on; the list grows."""
    deeds: dict[str, list[Deed]] = defaultdict(list)
    align, read_chunk, checkpoint = engine.align, engine.read_chunk, engine.checkpoint
    drop = engine.drop

    @wraps(align)  # the device knows what jobs cost by their names
    def aligned(session: str, known: Ids) -> Aligned:
        found = align(session, known)
        if found.cut is not None:
            deeds[session].append(("rewind", found.cut, found.committed))
        return found

    @wraps(read_chunk)
    def read(session: str, known: Ids) -> int:
        stop = read_chunk(session, known)
        deeds[session].append(("read", stop))
        return stop

    @wraps(checkpoint)
    def marked(session: str) -> str:
        digest = checkpoint(session)
        stats = engine.state_stats(session)
        assert stats is not None
        deeds[session].append(("checkpoint", stats.committed, digest))
        return digest

    @wraps(drop)
    def dropped(session: str, **more: Any) -> int:
        stats = engine.state_stats(session)
        deeds[session].append(("drop", stats.committed if stats else 0))
        return drop(session, **more)

    vars(engine).update(align=aligned, read_chunk=read, checkpoint=marked, drop=dropped)
    return deeds


def deeds_in(event: object) -> list[Deed]:
    """The engine's deeds that an entry tells of."""
    match event:
        case t.Read():
            return [("read", stop) for stop in range(event.start + GRID, event.stop + 1, GRID)]
        case t.Rewind():
            return [("rewind", event.cut, event.to)]
        case t.Checkpoint():
            return [("checkpoint", event.position, event.digest)]
        case t.Dropped():
            return [("drop", event.committed)]
        case t.Spill(kept=False):
            return [("drop", event.position)]
        case _:
            return []


def after_move(event: t.Spill | t.Restore | t.Shared, committed: int, *, gaps: bool) -> int:
    """Where a state stands after it went to the disk, came back, or was taken over."""
    match event:
        case t.Spill():
            assert gaps or event.position == committed
            return committed if event.kept else 0
        case t.Restore():
            assert gaps or committed == 0
            assert bool(event.position) == (event.refused is None)
            return event.position
        case t.Shared():
            assert gaps or event.position > committed
            return event.position


def check_history(  # one branch a kind
    entries: Sequence[Entry], *, gaps: bool = False
) -> None:
    """Reads go on where the last left off; rewinds, checkpoints and answers fit the known ids."""
    view: SessionView | None = None
    versions: list[Ids] = []
    committed, marks, ends = 0, set[int](), dict[str, int]()
    for entry in entries:
        event = entry.event
        view = fold(view, entry)
        if view is not None and (not versions or versions[-1] != view.known):
            versions.append(view.known)
        if isinstance(event, t.SessionErased | t.SessionOpened):
            committed, marks = 0, set()
        elif isinstance(event, t.Read):
            assert gaps or event.start == committed, f"{event} stood at {committed}"
            assert event.stop > event.start
            assert event.start % GRID == event.stop % GRID == 0
            committed = event.stop
        elif isinstance(event, t.Rewind):
            assert event.to <= event.cut
            assert gaps or event.cut < committed
            assert event.reread == event.cut - event.to
            marks = {mark for mark in marks if mark <= event.cut}
            assert gaps or event.to in marks | {0}
            committed = event.to
        elif isinstance(event, t.Dropped):
            # It may have failed after its last chunk, which is then in no event.
            assert gaps or committed <= event.committed <= committed + GRID
            committed, marks = 0, set()
        elif isinstance(event, t.Spill | t.Restore | t.Shared):
            committed = after_move(event, committed, gaps=gaps)
            # Checkpoints came with it, at lines that only those who moved it know.
            marks = set(range(0, committed + 1, GRID))
        elif isinstance(event, t.Checkpoint):
            assert view is not None
            assert gaps or event.position == committed
            assert event.digest == FakeEngine.hash_of(view.known.take(event.position))
            marks.add(event.position)
        elif isinstance(event, t.Question):
            ends[event.question] = 0
        elif isinstance(event, t.Answer | t.QuestionEnded):
            ends[event.question] += 1
            if isinstance(event, t.Answer):
                check_answer(event, versions)
    assert set(ends.values()) <= {1}, ends


def check_answer(answer: t.Answer, versions: Sequence[Ids]) -> None:
    """It is what a fresh prefill of some version of the known ids would have answered."""
    letters = [ord("A"), ord("B")]
    if len(answer.probabilities) != len(letters):
        return  # a probe's: with which weights, its own test knows
    expected = [
        FakeEngine.answer_to([*known.take(answer.position), *QUESTION], letters)
        for known in versions
        if len(known) >= answer.position
    ]
    assert answer.probabilities in expected


async def quiet(seconds: float = 600.0) -> None:
    """Let everything that is to happen happen."""
    await asyncio.sleep(seconds)


class refuse:  # noqa: N801  # used like a function
    """Let the engine's method raise RuntimeError, the ``count`` first times."""

    def __init__(self, method: str, count: int = 1, session: str = "s") -> None:
        self.method, self.left, self.session = method, count, session

    def __call__(self, method: str, session: str) -> None:
        if method == self.method and session == self.session and self.left:
            self.left -= 1
            raise RuntimeError(f"the device said no to {method}")
