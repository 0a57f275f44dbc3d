"""What the reader does to one session at a time, and how it gets into the journal.

Laws: only what is committed in the journal is read, and only on the grid. What was done is
journaled in the order it was done; what the journal does not take stays done. A session that fails
is dropped and named in the status; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from shadow_reader.clock import Clock
from shadow_reader.errors import OutOfRoomError, ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow import jobs
from shadow_reader.shadow.costs import ChunkCosts
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.logbook import Logbook
from shadow_reader.shadow.mover import Mover
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.residency import Residency
from shadow_reader.shadow.roster import Roster, checkpoint_lines
from shadow_reader.shadow.rounds import Ended
from shadow_reader.shadow.sessions import Sessions

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Steps:
    """Aligns, reads chunks, takes checkpoints; the reader holds the lease meanwhile.

    Attributes:
        costs: of the chunks that were read. mover: brings states back; None without a disk.
    """

    sessions: Sessions
    engine: Engine
    device: JobThread
    clock: Clock
    roster: Roster
    line: QuestionLine
    residency: Residency
    costs: ChunkCosts = field(default_factory=ChunkCosts)
    mover: Mover | None = None

    async def align(self, view: SessionView, book: Logbook) -> None:
        """A prompt may have replaced what was read: go back, if need be."""
        seen = self.sessions.messages
        if self.engine.state_stats(view.session) is not None:
            try:
                aligned = await self.device.run(self.engine.align, view.session, view.known)
            except RuntimeError as error:
                await self.residency.fail(view.session, error, book, seen)
            else:
                book.rewind(view, aligned)
        self.roster.notes(view.session).aligned_turns = view.turns

    async def step(self, session: str, book: Logbook, *, rationed: bool = False) -> bool:
        """A rewind, a checkpoint or a chunk, if one is due; whether one was."""
        view = self.roster.known(session)
        if view is None or self.restores(view):
            return False
        lines = checkpoint_lines(view, self.engine.identity.grid)
        job = partial(jobs.stride, self.engine, session, self._as_far(view), lines)
        began, seen = self.clock.monotonic(), self.sessions.messages
        try:
            step = await self.residency.run(session, job, book)
        except OutOfRoomError as error:
            self.residency.set_aside(session, error.message, error, seen)
            return False
        except RuntimeError as error:
            await self.residency.fail(session, error, book, seen)
            return False
        if step is None:
            return False
        book.rewind(view, step.aligned)
        if step.read:
            seconds = self.clock.monotonic() - began
            window: t.WindowName = "question" if self.line.waits_for(session) else "idle"
            window = "ration" if rationed else window
            self.costs.observe(step.aligned.committed, seconds)
            self.sessions.tally.chunk(window, step.stop - step.aligned.committed, seconds)
            ms = round(1000 * seconds, 3)
            book.read(view, t.Read(step.aligned.committed, step.stop, window, ms))
        if step.digest is not None:
            engine = self.engine.identity.engine
            book.add(session, t.Checkpoint(step.stop, step.digest, engine), view)
        return step.moved

    def _as_far(self, view: SessionView) -> Ids:
        """What may be read now: up to the next line at which a question is to be answered, so that
        no state that others left along these ids carries it past."""
        line, grid = self.roster.committed(view.session), self.engine.identity.grid
        due = self.line.next_due(view.session, line, grid)
        return view.known if due is None else view.known.take(due)

    def restores(self, view: SessionView) -> bool:
        """Whether a snapshot is used instead of reading from zero; the mover wakes us then."""
        if self.mover is None or not self.roster.wants_snapshot(view):
            return False
        self.mover.restore(view.session)
        return True

    async def journal(self, book: Logbook) -> None:
        """Journal what was done; the lease is let go of by now."""
        for deed in book.deeds:
            if isinstance(deed.event, t.Checkpoint):
                self._compare(deed.session, deed.event)
            with _not_journaled():
                await self.sessions.record(
                    deed.session, deed.event, read=deed.read, opened_at=deed.opened_at
                )

    def _compare(self, session: str, new: t.Checkpoint) -> None:
        """A digest that was journaled before, of the same ids and engine, must be the same."""
        view = self.roster.known(session)
        for earlier in view.checkpoints if view else ():
            same = (earlier.position, earlier.engine) == (new.position, new.engine)
            if same and earlier.digest != new.digest:
                self.roster.notes(session).mismatches += 1
                self.sessions.tally.mismatches += 1
                log.error(
                    "session %s at %d: the state digest is %s, but %s was journaled",
                    *(session, new.position, new.digest, earlier.digest),
                )

    async def journal_turns(self, turns: Iterable[Ended]) -> None:
        """Journal what was used of the turns that are over."""
        for ended in turns:
            account = ended.account
            if account.slices:
                event = t.RationUsed(
                    round(1000 * account.used_s, 3),
                    round(1000 * ended.decoded_s, 3),
                    account.slices,
                )
                with _not_journaled():
                    await self.sessions.record(ended.line, event, turn=account.turn)


@contextmanager
def _not_journaled() -> Iterator[None]:
    """What was done stays done when the journal does not take it."""
    try:
        yield
    except ShadowError as error:
        log.warning("the journal did not take what the reader did: %s", error)
