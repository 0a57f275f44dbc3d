"""The narrator: a summary of the big model's thought, written on a fork of the whole session.

Laws:

1. Nothing of the turn or of the session changes, whatever becomes of the summary.
2. It uses the device a slice at a time, when it may (see ``slices``).
3. It ends with its turn, with whoever asked for it, or at its limit, and is journaled with what was
   written by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from shadow_reader.bounds import Bound
from shadow_reader.chat import CHAT
from shadow_reader.clock import Clock
from shadow_reader.errors import (
    ConflictError,
    NotFoundError,
    ShadowError,
    VocabularyError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.profiles import NARRATE, ShadowProfile
from shadow_reader.shadow import jobs
from shadow_reader.shadow.engine import Engine, Writing
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.phrasing import Closing
from shadow_reader.shadow.pieces import Pieces
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.slices import Slices
from shadow_reader.shadow.telling import SummaryReply, Telling, holds_still, runs_still, thought_end
from shadow_reader.shadow.windows import Windows

LAST_SUMMARIES: Final = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NarratorStatus:
    """How the narrator stands; ``last``: the newest summaries, the newest last.

    ``engine``: whose weights it writes with: the reader's, there is one copy.
    """

    open: int
    share: float
    engine: str
    last: tuple[SummaryReply, ...]


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
        self._clock = clock
        self._line = line
        self._reader = reader
        self._windows = windows
        self._profiles = profiles
        self._slices = Slices(
            engine=engine,
            device=device,
            lease=lease,
            clock=clock,
            reader=reader,
            windows=windows,
            share=share,
        )
        self._most = most
        self._bound = bound
        self._tasks: dict[asyncio.Task[None], Telling] = {}
        self._told: dict[str, tuple[str, int]] = {}
        self._id_s: float | None = None
        self._last: deque[SummaryReply] = deque(maxlen=LAST_SUMMARIES)
        reader.guest = self._slices.round

    # -- from outside -------------------------------------------------------------------------

    def tell(self, session: str) -> None:
        """Something of this line was committed: a thought may have ended, or a turn."""
        if not (self._profiles or self._tasks or self._last):
            return
        live = self._sessions.peek(session)
        view = live.durable if live is not None else None
        for telling in tuple(self._tasks.values()):
            if telling.line != session:
                continue
            if not holds_still(view, telling):
                self._stop(telling, "replaced")
            elif telling.runs and not runs_still(view, telling.turn):
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
        about = thought_end(view, vocabulary.special.think_end)
        assert view.turn is not None, "it has a thought"
        self._bound.take()
        loop = asyncio.get_running_loop()
        telling = Telling(
            line,
            view.turn,
            about,
            view.turn.running,
            prompt,
            view.opened_at,
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

    def status(self) -> NarratorStatus:
        """How it stands."""
        return NarratorStatus(
            self._bound.used,
            self._slices.ration.share,
            self._engine.identity.engine,
            tuple(self._last),
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
        chunk_s = self._windows.slice_s
        while not writing:
            await self._reader.wait_read(telling.line, telling.about)
            chunk_s = self._reader.cost_s(telling.about) or chunk_s
            await self._slices.run(telling, partial(self._open, telling, writing), 2 * chunk_s)
        pieces = Pieces(vocabulary)
        stops = {vocabulary.special.im_end, vocabulary.special.end_of_text}
        while True:
            id_s = self._id_s or chunk_s
            slice_s = min(chunk_s, self._windows.slice_s)
            count = max(1, int(slice_s / id_s)) if telling.ids else 1
            job = partial(writing[0].next, count, stops)
            ids = await self._slices.run(telling, job, id_s if telling.ids else chunk_s)
            if telling.first_s is None:
                telling.first_s = self._clock.monotonic()
            elif ids:
                self._id_s = self._slices.last_s / len(ids)
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
        """On the device: begin to write on top of what is read of the session.

        Nothing is done where its state left, or a prompt came, while the device was waited for:
        the reader brings it up to date first, and journals what that takes.
        """
        view = self._reader.roster.known(telling.line)
        if view is None:
            raise NotFoundError("the session is gone", field="session", found=telling.line)
        if len(view.known) < telling.about:
            raise ConflictError("a prompt has replaced the thought", field="session")
        stats = self._engine.state_stats(telling.line)
        read = telling.about < self._engine.identity.grid or stats is not None
        if not (read and self._reader.roster.has_read(view, telling.about)):
            return
        committed = stats.committed if stats is not None else 0
        line, position = jobs.base_above(self._engine, committed, view.known, telling.about)
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
        journaled = False
        with suppress(ShadowError):
            receipt = await self._sessions.record(
                telling.line, event, turn=telling.turn.turn, opened_at=telling.opened_at
            )
            if receipt is not None:
                await receipt
                journaled = True
        reply = SummaryReply(
            telling.line,
            telling.turn.turn,
            telling.text,
            len(telling.ids),
            reason,
            *(telling.about, telling.position, behind, lag_ms, used_ms),
        )
        if journaled:  # nothing is kept of a session that is gone
            self._last.append(reply)
        if telling.reply.done():
            return
        if failed is not None:
            telling.reply.set_exception(failed)
            telling.reply.exception()  # nobody may be there to hear it
        else:
            telling.reply.set_result(reply)
