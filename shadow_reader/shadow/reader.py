"""The reader loop: one task that asks the plan what to do, does it, and journals what it did.

Laws:

1. It reads only what is committed in the journal, and only on the grid.
2. Before every chunk it looks whether somebody wants the device; a request waits one chunk at most.
3. What it did is journaled in the order it did it.
4. A session that fails is dropped and named in the status; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from shadow_reader.clock import Clock
from shadow_reader.errors import JournalError, NotFoundError, ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.log import Journal
from shadow_reader.events.view import SessionView
from shadow_reader.shadow import jobs
from shadow_reader.shadow.device import DeviceThread
from shadow_reader.shadow.engine import Aligned, Engine, OutOfRoomError
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.plan import AnswerNext, ReadNext, Rest, Situation, plan
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import OpenQuestion, make_reply
from shadow_reader.shadow.roster import Roster, checkpoint_lines
from shadow_reader.shadow.sessions import Sessions

RECENT_SESSIONS: Final = 32
"""Sessions taken up again after a start, newest first."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class Reader:
    """Drives one engine over all live sessions.

    Args:
        turns_block: a running turn counts as foreground.
        burst_s: longest time the lease is kept. turn_timeout_s: silence that ends a turn.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        engine: Engine,
        device: DeviceThread,
        lease: Lease,
        line: QuestionLine,
        clock: Clock,
        turns_block: bool,
        burst_s: float,
        turn_timeout_s: float,
    ) -> None:
        self.roster = Roster(sessions, engine, clock)
        self._sessions = sessions
        self._engine = engine
        self._device = device
        self._lease = lease
        self._line = line
        self._clock = clock
        self._turns_block = turns_block
        self._burst_s = burst_s
        self._turn_timeout_s = turn_timeout_s
        self._name = engine.identity.engine
        self._grid = engine.identity.grid
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._closing = False
        lease.on_free(self.wake)

    # -- from outside -------------------------------------------------------------------------

    def wake(self, _session: str = "") -> None:
        """Something changed: look again."""
        self._wake.set()

    def stop(self) -> None:
        """End the loop after the chunk in flight."""
        self._closing = True
        self._wake.set()

    async def forget(self, session: str) -> None:
        """Drop the session's state, once what runs on it is done."""
        self.roster.forget(session)
        await self._device.run(self._engine.drop, session)

    async def wait_fresh(self, session: str) -> None:
        """Wait until the session is fresh.

        Raises:
            NotFoundError: there is no such session (any more).
        """
        while True:
            live = await self._sessions.load(session)
            if live.tentative is None:
                raise NotFoundError(f"no session {session!r}", field="session", found=session)
            if not live.inflight and self.roster.fresh(live):
                return
            self.wake()
            await self._moved.wait()

    async def take_up_recent(self, journal: Journal) -> None:
        """After a start: bring the sessions last heard of back into view."""
        rows = await journal.recent_sessions(limit=RECENT_SESSIONS)
        for row in reversed(rows):
            await self._sessions.load(row.session)
            self.wake()

    # -- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until ``stop``."""
        while not self._closing:
            self._wake.clear()
            if self._lease.free and any(self.roster.to_align()):
                await self._with_lease(self._align_new_prompts)
            action = plan(self._situation())
            match action:
                case AnswerNext():
                    await self._with_lease(partial(self._answer, action.question))
                case ReadNext():
                    await self._with_lease(partial(self._burst, action.session))
                case Rest():
                    await self._rest()
            self._moved.set()
            self._moved.clear()

    def _situation(self) -> Situation:
        return Situation(
            now_s=self._clock.monotonic(),
            grid=self._grid,
            lease_free=self._lease.free,
            turns_block=self._turns_block,
            candidates=self.roster.candidates(),
            waiting=self._line.waiting(),
        )

    async def _with_lease(self, work: Callable[[], Awaitable[None]]) -> None:
        grant = self._lease.try_acquire(Rank.READER, "reader")
        if grant is None:
            return
        try:
            await work()
        except JournalError as error:
            log.warning("the journal did not take what the reader did: %s", error)
        finally:
            self._lease.release(grant)

    async def _rest(self) -> None:
        self.roster.prune()
        soonest = await self._sessions.end_stale_turns(self._turn_timeout_s)
        if self._closing:
            return
        self._moved.set()
        self._moved.clear()
        try:
            async with asyncio.timeout(soonest):
                await self._wake.wait()
        except TimeoutError:
            return

    def _foreground(self) -> bool:
        """Somebody else should have the device now."""
        if self._lease.wanted(Rank.READER) or self._closing:
            return True
        return self._turns_block and any(
            live.tentative is not None and live.tentative.running for live in self._sessions.live()
        )

    # -- reading ------------------------------------------------------------------------------

    async def _align_new_prompts(self) -> None:
        """A prompt may have replaced what was read: find out before planning on it."""
        for live, view in tuple(self.roster.to_align()):
            session = live.session
            self.roster.notes(session).aligned_turns = view.turns
            if self._engine.state_stats(session) is None:
                continue
            try:
                aligned = await self._device.run(self._engine.align, session, view.known)
            except RuntimeError as error:
                log.exception("session %s failed while going back", session)
                await self._drop(session, "failed", f"failed: {error}")
            else:
                await self._record_rewind(session, aligned)

    async def _burst(self, session: str) -> None:
        """Read chunks of one session until it is fresh, the time is up, or somebody waits."""
        began = self._clock.monotonic()
        self.roster.notes(session).unserved_s = None
        while True:
            live = self._sessions.peek(session)
            if live is None or live.durable is None:
                return
            over = await self._span(session, live.durable, began)
            if over:
                return

    async def _span(self, session: str, view: SessionView, began: float) -> bool:
        """Read until something must be journaled between two chunks; whether the burst is over."""
        span_began = self._clock.monotonic()
        start: int | None = None
        stop = 0
        over = True
        last: jobs.Stride | None = None
        while True:
            last = await self._stride(session, view)
            if last is None or not last.read:
                break
            start = last.aligned.committed if start is None else start
            stop = last.stop
            live = self._sessions.peek(session)
            if self._foreground() or self._line.urgent() or live is None or live.durable is None:
                break
            if self._clock.monotonic() - began >= self._burst_s:
                break
            if last.digest is not None:
                over = False
                break
            view = live.durable
        if start is not None:
            ms = round(1000 * (self._clock.monotonic() - span_began), 3)
            window: t.WindowName = "question" if self._line.waits_for(session) else "idle"
            await self._sessions.record(session, t.Read(start, stop, window, ms))
        if last is not None and last.aligned.cut is not None:
            await self._record_rewind(session, last.aligned)
            over = False
        if last is not None and last.digest is not None:
            await self._record_checkpoint(session, last, view.known)
        return over

    async def _stride(self, session: str, view: SessionView) -> jobs.Stride | None:
        """One chunk, making room for it if it must; None: the session cannot be read now."""
        lines = checkpoint_lines(view, self._grid)
        try:
            return await self._in_room(
                session, partial(jobs.stride, self._engine, session, view.known, lines)
            )
        except OutOfRoomError as error:
            self.roster.block(session, error.message)
        except RuntimeError as error:
            log.exception("session %s failed while reading", session)
            await self._drop(session, "failed", f"failed: {error}")
        return None

    async def _in_room(self, session: str, job: Callable[[], T]) -> T:
        """Run a device job; when it finds no room, drop idle states until it does.

        Raises:
            OutOfRoomError: nobody is left who could make room for ``session``.
        """
        while True:
            try:
                return await self._device.run(job)
            except OutOfRoomError:
                victim = self.roster.victim(session)
                if victim is None:
                    raise
                await self._drop(victim, "cap", "dropped to stay under the memory cap")

    async def _drop(self, session: str, reason: t.DropReason, why: str) -> None:
        committed = self.roster.committed(session)
        await self._device.run(self._engine.drop, session)
        self.roster.block(session, why)
        await self._sessions.record(session, t.Dropped(reason, committed))

    # -- answering ----------------------------------------------------------------------------

    async def _answer(self, question: str) -> None:
        asked = self._line.get(question)
        if asked is None:
            return
        live = self._sessions.peek(asked.waiting.session)
        try:
            if live is None or live.durable is None:
                raise NotFoundError("the session was erased", field="session")
            await self._fork(asked, live.durable)
        except RuntimeError as error:
            log.exception("question %s failed", question)
            self._line.fail(question, ShadowError(f"the forward failed: {error}"))
        except ShadowError as error:
            self._line.fail(question, error)

    async def _fork(self, asked: OpenQuestion, view: SessionView) -> None:
        session = asked.waiting.session
        job = partial(
            jobs.fork,
            self._engine,
            self._clock,
            session,
            view.known,
            question=asked.event.ids,
            letters=asked.letters,
            wait=asked.waiting.wait,
        )
        forked = await self._in_room(session, job)
        await self._record_rewind(session, forked.aligned)
        if forked.probabilities is None:
            return
        live = self._sessions.peek(session)
        newest = live.durable if live and live.durable else view
        event, reply = make_reply(
            asked,
            forked.probabilities,
            position=forked.position,
            known=len(newest.known),
            lag_ms=1000 * (self._clock.monotonic() - asked.waiting.asked_s),
            forward_ms=forked.forward_ms,
        )
        receipt = await self._sessions.record(session, event)
        if receipt is not None:
            await receipt
            self._line.answer(asked.event.question, reply)

    # -- journaling ---------------------------------------------------------------------------

    async def _record_rewind(self, session: str, aligned: Aligned) -> None:
        if aligned.cut is not None:
            event = t.Rewind(aligned.cut, aligned.committed, aligned.reread)
            await self._sessions.record(session, event)

    async def _record_checkpoint(self, session: str, stride: jobs.Stride, read: Ids) -> None:
        assert stride.digest is not None
        live = self._sessions.peek(session)
        for earlier in live.durable.checkpoints if live and live.durable else ():
            same = (earlier.position, earlier.engine) == (stride.stop, self._name)
            if same and earlier.digest != stride.digest:
                self.roster.notes(session).mismatches += 1
                log.error(
                    "session %s at %d: the state digest is %s, but %s was journaled",
                    session,
                    stride.stop,
                    stride.digest,
                    earlier.digest,
                )
        event = t.Checkpoint(stride.stop, stride.digest, self._name)
        await self._sessions.record(session, event, read=read)
