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
from typing import Final, NamedTuple, NoReturn, get_args

from shadow_reader.clock import Clock
from shadow_reader.errors import (
    AskTimeoutError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ShadowError,
    ShutDownError,
)
from shadow_reader.events import types as t
from shadow_reader.events.decide import of_several
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.plan import Waiting, When
from shadow_reader.shadow.questions import (
    Ask,
    Beside,
    OpenQuestion,
    Reply,
    check_choices,
    check_probe_alone,
    closing_of,
    compose_question,
    is_long,
    probe_question,
)
from shadow_reader.shadow.served_probe import ServedProbe
from shadow_reader.shadow.sessions import Receipt, Sessions
from shadow_reader.shadow.vocabulary import Vocabulary

MAX_TIMEOUT_S: Final = 3600.0

log = logging.getLogger(__name__)


def no_probe(name: str) -> NoReturn:
    """There are none.

    Raises:
        NotFoundError: always.
    """
    raise NotFoundError(f"no probe {name!r:.80}", field="probe", found=name[:80])


@dataclass(slots=True)
class QuestionLine:
    """All open questions of this process, oldest first.

    Args:
        wake: called when a question joins the line.
        timeout_s: how long a question waits when the caller does not say.

    Attributes:
        probes: finds a probe that may be asked by its name, or says why it may not.
        away: why nobody answers; None: somebody does.
    """

    sessions: Sessions
    clock: Clock
    vocabulary: Vocabulary | None
    timeout_s: float
    wake: Callable[[], None] = lambda: None
    probes: Callable[[str], ServedProbe] = no_probe
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
        wait: When = "fresh",
        position: int | None = None,
        calibrate: bool = False,
        timeout_s: float | None = None,
        asked_s: float | None = None,
        patient: bool = False,
    ) -> Reply:
        """Ask one question, and wait for the answer; see ``ask_many``."""
        (reply,) = await self.ask_many(
            session,
            [Ask(question, choices, calibrate)],  # type: ignore[arg-type]  # checked there
            wait=wait,
            position=position,
            timeout_s=timeout_s,
            asked_s=asked_s,
            patient=patient,
        )
        return reply

    async def ask_many(
        self,
        session: str,
        questions: Sequence[Ask],
        *,
        wait: When = "fresh",
        position: int | None = None,
        timeout_s: float | None = None,
        asked_s: float | None = None,
        patient: bool = False,
        base: Ids | None = None,
        beside: Beside | None = None,
    ) -> tuple[Reply, ...]:
        """Ask questions together, all or none of them, and wait for all answers, in their order.

        Args:
            session: of its lines of talk the one that ``Sessions.spoken`` says; or one line's name.
            wait: fresh: once less than a chunk of the session is unread, on top of all known ids;
                now: on top of what has been read so far; position: on top of the first
                ``position`` ids, once they are read, whatever is known besides.
            asked_s: since when they wait, monotonic; None: since now.
            patient: nobody is kept waiting for the answers: they take no time that the reader may
                not use.
            base: what the first ``position`` ids have to be; ``session`` is then the name of the
                one line that is meant.
            beside: what is journaled with each answer.

        Raises:
            InvalidInputError, NotFoundError, TooLargeError, BusyError, ProbeError: nothing was
            asked; of several questions ``question`` says which one is at fault.
            ConflictError: a prompt has replaced the ids that ``position`` means, or they are not
                ``base`` (then nothing was asked), or the state has read past them and kept nothing
                to answer on.
            AskTimeoutError: the answers did not come in time; what is open is given up.
        """
        limit_s = self.limit(timeout_s)
        _check_wait(wait, position)
        checked = self._check_questions(questions)
        now_s = self.clock.monotonic()
        asked_s = now_s if asked_s is None else asked_s
        patience = asyncio.timeout(limit_s + asked_s - now_s)
        place = partial(
            Waiting, wait=wait, asked_s=asked_s, position=position or 0, patient=patient
        )
        try:
            async with patience:
                receipt, asked = await self._place(session, checked, position, base, place)
                for one in asked:
                    one.beside = beside
                return await self._answered(receipt, asked, patience)
        except TimeoutError:
            raise AskTimeoutError(
                f"no answer within {limit_s:g} s", field="timeout_s", limit=limit_s
            ) from None

    def waiting(self) -> tuple[Waiting, ...]:
        """The questions in line, as the plan sees them."""
        if not self._open:  # looked at several times a chunk, and most of the time nobody asks
            return ()
        return tuple(asked.waiting for asked in self._open.values() if not asked.reply.done())

    def get(self, question: str) -> OpenQuestion | None:
        """An open question."""
        return self._open.get(question)

    def is_open(self, question: str) -> bool:
        """Whether somebody waits for this question's answer."""
        asked = self._open.get(question)
        return asked is not None and not asked.reply.done()

    def batch(self, question: str) -> list[OpenQuestion]:
        """The open questions that were asked together with this one, which comes first."""
        first = self._open[question]
        rest = [q for q in self._open.values() if q.batch == first.batch and q is not first]
        return [first, *(q for q in rest if not q.reply.done())]

    def waits_for(self, session: str) -> bool:
        """Whether somebody waits for an answer about this session."""
        return any(w.session == session and not w.patient for w in self.waiting())

    def anybody_waits(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(not waiting.patient for waiting in self.waiting())

    def is_due(self, session: str, line: int, grid: int) -> bool:
        """Whether a question is about ids that end in the chunk above this grid line."""
        return line in self._lines(session, grid)

    def next_due(self, session: str, line: int, grid: int) -> int | None:
        """The next grid line above this one at which a question is to be answered."""
        return min((due for due in self._lines(session, grid) if due > line), default=None)

    def _lines(self, session: str, grid: int) -> set[int]:
        return {
            w.position // grid * grid
            for w in self.waiting()
            if w.session == session and w.wait == "position"
        }

    def end_superseded(self, known: Callable[[str], SessionView | None]) -> None:
        """Fail the questions about ids that a prompt has replaced."""
        for asked in tuple(self._open.values()):
            view = known(asked.waiting.session) if asked.waiting.wait == "position" else None
            if view is None or view.turns == asked.turns:
                continue
            asked.turns = view.turns
            agrees = view.known.common_prefix(asked.base)
            if agrees < len(asked.base):
                told = ConflictError(
                    f"a prompt has replaced the first {len(asked.base)} ids; {agrees} still agree",
                    field="position",
                    found=len(asked.base),
                    limit=agrees,
                )
                self.fail(asked.event.question, told)

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

    def _check_questions(self, questions: Sequence[Ask]) -> list[_Checked]:
        """The choices or the probe of each."""
        limit = self.sessions.limits.open_questions
        if not 1 <= len(questions) <= limit:
            raise InvalidInputError(
                f"questions must be 1 to {limit}, not {len(questions)}",
                field="questions",
                found=len(questions),
                limit=limit,
            )
        checked = []
        for index, asked in enumerate(questions):
            with of_several(index, len(questions)):
                if asked.probe is None:
                    checked.append(_Checked(asked, check_choices(asked.choices)))
                else:
                    check_probe_alone(asked)
                    checked.append(_Checked(asked, probe=self.probes(asked.probe)))
        return checked

    async def _place(
        self,
        session: str,
        questions: Sequence[_Checked],
        position: int | None,
        base: Ids | None,
        place: Callable[[str, str], Waiting],
    ) -> tuple[Receipt, list[OpenQuestion]]:
        """Check the questions and queue them for the journal; nothing is awaited after that.

        Where the session has moved on while a long text was composed, ``Sessions.questions`` puts
        the questions on top of what is known then.
        """
        of_line = self.sessions.spoken if base is None else self.sessions.load
        live = await of_line(session)
        if live.tentative is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        session, view = live.session, live.tentative
        if base is not None:
            _check_base(view.known, base)
        compose = partial(
            compose_question,
            view=view,
            vocabulary=self.vocabulary,
            limits=self.sessions.limits,
            about=position,
        )
        composed: list[tuple[t.Question, tuple[int, ...]]] = []
        for index, (asked, allowed, probe) in enumerate(questions):
            with of_several(index, len(questions)):
                if probe is not None:
                    composed.append((probe_question(probe, view=view, about=position), ()))
                    continue
                job = partial(compose, asked.question, allowed, wording=asked.wording)
                long = is_long(asked.question, allowed)
                composed.append(await asyncio.to_thread(job) if long else job())
        self._check()
        receipt = await self.sessions.questions(session, [event for event, _ in composed])
        loop = asyncio.get_running_loop()
        return receipt, [
            OpenQuestion(
                place(event.question, session),
                event,
                letters,
                None if self.vocabulary is None else closing_of(event, self.vocabulary),
                loop.create_future(),
                calibrate=asked.calibrate,
                probe=probe,
                base=view.known.take(position or 0) if base is None else base,
                turns=view.turns,
                batch=composed[0][0].question,
            )
            for (event, letters), (asked, _, probe) in zip(composed, questions, strict=True)
        ]

    async def _answered(
        self, receipt: Receipt, asked: Sequence[OpenQuestion], patience: asyncio.Timeout
    ) -> tuple[Reply, ...]:
        """Join the line once the questions are committed, and wait; whatever comes, they end."""
        self._asking += 1
        try:
            await receipt
            self._check()
            self._open |= {one.event.question: one for one in asked}
            self.wake()
            return tuple(await asyncio.gather(*(one.reply for one in asked)))
        except asyncio.CancelledError:
            await self._give_up(asked, "timeout" if patience.expired() else "cancelled")
            raise
        except ShadowError:
            await self._give_up(asked, "failed")
            raise
        finally:
            for one in asked:
                self._open.pop(one.event.question, None)
            self._asking -= 1
            self._left.set()

    def _check(self) -> None:
        if self.away is not None:
            raise type(self.away)(self.away.message, **self.away.details)

    async def _give_up(self, asked: Sequence[OpenQuestion], reason: t.QuestionEnd) -> None:
        """Journal the ends, also when whoever waits for them is cancelled meanwhile."""
        for one in asked:
            self._open.pop(one.event.question, None)
        ending = asyncio.create_task(self._end(asked, reason), name="end of questions")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)

    async def _end(self, asked: Sequence[OpenQuestion], reason: t.QuestionEnd) -> None:
        """What has its answer on its way already has its end."""
        ends = [t.QuestionEnded(one.event.question, reason) for one in asked]
        try:
            await self.sessions.record(asked[0].waiting.session, *ends)
        except ShadowError as error:
            # Its session is folded again before anything else is said of it; they end then.
            log.warning("the end of %d questions is not journaled: %s", len(ends), error)


class _Checked(NamedTuple):
    """A question with its choices, or with the probe that answers it."""

    asked: Ask
    choices: tuple[str, ...] = ()
    probe: ServedProbe | None = None


def _check_base(known: Ids, base: Ids) -> None:
    agrees = known.common_prefix(base)
    if agrees < len(base):
        raise ConflictError(
            f"the first {len(base)} ids are others by now; {agrees} agree",
            field="position",
            found=len(base),
            limit=agrees,
        )


def _check_wait(wait: str, position: int | None) -> None:
    if wait not in get_args(When):
        raise InvalidInputError(
            f"wait must be fresh, now or position, not {wait!r:.40}",
            field="wait",
            found=str(wait)[:40],
        )
    if (position is not None) != (wait == "position"):
        raise InvalidInputError(
            "position is given with wait=position, and only then",
            field="position",
            found=position,
            expected=wait,
        )
    if type(position) is not int and position is not None:
        raise InvalidInputError(
            f"position must be a number of ids, not {position!r:.40}", field="position"
        )
