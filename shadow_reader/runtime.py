"""The composition root: makes the parts, connects them, closes them in order. Decides nothing.

    async with Runtime(settings) as shadow:
        await shadow.prompt("s1", ids, turn="t1")
        await shadow.output("s1", "t1", offset=0, ids=[...])
        await shadow.end("s1", "t1")
        reply = await shadow.ask("s1", "Is the user done?", ["yes", "no"])

The HTTP API is a thin layer over these calls. Torch is imported only when there is a model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal

from shadow_reader.clock import Clock, SystemClock
from shadow_reader.config import Settings
from shadow_reader.errors import (
    AskTimeoutError,
    JournalError,
    ModelError,
    NotFoundError,
    ShutDownError,
)
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.journal import Journal
from shadow_reader.shadow import jobs
from shadow_reader.shadow.device import DeviceThread
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.jobs import StateDigest
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import Reply
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Accepted, Erased, Sessions
from shadow_reader.shadow.status import (
    NO_MODEL,
    ServiceState,
    SessionStatus,
    Status,
    engine_status,
    session_status,
    totals,
)
from shadow_reader.shadow.turn_watch import watch_turns
from shadow_reader.shadow.vocabulary import Vocabulary, load_vocabulary
from shadow_reader.store.journal import SqliteJournal

STATUS_SESSIONS: Final = 100
QWEN_VOCABULARY: Final = 248_320
QWEN_CONTEXT_IDS: Final = 262_144

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Parts:
    """Everything that runs between entering and leaving."""

    journal: Journal
    sessions: Sessions
    line: QuestionLine
    device: DeviceThread
    engine: Engine | None
    reader: Reader | None
    task: asyncio.Task[None] | None


class Runtime:
    """One service: a journal, its live sessions, and, with a model, the reader.

    Args:
        settings: see ``config.Settings``.
        clock, engine, journal, vocabulary: to bring your own; the rest is made from the settings.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        engine: Engine | None = None,
        journal: Journal | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.lease = Lease(self.clock)
        self._given = (engine, journal, vocabulary)
        self._parts: _Parts | None = None
        self._erasing: set[asyncio.Task[Erased]] = set()
        self._stack = AsyncExitStack()
        self._state: ServiceState = "closing"
        self._reason = "not started"
        self._started_s = 0.0

    async def __aenter__(self) -> Runtime:
        """Open the journal, load the model, start the reader.

        Raises:
            JournalError, ModelError, VocabularyError: nothing is left open.
        """
        self._started_s = self.clock.monotonic()
        async with AsyncExitStack() as stack:
            # Last of all: an erasure may wait for the journal's closing.
            stack.push_async_callback(self._settle_erasures)
            parts = await self._make(stack)
            self._parts = parts
            self._state, self._reason = "off", NO_MODEL
            watch = watch_turns(parts.sessions, self.settings.turn_timeout_s)
            stack.push_async_callback(_stop_task, asyncio.create_task(watch, name="turn watch"))
            if parts.engine is not None:
                self._state, self._reason = "ready", ""
                self._start_reader(parts, parts.engine)
                stack.push_async_callback(self._stop_reader, parts)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the chunk in flight, journal the end, close everything."""
        self._state, self._reason = "closing", "the service is closing"
        try:
            await self._stack.aclose()
        finally:
            self._parts = None

    # -- what an engine says ------------------------------------------------------------------

    @property
    def sessions(self) -> Sessions:
        """The live sessions; their calls are decided at once and acknowledged when awaited."""
        return self._running().sessions

    @property
    def journal(self) -> Journal:
        """The journal."""
        return self._running().journal

    async def prompt(
        self,
        session: str,
        ids: list[int],
        *,
        turn: str | None = None,
        keep: int | None = None,
        router: str | None = None,
    ) -> Accepted:
        """A turn begins with the whole prompt, or with ``keep`` known ids and then ``ids``."""
        return await (await self.sessions.prompt(session, ids, turn=turn, keep=keep, router=router))

    async def first_token(self, session: str, turn: str) -> Accepted:
        """The turn's prefill is over. The first output says it too."""
        return await (await self.sessions.first_token(session, turn))

    async def output(self, session: str, turn: str, *, offset: int, ids: list[int]) -> Accepted:
        """Output ids, ``offset`` counted from the turn's first output id."""
        return await (await self.sessions.output(session, turn, offset=offset, ids=ids))

    async def end(
        self, session: str, turn: str, *, reason: t.EndReason = "stop", produced: int | None = None
    ) -> Accepted:
        """The turn ends; ``produced`` is the engine's own count of output ids."""
        return await (await self.sessions.end(session, turn, reason=reason, produced=produced))

    async def erase(self, session: str) -> Erased:
        """Remove the session: events, ids and state. Once begun it goes through to the end."""
        erasing = asyncio.create_task(self._erase(self._running(), session), name="erase")
        self._erasing.add(erasing)
        erasing.add_done_callback(self._erasing.discard)
        return await asyncio.shield(erasing)

    async def _erase(self, parts: _Parts, session: str) -> Erased:
        erased = await parts.sessions.erase(session)
        parts.line.fail_session(session, NotFoundError("the session was erased", field="session"))
        if parts.reader:
            with suppress(ShutDownError):  # the engine closes, and all states with it
                await parts.reader.forget(session)
        return erased

    # -- what is asked ------------------------------------------------------------------------

    async def ask(
        self,
        session: str,
        question: str | list[int],
        choices: Sequence[str],
        *,
        wait: Literal["fresh", "now"] = "fresh",
        timeout_s: float | None = None,
    ) -> Reply:
        """A typed question about the session; see ``QuestionLine.ask``.

        Raises:
            ModelError: no model is loaded.
        """
        self._reading()
        line = self._running().line
        return await line.ask(session, question, choices, wait=wait, timeout_s=timeout_s)

    async def wait_fresh(self, session: str, *, timeout_s: float | None = None) -> SessionStatus:
        """Wait until less than one chunk of the session is unread.

        Raises:
            AskTimeoutError: not within ``timeout_s`` (default: ``ask_timeout_s``).
        """
        limit_s = self.settings.ask_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._reading().wait_fresh(session)
        except TimeoutError:
            raise AskTimeoutError(
                f"session {session!r} was not fresh within {limit_s:g} s",
                field="timeout_s",
                limit=limit_s,
            ) from None
        return await self.session_status(session)

    async def session_status(self, session: str) -> SessionStatus:
        """How one session stands.

        Raises:
            NotFoundError: no such session.
        """
        parts = self._running()
        live = await parts.sessions.load(session)
        if live.durable is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        return session_status(live, live.durable, parts.reader.roster if parts.reader else None)

    async def status(self) -> Status:
        """How everything stands."""
        parts = self._running()
        roster = parts.reader.roster if parts.reader else None
        newest = sorted(parts.sessions.live(), key=lambda live: -live.heard_s)
        found = tuple(
            session_status(live, live.durable, roster)
            for live in newest
            if live.durable is not None
        )
        return Status(
            state=self._state,
            reason=self._reason,
            uptime_s=self.clock.monotonic() - self._started_s,
            model=engine_status(parts.engine) if parts.engine else None,
            journal=parts.journal.stats(),
            lease=self.lease.status(),
            totals=totals(found),
            sessions=found[:STATUS_SESSIONS],
        )

    async def digest(self, session: str) -> StateDigest:
        """The digest of the session's state, and the grid line it holds for.

        Raises:
            NotFoundError: no state is resident.
        """
        self._reading()
        parts = self._running()
        assert parts.engine is not None
        async with self.lease.hold(Rank.SUMMARY, "digest"):
            found = await parts.device.run(jobs.digest, parts.engine, session)
        if found is None:
            raise _no_state(session)
        return found

    async def export(self, session: str) -> bytes:
        """The session's state as one safetensors file.

        Raises:
            NotFoundError: no state is resident. TooLargeError: it passes ``export_bytes``.
        """
        self._reading()
        parts = self._running()
        assert parts.engine is not None
        limit_bytes = self.settings.export_bytes
        async with self.lease.hold(Rank.SUMMARY, "export"):
            found = await parts.device.run(
                partial(jobs.export, parts.engine, session, limit_bytes=limit_bytes)
            )
        if found is None:
            raise _no_state(session)
        return found

    def journal_entries(self, **filters: Any) -> AsyncIterator[t.Entry]:
        """Committed entries; the filters are those of ``Journal.entries``."""
        return self.journal.entries(**filters)

    @property
    def state(self) -> ServiceState:
        """off (no model), ready, failed (the reader stopped), closing."""
        return self._state

    @property
    def reason(self) -> str:
        """Why the state is not ready; empty when it is."""
        return self._reason

    # -- making and unmaking ------------------------------------------------------------------

    async def _make(self, stack: AsyncExitStack) -> _Parts:
        engine, journal, vocabulary = self._given
        settings = self.settings
        if journal is None:
            journal = await SqliteJournal.open(
                settings.journal.expanduser(),
                durability=settings.durability,
                pending_limit=settings.pending_events,
            )
        stack.push_async_callback(journal.close)
        device = DeviceThread()
        stack.push_async_callback(device.close)
        if engine is None and settings.model:
            engine = await device.run(_build_engine, settings)
        if engine is not None:
            stack.push_async_callback(device.run, engine.close)
            if vocabulary is None:
                vocabulary = await asyncio.to_thread(load_vocabulary, settings.model_spec())
        limits = Limits(
            vocabulary=engine.vocabulary if engine else QWEN_VOCABULARY,
            context_ids=engine.context_ids if engine else settings.context_ids or QWEN_CONTEXT_IDS,
            question_ids=settings.question_ids,
            open_questions=settings.open_questions,
        )
        sessions = Sessions(journal, self.clock, limits, settings.sessions)
        line = QuestionLine(sessions, self.clock, vocabulary, settings.ask_timeout_s)
        parts = _Parts(journal, sessions, line, device, engine, None, None)
        if engine is not None:
            await self._journal_engine(journal, engine)
            stack.push_async_callback(self._journal_stop, journal)
        return parts

    def _start_reader(self, parts: _Parts, engine: Engine) -> None:
        reader = Reader(
            sessions=parts.sessions,
            engine=engine,
            device=parts.device,
            lease=self.lease,
            line=parts.line,
            clock=self.clock,
            turns_block=self.settings.foreground == "turns",
            burst_s=self.settings.burst_s,
        )
        parts.reader = reader
        parts.sessions.on_change = reader.wake
        parts.line.wake = reader.wake
        parts.task = asyncio.create_task(self._read(parts, reader), name="shadow-reader")

    async def _read(self, parts: _Parts, reader: Reader) -> None:
        """Run the reader. If it dies, that is a bug of ours: say so, and go on journaling."""
        try:
            await reader.run(parts.journal)
        except Exception as error:
            log.exception("the reader stopped")
            self._state, self._reason = "failed", f"the reader stopped: {error!r}"
            parts.line.close()
            raise

    async def _stop_reader(self, parts: _Parts) -> None:
        parts.line.close()
        if parts.reader and parts.task:
            parts.reader.stop()
            await asyncio.gather(parts.task, return_exceptions=True)
        await parts.line.settle()

    async def _settle_erasures(self) -> None:
        await asyncio.gather(*self._erasing, return_exceptions=True)

    async def _journal_engine(self, journal: Journal, engine: Engine) -> None:
        loaded = t.EngineLoaded(engine=engine.identity.engine, **asdict(engine.identity))
        await journal.submit([t.Draft(self.clock.wall(), "", "", loaded)])

    async def _journal_stop(self, journal: Journal) -> None:
        stopped = t.Draft(self.clock.wall(), "", "", t.EngineStopped("closed"))
        try:
            await journal.submit([stopped])
        except JournalError as error:
            log.warning("the journal did not take the end of the service: %s", error)

    def _running(self) -> _Parts:
        if self._parts is None:
            raise ShutDownError("the runtime is not running: use it in an `async with` block")
        return self._parts

    def _reading(self) -> Reader:
        reader = self._running().reader
        if reader is None:
            raise ModelError(NO_MODEL, field="model")
        if self._state == "failed":
            raise ShutDownError(self._reason)
        return reader


def _build_engine(settings: Settings) -> Engine:
    """Made on the device thread: torch keeps some of its state by thread."""
    from shadow_reader.shadow.torch_engine import build_engine

    return build_engine(settings)


async def _stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _no_state(session: str) -> NotFoundError:
    return NotFoundError(
        f"no state of session {session!r} is resident", field="session", found=session
    )
