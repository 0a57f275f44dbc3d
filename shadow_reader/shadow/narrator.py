"""The narrator: a summary of the big model's thought, written on a fork of the whole session.

Laws:

1. Nothing of the turn or of the session changes, whatever becomes of the summary.
2. While turns decode, all summaries together use at most ``share`` of the time since each turn's
   first token, an account of its own beside the reader's, and one slice. In prefill, under a hold,
   or beside a request that holds the lease and has not paused, nothing is written.
3. It lets go of the device after each slice, so whoever waits waits for one at most.
4. It ends with its turn, with whoever asked for it, or at its limit, and is journaled with what was
   written by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np

from shadow_reader.bounds import Bound
from shadow_reader.clock import Clock
from shadow_reader.config import CHAT, NARRATE, ShadowProfile
from shadow_reader.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ShadowError,
    VocabularyError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView, TurnView
from shadow_reader.shadow import jobs
from shadow_reader.shadow.engine import Engine, Writing
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.pieces import Pieces
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import Closing
from shadow_reader.shadow.ration import Ration
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.windows import Windows

OWNER: Final = "narrator"
LAST_SUMMARIES: Final = 5
WAIT_S: Final = 0.05
"""How often it is looked whether the ration allows a slice by now, while a turn decodes."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """A summary that is over; see ``events.types.Summary``."""

    session: str
    turn: str
    text: str
    ids: int
    reason: t.SummaryEnd
    about: int
    position: int
    behind: int
    lag_ms: float
    used_ms: float


@dataclass(frozen=True, slots=True)
class NarratorStatus:
    """How the narrator stands; ``last``: the newest summaries, the newest last.

    ``engine``: whose weights it writes with: the reader's, there is one copy.
    """

    open: int
    share: float
    engine: str
    last: tuple[SummaryReply, ...]


@dataclass(slots=True)
class Telling:
    """One summary under way.

    Attributes:
        line: of talk. turn: whose thought it is of; runs: it ran when this began.
        base: the ids up to the thought's end. turns: of the line, when they were last looked at.
        pieces: its text as it comes; None ends it. reply: what became of it.
        ended: why, where it was not to be finished.
    """

    line: str
    turn: TurnView
    about: int
    runs: bool
    prompt: str
    base: Ids
    turns: int
    pieces: asyncio.Queue[str | None]
    reply: asyncio.Future[SummaryReply]
    ids: list[int] = field(default_factory=list)
    position: int = 0
    began_s: float = 0.0
    first_s: float | None = None
    used_s: float = 0.0
    text: str = ""
    ended: t.SummaryEnd | None = None


class Narrator:
    """Writes summaries with the reader's engine.

    Args:
        profiles: those whose thoughts are told of unasked, by name.
        share: of the time since a turn's first token. most: ids of a summary.
        bound: summaries at once.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        engine: Engine,
        device: JobThread,
        lease: Lease,
        clock: Clock,
        line: QuestionLine,
        reader: Reader,
        windows: Windows,
        profiles: Mapping[str, ShadowProfile],
        share: float,
        most: int,
        bound: Bound,
    ) -> None:
        self._sessions = sessions
        self._engine = engine
        self._device = device
        self._lease = lease
        self._clock = clock
        self._line = line
        self._reader = reader
        self._windows = windows
        self._profiles = profiles
        self._ration = Ration(share)
        self._most = most
        self._bound = bound
        self._tasks: dict[asyncio.Task[None], Telling] = {}
        self._told: dict[str, tuple[str, int]] = {}
        self._in_round: deque[asyncio.Future[asyncio.Event]] = deque()
        self._id_s: float | None = None
        self._last: deque[SummaryReply] = deque(maxlen=LAST_SUMMARIES)
        reader.guest = self.round

    # -- from outside -------------------------------------------------------------------------

    def tell(self, session: str) -> None:
        """Something of this line was committed: a thought may have ended, or a turn."""
        live = self._sessions.peek(session)
        view = live.durable if live is not None else None
        for telling in tuple(self._tasks.values()):
            if telling.line != session:
                continue
            if not _holds_still(view, telling):
                self._stop(telling, "replaced")
            elif telling.runs and not _runs_still(view, telling.turn):
                self._stop(telling, "turn ended")
        if view is None:
            kept = [reply for reply in self._last if reply.session != session]
            self._last = deque(kept, LAST_SUMMARIES)
        turn = view.turn if view is not None else None
        if view is None or turn is None or not turn.running:
            self._told.pop(session, None)
            return
        profile = self._profiles.get(turn.profile or "")
        if profile is None or self._line.vocabulary is None:
            return
        name, seen = self._told.get(session, ("", 0))
        start = seen if name == turn.turn else turn.prompt_length
        self._told[session] = turn.turn, len(view.known)
        end = self._line.vocabulary.special.think_end
        if len(view.known) > start and end in view.known.array(start):
            try:
                self.begin(session, view, prompt=profile.narrator_prompt)
            except ShadowError as error:
                log.info("no summary of session %s: %s", session, error)

    def begin(
        self,
        line: str,
        view: SessionView,
        *,
        prompt: str = NARRATE,
        timeout_s: float | None = None,
    ) -> Telling:
        """Begin to write about the last thought of the line's last turn.

        Raises:
            InvalidInputError: it has no thought that has ended. BusyError: too many are written.
            VocabularyError: there is no vocabulary to write with.
        """
        vocabulary = self._line.vocabulary
        if vocabulary is None:
            raise VocabularyError("this service has no vocabulary: summaries need one")
        about = _thought_end(view, vocabulary.special.think_end)
        assert view.turn is not None, "it has a thought"
        self._bound.take()
        loop = asyncio.get_running_loop()
        telling = Telling(
            line,
            view.turn,
            about,
            view.turn.running,
            prompt,
            view.known.take(about),
            view.turns,
            asyncio.Queue(),
            loop.create_future(),
            began_s=self._clock.monotonic(),
        )
        task = asyncio.create_task(self._tell(telling), name="summary")
        self._tasks[task] = telling
        task.add_done_callback(self._ended)
        if timeout_s is not None:
            loop.call_later(timeout_s, self._stop, telling, "timeout")
        return telling

    async def pieces(self, telling: Telling) -> AsyncGenerator[str, None]:
        """The text as it comes; whoever stops listening ends the summary.

        Raises:
            ShadowError: what ended it before anything could be written.
        """
        try:
            while (piece := await telling.pieces.get()) is not None:
                yield piece
            await asyncio.shield(telling.reply)
        finally:
            self._stop(telling, "cancelled")

    async def round(self) -> None:
        """An engine has paused, and the reader is done: one slice, if one waits and may be."""
        waiting = [future for future in self._in_round if not future.done()]
        self._in_round = deque(waiting)
        if waiting and self._allowance_s() > 0:
            done = asyncio.Event()
            self._in_round.popleft().set_result(done)
            await done.wait()

    def status(self) -> NarratorStatus:
        """How it stands."""
        return NarratorStatus(
            self._bound.used, self._ration.share, self._engine.identity.engine, tuple(self._last)
        )

    async def close(self) -> None:
        """End every summary."""
        self._reader.guest = None
        tasks = tuple(self._tasks)
        for telling in tuple(self._tasks.values()):
            self._stop(telling, "failed")
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self, telling: Telling, why: t.SummaryEnd) -> None:
        for task, one in tuple(self._tasks.items()):
            if one is telling and telling.ended is None:
                telling.ended = why
                task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._bound.give()
        telling = self._tasks.pop(task)
        telling.pieces.put_nowait(None)
        if not telling.reply.done():
            telling.reply.cancel()

    # -- one summary --------------------------------------------------------------------------

    async def _tell(self, telling: Telling) -> None:
        writing: list[Writing] = []
        reason: t.SummaryEnd = "failed"
        failed: ShadowError | None = None
        try:
            reason = await self._write(telling, writing)
        except asyncio.CancelledError:
            reason = telling.ended or "cancelled"
        except ConflictError as error:
            reason, failed = "replaced", error
        except ShadowError as error:
            failed = error
            log.warning("the summary of session %s failed: %s", telling.line, error)
        except RuntimeError as error:
            failed = ShadowError(f"the forward failed: {error}")
            log.exception("the summary of session %s failed", telling.line)
        finally:
            ending = asyncio.ensure_future(self._end(telling, writing, reason, failed))
            await asyncio.wait([ending])

    async def _write(self, telling: Telling, writing: list[Writing]) -> t.SummaryEnd:
        """Read up to the thought, write; why it is over."""
        vocabulary = self._line.vocabulary
        assert vocabulary is not None, "it was there when this began"
        await self._reader.wait_read(telling.line, telling.about)
        chunk_s = self._reader.cost_s(telling.about) or self._windows.slice_s
        await self._slice(telling, partial(self._open, telling, writing), 2 * chunk_s)
        pieces = Pieces(vocabulary)
        stops = {vocabulary.special.im_end, vocabulary.special.end_of_text}
        while True:
            id_s = self._id_s or chunk_s
            slice_s = min(chunk_s, self._windows.slice_s)
            count = max(1, int(slice_s / id_s)) if telling.ids else 1
            job = partial(writing[0].next, count, stops)
            ids = await self._slice(telling, job, id_s if telling.ids else chunk_s)
            if telling.first_s is None:
                telling.first_s = self._clock.monotonic()
            elif ids:
                self._id_s = self._slice_s / len(ids)
            telling.ids += ids
            text = pieces.push(ids)
            telling.text += text
            if text:
                telling.pieces.put_nowait(text)
            if len(telling.ids) >= self._most:
                return "length"
            if len(ids) < count:
                return "stop"

    def _open(self, telling: Telling, writing: list[Writing]) -> None:
        """On the device: begin to write on top of what is read of the session."""
        view = self._reader.roster.known(telling.line)
        if view is None:
            raise NotFoundError("the session is gone", field="session", found=telling.line)
        if len(view.known) < telling.about:
            raise ConflictError("a prompt has replaced the thought", field="session")
        aligned = self._engine.align(telling.line, view.known)
        if aligned.cut is not None:
            raise ConflictError("a prompt has replaced what was read", field="session")
        line, position = jobs.base_above(self._engine, view.known, aligned, telling.about)
        vocabulary = self._line.vocabulary
        assert vocabulary is not None
        newline = tuple(vocabulary.encode("\n", special=False))
        closing = Closing(vocabulary.special.im_end, newline).after(view.known.take(position))
        before, after = CHAT.split("{question}")
        asked = [
            *vocabulary.encode(before),
            *vocabulary.encode(telling.prompt.strip(), special=False),
            *vocabulary.encode(after),
        ]
        telling.position = position
        writing.append(
            self._engine.write(
                telling.line,
                tail=Ids.of(view.known.array(line, position)),
                prompt=closing.extend(Ids.of(asked)),
                most=self._most,
                line=line,
            )
        )

    async def _end(
        self,
        telling: Telling,
        writing: list[Writing],
        reason: t.SummaryEnd,
        failed: ShadowError | None,
    ) -> None:
        for one in writing:
            await self._device.run(one.release)
        view = self._reader.roster.known(telling.line)
        behind = max(0, len(view.known) - telling.position) if view is not None else 0
        now_s = self._clock.monotonic()
        first_s = telling.first_s if telling.first_s is not None else now_s
        lag_ms = round(1000 * (first_s - telling.began_s), 3)
        used_ms = round(1000 * telling.used_s, 3)
        event = t.Summary(
            telling.about, telling.position, Ids.of(telling.ids), reason, behind, lag_ms, used_ms
        )
        with suppress(ShadowError):  # the session may be gone
            receipt = await self._sessions.record(telling.line, event, turn=telling.turn.turn)
            if receipt is not None:
                await receipt
        reply = SummaryReply(
            telling.line,
            telling.turn.turn,
            telling.text,
            len(telling.ids),
            reason,
            *(telling.about, telling.position, behind, lag_ms, used_ms),
        )
        self._last.append(reply)
        if telling.reply.done():
            return
        if failed is not None:
            telling.reply.set_exception(failed)
            telling.reply.exception()  # nobody may be there to hear it
        else:
            telling.reply.set_result(reply)

    # -- slices -------------------------------------------------------------------------------

    async def _slice(self, telling: Telling, job: Callable[[], T], cost_s: float) -> T:
        """One job of the device, when it may be done; what it took is charged to the turns."""
        while True:
            async with self._allowed(cost_s) as may:
                if not may:
                    continue
                await self._device.run(self._engine.synchronise)
                began = self._clock.monotonic()
                try:
                    found = await self._device.run(job)
                    await self._device.run(self._engine.synchronise)
                    return found
                finally:
                    self._slice_s = self._clock.monotonic() - began
                    telling.used_s += self._slice_s
                    self._ration.charge(self._slice_s)

    _slice_s = 0.0

    @asynccontextmanager
    async def _allowed(self, cost_s: float) -> AsyncIterator[bool]:
        """The device, where it may be had; False after a wait for that."""
        if self._windows.holds.any:
            await asyncio.sleep(WAIT_S)
            yield False
        elif not self._turns_run():
            async with self._lease.hold(Rank.NARRATOR, OWNER):
                yield not self._turns_run() and not self._windows.holds.any
        elif self._allowance_s() < cost_s and self._allowance_s() < self._windows.slice_s:
            await asyncio.sleep(WAIT_S)
            yield False
        elif self._reader.rounds.called:
            async with self._a_round(cost_s) as may:
                yield may
        else:
            with self._lent() as may:
                yield may
            if not may:
                await asyncio.sleep(WAIT_S)

    @contextmanager
    def _lent(self) -> Iterator[bool]:
        """The lease, if it is to be had at once, or to be lent by requests that have paused."""
        grant = self._lease.try_acquire(Rank.NARRATOR, OWNER)
        grant = grant or self._lease.lend(Rank.NARRATOR, OWNER)
        try:
            yield grant is not None
        finally:
            if grant is not None:
                self._lease.release(grant)

    @asynccontextmanager
    async def _a_round(self, cost_s: float) -> AsyncIterator[bool]:
        """A moment in which the engine has paused for us."""
        paused: asyncio.Future[asyncio.Event] = asyncio.get_running_loop().create_future()
        self._in_round.append(paused)
        done: asyncio.Event | None = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S * 10):
                    done = await paused
            if done is None or self._allowance_s() < min(cost_s, self._windows.slice_s):
                yield False
            else:
                with self._lent() as may:
                    yield may
        finally:
            if done is None and paused.done() and not paused.cancelled():
                done = paused.result()
            if done is not None:
                done.set()
            paused.cancel()

    def _turns_run(self) -> bool:
        return self._windows.turns_block and self._reader.roster.any_runs()

    def _allowance_s(self) -> float:
        """What may be used now; 0 where a running turn is in prefill."""
        running = {live.session: live for live in self._reader.roster.running()}
        for line in tuple(self._ration.accounts):
            live = running.get(line)
            if live is None or live.decoding != self._ration.accounts[line].turn:
                self._ration.end(line)
        for line, live in running.items():
            if live.decodes_since_s is None:
                return 0.0
            self._ration.begin(line, live.decoding, live.decodes_since_s)
        return self._ration.allowance_s(self._clock.monotonic())


def _thought_end(view: SessionView, think_end: int) -> int:
    """Behind the last thought of the last turn's output.

    Raises:
        InvalidInputError: there is none that has ended.
    """
    if view.turn is not None:
        ends = np.flatnonzero(view.known.array(view.turn.prompt_length) == think_end)
        if len(ends):
            return view.turn.prompt_length + int(ends[-1]) + 1
    raise InvalidInputError(
        "the session's last turn has no thought that has ended: there is nothing to tell of",
        field="session",
        found=view.session,
    )


def _holds_still(view: SessionView | None, telling: Telling) -> bool:
    """Whether the thought is still among the known ids; looked at once a turn."""
    if view is None:
        return False
    if view.turns != telling.turns:
        telling.turns = view.turns
        return view.known.common_prefix(telling.base) == len(telling.base)
    return True


def _runs_still(view: SessionView | None, turn: TurnView) -> bool:
    now = view.turn if view is not None else None
    return now is not None and now.turn == turn.turn and now.running
