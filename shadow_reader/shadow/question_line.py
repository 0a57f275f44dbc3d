"""The line of questions that wait for an answer, and how somebody asks.

Law: every question that was journaled ends in exactly one of: an answer, or an end that says why.
Whoever asked may go away at any time; the question then ends as cancelled, unless its answer was on
its way into the journal already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from shadow_reader.clock import Clock
from shadow_reader.errors import (
    AskTimeoutError,
    InvalidInputError,
    NotFoundError,
    ShadowError,
    ShutDownError,
)
from shadow_reader.events import types as t
from shadow_reader.shadow.plan import Waiting
from shadow_reader.shadow.questions import (
    OpenQuestion,
    Reply,
    check_choices,
    closing_of,
    compose_question,
    is_long,
)
from shadow_reader.shadow.sessions import Receipt, Sessions
from shadow_reader.shadow.vocabulary import Vocabulary

MAX_TIMEOUT_S: Final = 3600.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class QuestionLine:
    """All open questions of this process, oldest first.

    Args:
        wake: called when a question joins the line.
        timeout_s: how long a question waits when the caller does not say.

    Attributes:
        away: why nobody answers; None: somebody does.
    """

    sessions: Sessions
    clock: Clock
    vocabulary: Vocabulary | None
    timeout_s: float
    wake: Callable[[], None] = lambda: None
    away: ShadowError | None = None
    _open: dict[str, OpenQuestion] = field(default_factory=dict)
    _asking: int = 0
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask(
        self,
        session: str,
        question: object,
        choices: Sequence[str],
        *,
        wait: Literal["fresh", "now"] = "fresh",
        timeout_s: float | None = None,
        asked_s: float | None = None,
    ) -> Reply:
        """Ask, and wait for the answer.

        Args:
            session: of its lines of talk the one that ``Sessions.spoken`` says; or one line's name.
            question: text, or a list of ids that are used as they are.
            wait: fresh: once less than a chunk of the session is unread, on top of all known ids;
                now: on top of what has been read so far.
            asked_s: since when it waits, monotonic; None: since now.

        Raises:
            InvalidInputError, NotFoundError, TooLargeError, BusyError: nothing was asked.
            AskTimeoutError: the answer did not come in time; the question is given up.
        """
        limit_s = self.limit(timeout_s)
        if wait not in ("fresh", "now"):
            raise InvalidInputError(
                f"wait must be fresh or now, not {wait!r:.40}", field="wait", found=str(wait)[:40]
            )
        checked = check_choices(choices)
        now_s = self.clock.monotonic()
        asked_s = now_s if asked_s is None else asked_s
        patience = asyncio.timeout(limit_s + asked_s - now_s)
        try:
            async with patience:
                receipt, asked = await self._place(session, question, checked, wait, asked_s)
                return await self._answered(receipt, asked, patience)
        except TimeoutError:
            raise AskTimeoutError(
                f"no answer within {limit_s:g} s", field="timeout_s", limit=limit_s
            ) from None

    def waiting(self) -> tuple[Waiting, ...]:
        """The questions in line, as the plan sees them."""
        return tuple(asked.waiting for asked in self._open.values() if not asked.reply.done())

    def get(self, question: str) -> OpenQuestion | None:
        """An open question."""
        return self._open.get(question)

    def waits_for(self, session: str) -> bool:
        """Whether a question waits for this session."""
        return any(waiting.session == session for waiting in self.waiting())

    def answer(self, question: str, reply: Reply) -> None:
        """Hand over an answer that is committed."""
        asked = self._open.get(question)
        if asked is not None and not asked.reply.done():
            asked.reply.set_result(reply)

    def fail(self, question: str, error: ShadowError) -> None:
        """There will be no answer."""
        asked = self._open.get(question)
        if asked is not None and not asked.reply.done():
            asked.reply.set_exception(error)

    def fail_session(self, session: str, error: ShadowError) -> None:
        """None of the session's questions gets an answer."""
        for asked in tuple(self._open.values()):
            if asked.waiting.session == session:
                self.fail(asked.event.question, error)

    def send_away(self, error: ShadowError) -> None:
        """Take no more questions, until ``away`` is None again, and fail those that wait."""
        self.away = error
        for question in tuple(self._open):
            self.fail(question, error)

    def close(self) -> None:
        """Take no more questions and fail those that wait."""
        self.send_away(ShutDownError("the service is closing"))

    async def settle(self) -> None:
        """After ``close``: wait until every question that was asked has its end on its way."""
        while self._asking:
            self._left.clear()
            await self._left.wait()
        await asyncio.gather(*self._ending)

    def limit(self, timeout_s: float | None) -> float:
        """How long a question waits, seconds.

        Raises:
            InvalidInputError: longer than any may, or no time at all.
        """
        if timeout_s is None:
            return self.timeout_s
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise InvalidInputError(
                f"timeout_s must be above 0 and at most {MAX_TIMEOUT_S:g}, not {timeout_s:g}",
                field="timeout_s",
                found=timeout_s,
                limit=MAX_TIMEOUT_S,
            )
        return timeout_s

    async def _place(
        self,
        session: str,
        question: object,
        choices: tuple[str, ...],
        wait: Literal["fresh", "now"],
        asked_s: float,
    ) -> tuple[Receipt, OpenQuestion]:
        """Check the question and queue it for the journal; nothing is awaited after that.

        Where the session has moved on while a long text was composed, ``Sessions.question`` puts
        the question on top of what is known then.
        """
        live = await self.sessions.spoken(session)
        if live.tentative is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        session = live.session
        compose = partial(
            compose_question,
            question,
            choices,
            view=live.tentative,
            vocabulary=self.vocabulary,
            limits=self.sessions.limits,
        )
        long = is_long(question, choices)
        event, letters = await asyncio.to_thread(compose) if long else compose()
        self._check()
        receipt = await self.sessions.question(session, event)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        waiting = Waiting(event.question, session, wait, asked_s)
        assert self.vocabulary is not None, "the question was composed with it"
        closing = closing_of(event, self.vocabulary)
        return receipt, OpenQuestion(waiting, event, letters, closing, reply)

    async def _answered(
        self, receipt: Receipt, asked: OpenQuestion, patience: asyncio.Timeout
    ) -> Reply:
        """Join the line once the question is committed, and wait; whatever comes, it ends."""
        question = asked.event.question
        self._asking += 1
        try:
            await receipt
            self._check()
            self._open[question] = asked
            self.wake()
            return await asked.reply
        except asyncio.CancelledError:
            await self._give_up(asked, "timeout" if patience.expired() else "cancelled")
            raise
        except ShadowError:
            await self._give_up(asked, "failed")
            raise
        finally:
            self._open.pop(question, None)
            self._asking -= 1
            self._left.set()

    def _check(self) -> None:
        if self.away is not None:
            raise type(self.away)(self.away.message, **self.away.details)

    async def _give_up(self, asked: OpenQuestion, reason: t.QuestionEnd) -> None:
        """Journal the end, also when whoever waits for it is cancelled meanwhile."""
        self._open.pop(asked.event.question, None)
        ending = asyncio.create_task(self._end(asked, reason), name="end of a question")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)

    async def _end(self, asked: OpenQuestion, reason: t.QuestionEnd) -> None:
        event = t.QuestionEnded(asked.event.question, reason)
        try:
            await self.sessions.record(asked.waiting.session, event)
        except ShadowError as error:
            # Its session is folded again before anything else is said of it; it ends then.
            log.warning("the end of question %s is not journaled: %s", event.question, error)
