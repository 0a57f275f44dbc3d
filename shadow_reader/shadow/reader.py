"""The reader loop: one task that asks the plan what to do, does it, and journals what it did.

Laws:

1. It reads only what is committed in the journal, and only on the grid.
2. Before every chunk it looks whether somebody wants the device; a request waits one chunk at most.
   In a turn it reads in rounds alone, within the ration.
3. What it did is journaled in the order it did it, and only after the lease is let go.
4. A session that fails is dropped and named in the status; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from shadow_reader.clock import Clock
from shadow_reader.errors import (
    BusyError,
    JournalError,
    NotFoundError,
    ShutDownError,
)
from shadow_reader.events.journal import Journal
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.answering import Answering, Batch
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.jobs import Forked
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.logbook import Logbook
from shadow_reader.shadow.mover import Mover
from shadow_reader.shadow.plan import (
    Action,
    AnswerNext,
    Candidate,
    ReadNext,
    Rest,
    Situation,
    answerable,
    plan,
)
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import OpenQuestion
from shadow_reader.shadow.residency import Residency
from shadow_reader.shadow.roster import Roster, check_read
from shadow_reader.shadow.rounds import Round, Rounds
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.steps import Steps
from shadow_reader.shadow.windows import BOX_POLL_S, Windows

log = logging.getLogger(__name__)


class Reader:
    """Drives one engine over all live sessions.

    Args:
        windows: when it may read.
        recent_sessions: taken up again after a start, newest first.

    Attributes:
        died: it stopped of an error of ours, and what it left may be wrong.
        guest: does something in each round that an engine calls, after the reader.
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
        windows: Windows,
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
        self._windows = windows
        self._answering = Answering(sessions, engine, clock, self.roster, line, self._residency)
        self._steps = Steps(sessions, engine, device, clock, self.roster, line, self._residency)
        self.rounds = Rounds(self.roster, windows, clock, self._steps.costs)
        self._parked = False
        self._looks_s = clock.monotonic()
        self._recent_sessions = recent_sessions
        self._grid = engine.identity.grid
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._mover: Mover | None = None
        self._starved_last = False
        self._closing = False
        self.died = False
        self.guest: Callable[[], Awaitable[None]] | None = None
        self._on_free = self.wake
        lease.on_free(self._on_free)

    # -- from outside -------------------------------------------------------------------------

    def move_with(self, mover: Mover) -> None:
        """From now on states are spilled and restored by ``mover``."""
        self._mover = self._residency.mover = self._steps.mover = mover

    async def round(self) -> Round:
        """The engine has paused between two of its rounds: read as much as the ration allows.

        Over at once where nothing may be read, or while the reader is at work on something else.
        """
        opened = self.rounds.call()
        if self._parked and self.rounds.worth_a_look():
            self._wake.set()
            await opened.closed.wait()
        else:
            self.rounds.dismiss(opened)
        if self.guest is not None:
            await self.guest()
        return opened

    def cost_s(self, position: int) -> float | None:
        """Seconds that a chunk at ``position`` will take, about; None: not known yet."""
        return self._steps.costs.estimate_s(position)

    def wake(self, session: str = "") -> None:
        """Something changed, in this session if one is named: look again."""
        if session:
            self.rounds.piece_came()
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
            NotFoundError: there is no such session (any more). ModelError: its profile has the
            shadow off. ShutDownError: the reader stopped.
        """
        while not self._closing:
            live = await self._sessions.load(session)
            if live.tentative is None:
                raise NotFoundError(f"no session {session!r}", field="session", found=session)
            if not live.inflight:
                if self.roster.fresh(live):
                    return
                check_read(session, live.tentative, self._sessions.limits)
            # No await between the look and the wait; whatever makes it fresh tells us.
            await self._moved.wait()
        raise ShutDownError("the reader has stopped")

    async def wait_read(self, session: str, position: int) -> None:
        """Wait until the line's state has read every whole chunk of its first ``position`` ids.

        Raises:
            NotFoundError: the line is gone. ShutDownError: the reader stopped.
        """
        while not self._closing:
            view = self.roster.known(session)
            if view is None:
                raise NotFoundError(f"no session {session!r}", field="session", found=session)
            if self.roster.has_read(view, position):
                return
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
            self.rounds.close()
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
        await self._steps.journal_turns(self.rounds.follow())
        if self._lease.free and any(self.roster.to_align()):
            await self._align_new_prompts()
        self._line.end_superseded(self.roster.known)
        action = Rest("foreground") if self._must_rest() else plan(self._situation())
        self.roster.foreground = self._foreground(action)
        match action:
            case AnswerNext():
                await self._answer(action.question)
            case ReadNext() if action.rationed:
                await self._slice(action.session)
            case ReadNext():
                await self._idle_burst(action)
            case Rest():
                self.roster.prune()
                await self._rest(None)

    async def _rest(self, until_s: float | None) -> None:
        """Nothing can be done before something changes, or before a time."""
        self.rounds.close()
        self._tell()
        self._parked = True
        try:
            if until_s is None:
                await self._wake.wait()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until_s - self._clock.monotonic())):
                    await self._wake.wait()
        finally:
            self._parked = False

    def _foreground(self, action: Action) -> str:
        """What keeps the reader from reading at all."""
        if not isinstance(action, Rest) or action.reason == "fresh":
            return ""
        if action.reason == "hold":
            owners = {hold.owner for hold in self._windows.holds.shown()}
            return f"waits while a hold is on: {', '.join(sorted(owners))}"
        if not self._lease.free:
            return "waits: a request holds the lease, or waits for it"
        return f"waits while turns run (foreground); one is session {self.roster.the_running()!r}'s"

    def _must_rest(self) -> bool:
        """What the plan would say at once while turns run and nobody asks: most of the time."""
        waits = self._line.anybody_waits() or self.rounds.worth_a_look()
        return self._turns_are_first() and not waits

    def _turns_are_first(self) -> bool:
        """Whether a turn runs on the device that we read on."""
        return self._windows.turns_block and self.roster.any_runs()

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
            turns_block=self._windows.turns_block,
            starved_last=self._starved_last,
            candidates=self._candidates([question.session for question in waiting]),
            waiting=waiting,
            held=self._windows.holds.any,
            round_s=self.rounds.allowance_s(),
            lendable=self._lease.lendable,
            slice_s=self._windows.slice_s,
        )

    def _candidates(self, asked: Sequence[str]) -> list[Candidate]:
        if not self.rounds.is_open:
            return self.roster.candidates(asked)
        return self.roster.candidates(asked, self._steps.costs.estimate_s)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the lease; it was to be had when last looked at, and nobody else ran since."""
        grant = self._lease.try_acquire(Rank.READER, "reader")
        grant = grant or self._lease.lend(Rank.READER, "reader")
        assert grant is not None, "the lease was free, or held by requests that have paused"
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
            or self._turns_are_first()
            or self._windows.holds.any
            or self._clock.monotonic() - began >= self._windows.burst_s
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
                    await self._steps.align(live.durable, book)
        await self._steps.journal(book)

    async def _idle_burst(self, action: ReadNext) -> None:
        """Read in an idle window."""
        if not await self._take_window():
            return
        self._starved_last = action.starved
        try:
            await self._burst(action.session)
        finally:
            self._window_is_over()

    async def _take_window(self) -> bool:
        """Whether it is time to look for an idle window, and nobody had the box, which is ours
        then; otherwise that was waited for."""
        now_s = self._clock.monotonic()
        self._looks_s = self._windows.next_look_s(self._looks_s, now_s)
        if now_s < self._looks_s:
            await self._rest(self._looks_s)
            return False
        if not self._windows.box.try_take():
            self.roster.foreground = self._windows.box.problem or "waits for the box lock"
            await self._rest(now_s + BOX_POLL_S)
            return False
        return True

    def _window_is_over(self) -> None:
        """The next one is looked for a poll from now."""
        if self._windows.idle_poll_s is not None:
            self._looks_s = self._clock.monotonic() + self._windows.idle_poll_s

    async def _burst(self, session: str) -> None:
        """Read chunks of one session until it is fresh, the time is up, or somebody waits."""
        self.rounds.close()
        began = self._clock.monotonic()
        book = Logbook()
        try:
            with self._holding():
                while await self._steps.step(session, book) and not self._burst_is_over(began):
                    pass
        finally:
            self._windows.box.release()
        self.roster.notes(session).unserved_s = None
        await self._steps.journal(book)

    async def _slice(self, session: str) -> None:
        """Read chunks of one session as far as the ration and one slice go."""
        book = Logbook()
        start = self.roster.committed(session)
        with self._holding():
            await self._device.run(self._engine.synchronise)
            began = self._clock.monotonic()
            limit_s = min(self.rounds.allowance_s() or 0.0, self._windows.slice_s)
            while await self._steps.step(session, book, rationed=True):
                stands = self.roster.committed(session)
                next_s = self._steps.costs.estimate_s(stands)
                spent_s = self._clock.monotonic() - began
                if self._wanted() or next_s is None or spent_s + next_s > limit_s:
                    break
                if self._line.is_due(session, stands, self._grid):
                    break
            used_s = self._clock.monotonic() - began
        self.rounds.used(used_s, max(0, self.roster.committed(session) - start))
        self.rounds.close()
        self.roster.notes(session).unserved_s = None
        await self._steps.journal(book)

    # -- answering ----------------------------------------------------------------------------

    async def _answer(self, question: str) -> None:
        """Answer a question, and those that were asked with it, as long as nobody else waits."""
        batch = self._line.batch(question)
        waiting = batch[0].waiting
        view = self.roster.known(waiting.session)
        if view is None:
            self._line.fail(question, NotFoundError("the session is gone", field="session"))
            return
        if self._steps.restores(view):
            return
        if not waiting.patient or not self._lease.free or self._turns_are_first():
            # Somebody waits for it, or the plan has put it into a round.
            await self._hand_over(batch, view, *await self._fork(batch, view))
        elif await self._take_window():
            try:
                forked = await self._fork(batch, view)
            finally:
                self._windows.box.release()
                self._window_is_over()
            await self._hand_over(batch, view, *forked)

    async def _fork(
        self, batch: Sequence[OpenQuestion], view: SessionView
    ) -> tuple[Logbook, list[Forked]]:
        """What was done, and the first answers of the batch."""
        book, answers, together = Logbook(), list[Forked](), Batch(batch)
        with self._holding():
            began = self._clock.monotonic()
            for asked in batch:
                if not self._answering.wanted(asked, view):
                    break
                forked = await self._answering.fork(asked, view, book, together)
                if forked is None or forked.probabilities is None:
                    break
                answers.append(forked)
                if self._wanted():
                    break
            used_s = self._clock.monotonic() - began
        if batch[0].waiting.patient:
            self.rounds.used(used_s, 0)
        else:
            self.rounds.answered(used_s)
        self.rounds.close()
        return book, answers

    async def _hand_over(
        self,
        batch: Sequence[OpenQuestion],
        view: SessionView,
        book: Logbook,
        answers: Sequence[Forked],
    ) -> None:
        """Journal what was done and then the answers, which may all go into one commit."""
        await self._steps.journal(book)
        pairs = zip(batch, answers, strict=False)
        await asyncio.gather(
            *(self._answering.hand_over(asked, view, forked) for asked, forked in pairs)
        )
