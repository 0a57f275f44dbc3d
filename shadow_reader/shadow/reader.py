"""The reader loop: one task that asks the plan what to do, does it, and journals what it did.

Laws:

1. It reads only what is committed in the journal, and only on the grid.
2. Before every chunk it looks whether somebody wants the device; a request waits one chunk at most.
3. What it did is journaled in the order it did it, and only after the lease is let go.
4. A session that fails is dropped and named in the status; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shadow_reader.clock import Clock
from shadow_reader.errors import (
    BusyError,
    JournalError,
    NotFoundError,
    OutOfRoomError,
    ShadowError,
    ShutDownError,
)
from shadow_reader.events import types as t
from shadow_reader.events.journal import Journal
from shadow_reader.events.view import SessionView
from shadow_reader.shadow import jobs
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.logbook import Logbook
from shadow_reader.shadow.mover import Mover
from shadow_reader.shadow.plan import (
    Action,
    AnswerNext,
    ReadNext,
    Rest,
    Situation,
    answerable,
    plan,
)
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import OpenQuestion, make_reply
from shadow_reader.shadow.residency import Residency
from shadow_reader.shadow.roster import Roster, checkpoint_lines
from shadow_reader.shadow.sessions import Sessions

log = logging.getLogger(__name__)


class Reader:
    """Drives one engine over all live sessions.

    Args:
        turns_block: a running turn counts as foreground.
        burst_s: the lease is let go at the first chunk's end after so long.
        recent_sessions: taken up again after a start, newest first.

    Attributes:
        died: it stopped of an error of ours, and what it left may be wrong.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        engine: Engine,
        device: JobThread,
        lease: Lease,
        line: QuestionLine,
        clock: Clock,
        turns_block: bool,
        burst_s: float,
        recent_sessions: int,
    ) -> None:
        self.roster = Roster(sessions, engine, clock)
        self._residency = Residency(engine, device, self.roster, line, self._wanted)
        self._sessions = sessions
        self._engine = engine
        self._device = device
        self._lease = lease
        self._line = line
        self._clock = clock
        self._turns_block = turns_block
        self._burst_s = burst_s
        self._recent_sessions = recent_sessions
        self._name = engine.identity.engine
        self._grid = engine.identity.grid
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._mover: Mover | None = None
        self._starved_last = False
        self._closing = False
        self.died = False
        self._on_free = self.wake
        lease.on_free(self._on_free)

    # -- from outside -------------------------------------------------------------------------

    def move_with(self, mover: Mover) -> None:
        """From now on states are spilled and restored by ``mover``."""
        self._mover = self._residency.mover = mover

    def wake(self, _session: str = "") -> None:
        """Something changed: look again."""
        self._wake.set()
        if self._mover is not None:
            self._mover.tell()

    def stop(self) -> None:
        """End the loop after the chunk in flight."""
        self._closing = True
        self._wake.set()

    async def forget(self, session: str) -> None:
        """Drop the session's state and its snapshot, once what runs on them is done."""
        try:
            if self._mover is not None:
                await self._mover.forget(session)
        finally:
            await self._residency.forget(session)

    async def wait_fresh(self, session: str) -> None:
        """Wait until the line of that name is fresh.

        Raises:
            NotFoundError: there is no such session (any more). ShutDownError: the reader stopped.
        """
        while not self._closing:
            live = await self._sessions.load(session)
            if live.tentative is None:
                raise NotFoundError(f"no session {session!r}", field="session", found=session)
            if not live.inflight and self.roster.fresh(live):
                return
            # No await between the look and the wait; whatever makes it fresh tells us.
            await self._moved.wait()
        raise ShutDownError("the reader has stopped")

    # -- the loop -----------------------------------------------------------------------------

    async def run(self, journal: Journal) -> None:
        """Bring the sessions last heard of back into view, then read until ``stop``."""
        try:
            await self._take_up_recent(journal)
            while not self._closing:
                self._wake.clear()
                await self._next()
                self._tell()
        finally:
            self._closing = True
            self._moved.set()
            self._lease.forget(self._on_free)

    async def _take_up_recent(self, journal: Journal) -> None:
        limit = min(self._recent_sessions, self._sessions.capacity)
        for row in reversed(await journal.recent_sessions(limit=limit)):
            if self._closing:
                return
            try:
                await self._sessions.load(row.session)
            except (JournalError, BusyError) as error:
                log.warning("session %s is not taken up again: %s", row.session, error)

    async def _next(self) -> None:
        """One thing: what the plan says."""
        if self._lease.free and any(self.roster.to_align()):
            await self._align_new_prompts()
        action = Rest("foreground") if self._must_rest() else plan(self._situation())
        self.roster.foreground = self._foreground(action)
        match action:
            case AnswerNext():
                await self._answer(action.question)
            case ReadNext():
                self._starved_last = action.starved
                await self._burst(action.session)
            case Rest():
                self.roster.prune()
                self._tell()
                await self._wake.wait()

    def _foreground(self, action: Action) -> str:
        if action != Rest("foreground"):
            return ""
        if not self._lease.free:
            return "waits: a request holds the lease, or waits for it"
        return f"waits while turns run (foreground); one is session {self.roster.the_running()!r}'s"

    def _must_rest(self) -> bool:
        """What the plan would say at once while turns run and nobody asks: most of the time."""
        turns = self._turns_block and self.roster.any_runs()
        return turns and not self._line.waiting()

    def _tell(self) -> None:
        """Those who wait for a session to be fresh look again."""
        self._moved.set()
        self._moved.clear()

    def _situation(self) -> Situation:
        waiting = self._line.waiting()
        return Situation(
            now_s=self._clock.monotonic(),
            grid=self._grid,
            lease_free=self._lease.free,
            turns_block=self._turns_block,
            starved_last=self._starved_last,
            candidates=self.roster.candidates([question.session for question in waiting]),
            waiting=waiting,
        )

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the lease; it was free when last looked at, and nobody else ran since."""
        grant = self._lease.try_acquire(Rank.READER, "reader")
        assert grant is not None, "the lease was free"
        try:
            yield
        finally:
            self._lease.release(grant)

    def _wanted(self) -> bool:
        """Somebody waits for the device, or for us to end."""
        return self._closing or self._lease.wanted(Rank.READER)

    def _burst_is_over(self, began: float) -> bool:
        """Looked at before every chunk but the first, which the plan has just looked at."""
        return (
            self._wanted()
            or (self._turns_block and self.roster.any_runs())
            or self._clock.monotonic() - began >= self._burst_s
            or answerable(self._situation()) is not None
        )

    # -- reading ------------------------------------------------------------------------------

    async def _align_new_prompts(self) -> None:
        """A prompt may have replaced what was read: find out before planning on it."""
        book = Logbook()
        with self._holding():
            for live in tuple(self.roster.to_align()):
                if self._wanted():
                    break
                if live.durable is not None:
                    await self._align(live.durable, book)
        await self._journal(book)

    async def _align(self, view: SessionView, book: Logbook) -> None:
        seen = self._sessions.messages
        if self._engine.state_stats(view.session) is not None:
            try:
                aligned = await self._device.run(self._engine.align, view.session, view.known)
            except RuntimeError as error:
                await self._residency.fail(view.session, error, book, seen)
            else:
                book.rewind(view, aligned)
        self.roster.notes(view.session).aligned_turns = view.turns

    async def _burst(self, session: str) -> None:
        """Read chunks of one session until it is fresh, the time is up, or somebody waits."""
        began = self._clock.monotonic()
        book = Logbook()
        with self._holding():
            while await self._step(session, book) and not self._burst_is_over(began):
                pass
        self.roster.notes(session).unserved_s = None
        await self._journal(book)

    async def _step(self, session: str, book: Logbook) -> bool:
        """A rewind, a checkpoint or a chunk, if one is due; whether one was."""
        view = self.roster.known(session)
        if view is None or self._restores(view):
            return False
        lines = checkpoint_lines(view, self._grid)
        job = partial(jobs.stride, self._engine, session, view.known, lines)
        began, seen = self._clock.monotonic(), self._sessions.messages
        try:
            step = await self._residency.run(session, job, book)
        except OutOfRoomError as error:
            self._residency.set_aside(session, error.message, error, seen)
            return False
        except RuntimeError as error:
            await self._residency.fail(session, error, book, seen)
            return False
        if step is None:
            return False
        book.rewind(view, step.aligned)
        if step.read:
            seconds = self._clock.monotonic() - began
            window: t.WindowName = "question" if self._line.waits_for(session) else "idle"
            self._sessions.tally.chunk(window, step.stop - step.aligned.committed, seconds)
            ms = round(1000 * seconds, 3)
            book.read(view, t.Read(step.aligned.committed, step.stop, window, ms))
        if step.digest is not None:
            book.add(session, t.Checkpoint(step.stop, step.digest, self._name), view)
        return step.moved

    def _restores(self, view: SessionView) -> bool:
        """Whether a snapshot is used instead of reading from zero; the mover wakes us then."""
        if self._mover is None or not self.roster.wants_snapshot(view):
            return False
        self._mover.restore(view.session)
        return True

    # -- answering ----------------------------------------------------------------------------

    async def _answer(self, question: str) -> None:
        asked = self._line.get(question)
        assert asked is not None, "the plan looked, and nobody else ran since"
        view = self.roster.known(asked.waiting.session)
        if view is None:
            self._line.fail(question, NotFoundError("the session is gone", field="session"))
            return
        if self._restores(view):
            return
        book = Logbook()
        forked: jobs.Forked | None = None
        seen = self._sessions.messages
        with self._holding():
            try:
                forked = await self._fork(asked, view, book)
            except RuntimeError as error:
                await self._residency.fail(view.session, error, book, seen)
            except ShadowError as error:
                self._line.fail(question, error)
        await self._journal(book)
        if forked is not None and forked.probabilities is not None:
            await self._hand_over(asked, view, forked, forked.probabilities)

    async def _fork(
        self, asked: OpenQuestion, view: SessionView, book: Logbook
    ) -> jobs.Forked | None:
        job = partial(
            jobs.fork,
            self._engine,
            self._clock,
            view.session,
            view.known,
            question=asked.event.ids,
            closing=asked.closing,
            letters=asked.letters,
            wait=asked.waiting.wait,
        )
        forked = await self._residency.run(view.session, job, book)
        if forked is not None:
            book.rewind(view, forked.aligned)
        return forked

    async def _hand_over(
        self,
        asked: OpenQuestion,
        view: SessionView,
        forked: jobs.Forked,
        probabilities: tuple[float, ...],
    ) -> None:
        """Journal the answer; whoever asked gets it when it is committed."""
        newest = self.roster.known(view.session) or view
        event, reply = make_reply(
            asked,
            probabilities,
            position=forked.position,
            known=len(newest.known),
            lag_ms=1000 * (self._clock.monotonic() - asked.waiting.asked_s),
            forward_ms=forked.forward_ms,
        )
        try:
            receipt = await self._sessions.record(view.session, event)
            if receipt is not None:
                await receipt
                self._line.answer(event.question, reply)
        except ShadowError as error:
            self._line.fail(event.question, error)

    # -- journaling ---------------------------------------------------------------------------

    async def _journal(self, book: Logbook) -> None:
        for deed in book.deeds:
            if isinstance(deed.event, t.Checkpoint):
                self._compare(deed.session, deed.event)
            try:
                await self._sessions.record(
                    deed.session, deed.event, read=deed.read, opened_at=deed.opened_at
                )
            except ShadowError as error:
                log.warning("the journal did not take what the reader did: %s", error)

    def _compare(self, session: str, new: t.Checkpoint) -> None:
        """A digest that was journaled before, of the same ids and engine, must be the same."""
        view = self.roster.known(session)
        for earlier in view.checkpoints if view else ():
            same = (earlier.position, earlier.engine) == (new.position, new.engine)
            if same and earlier.digest != new.digest:
                self.roster.notes(session).mismatches += 1
                self._sessions.tally.mismatches += 1
                log.error(
                    "session %s at %d: the state digest is %s, but %s was journaled",
                    *(session, new.position, new.digest, earlier.digest),
                )
