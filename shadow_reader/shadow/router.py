"""The router's question, asked of the shadow: what kind of work is this turn?

Law: nothing of a turn changes. The question is asked on top of the prompt up to its last message's
end, when the reader comes there, in time that the reader may use, and the answer is journaled
beside what the server's own router made of the turn. A turn that cannot be asked about is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from shadow_reader.bounds import Bound
from shadow_reader.errors import BusyError, NotFoundError, ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView, TurnView
from shadow_reader.profiles import ShadowProfile
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import Ask, Beside, Reply, Wording, shown_classes
from shadow_reader.shadow.sessions import Sessions

ROUTER_KIND: Final = "router"
LINE_QUESTIONS: Final = 4
"""Of one line of talk at once, the newest: a reader that is further behind than so many turns will
not be asked about the older ones."""
LAST_ANSWERS: Final = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterReply:
    """An answer as the status shows it; see ``RouterAnswer``."""

    session: str
    turn: str
    label: str
    probability: float
    router: str | None
    decided: bool | None
    agree: bool | None
    behind: int
    lag_ms: float


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """What became of the router's questions since the start of the process.

    Attributes:
        asked, answered, open: questions. compared: answers beside a class of the router's own;
        agreed: of these, those that are the same.
        skipped: turns of a profile that asks, by why they were not asked about, or not answered.
        last: the newest answers, the newest last.
    """

    asked: int
    answered: int
    open: int
    compared: int
    agreed: int
    skipped: Mapping[str, int]
    last: tuple[RouterReply, ...]


@dataclass(slots=True)
class ShadowRouter:
    """Asks the router's question of every turn whose profile wants it.

    Args:
        profiles: those that want it, by name.
        ready: waits for the model; raises ModelError where none is on its way.
        committed: the grid line that a line of talk was read to.
        bound: questions open at once.
        capacity: lines of talk that are remembered.
    """

    sessions: Sessions
    line: QuestionLine
    profiles: Mapping[str, ShadowProfile]
    ready: Callable[[], Awaitable[object]]
    committed: Callable[[str], int]
    bound: Bound
    capacity: int
    _turns: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)
    _open: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _skipped: Counter[str] = field(default_factory=Counter)
    _last: deque[RouterReply] = field(default_factory=lambda: deque(maxlen=LAST_ANSWERS))

    def tell(self, session: str) -> None:
        """Something of this line of talk was committed."""
        live = self.sessions.peek(session)
        view = live.durable if live is not None else None
        turn = view.turn if view is not None else None
        profile = self.profiles.get(turn.profile or "") if turn is not None else None
        if view is None or turn is None or profile is None:
            return
        seen = view.opened_at, view.turns
        if self._turns.get(session) == seen:
            return
        self._turns[session] = seen
        self._turns.move_to_end(session)
        if len(self._turns) > self.capacity:
            self._turns.popitem(last=False)
        if turn.running and not _answered(view, turn):
            self._begin(session, view, turn, profile)

    def status(self) -> RouterStatus:
        """How it stands."""
        return RouterStatus(
            self._counts["asked"],
            self._counts["answered"],
            self.bound.used,
            self._counts["compared"],
            self._counts["agreed"],
            dict(self._skipped),
            tuple(self._last),
        )

    async def close(self) -> None:
        """Give up every question that is open."""
        tasks = [task for tasks in self._open.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self, session: str, view: SessionView, turn: TurnView, profile: ShadowProfile
    ) -> None:
        if turn.prompt_length < profile.router_min_tokens:
            self._skip("shorter than router_min_tokens")
            return
        try:
            self.bound.take()
        except BusyError:
            self._skip("too many are open")
            return
        # What was known before this prompt came, less what was read of it.
        before = view.cuts[-1].known if view.turns > 1 and view.cuts else 0
        behind = max(0, before - self.committed(session))
        prompt = view.known.take(turn.prompt_length)
        asking = self._try(session, view.opened_at, turn, profile, prompt, behind)
        task = asyncio.create_task(asking, name="router's question")
        tasks = self._open.setdefault(session, [])
        tasks.append(task)
        task.add_done_callback(partial(self._ended, session))
        if len(tasks) > LINE_QUESTIONS:
            tasks[0].cancel()

    async def _try(
        self,
        session: str,
        opened_at: float,
        turn: TurnView,
        profile: ShadowProfile,
        prompt: Ids,
        behind: int,
    ) -> None:
        try:
            async with asyncio.timeout(profile.router_timeout_s):
                await self.ready()
            await self._check_still_there(session, opened_at)
            position = self._insertion_point(prompt)
            if position is None:
                self._skip("no message ends in the prompt")
                return
            self._counts["asked"] += 1
            reply = await self._ask(session, turn, profile, prompt.take(position), behind)
        except TimeoutError:
            self._skip("the model was not loaded in time")
        except ShadowError as error:
            log.info("the router's question about session %s: %s", session, error)
            self._skip(error.code)
        else:
            self._took(turn, reply, behind)

    async def _ask(
        self, session: str, turn: TurnView, profile: ShadowProfile, base: Ids, behind: int
    ) -> Reply:
        classes = profile.router_classes
        wording = Wording(ROUTER_KIND, shown_classes(classes), profile.router_chat)
        (reply,) = await self.line.ask_many(
            session,
            [Ask(profile.router_question, list(classes), wording=wording)],
            wait="position",
            position=len(base),
            base=base,
            timeout_s=profile.router_timeout_s,
            patient=True,
            beside=Beside(turn.turn, partial(_beside, turn, behind)),
        )
        return reply

    async def _check_still_there(self, session: str, opened_at: float) -> None:
        """While the model was waited for, the session may have gone, and another have come."""
        view = (await self.sessions.load(session)).tentative
        if view is None or view.opened_at != opened_at:
            raise NotFoundError(f"session {session!r} is gone", field="session", found=session)

    def _insertion_point(self, prompt: Ids) -> int | None:
        """Behind the prompt's last ``<|im_end|>``."""
        assert self.line.vocabulary is not None, "a model is loaded with its vocabulary"
        ends = np.flatnonzero(prompt.array() == self.line.vocabulary.special.im_end)
        return int(ends[-1]) + 1 if len(ends) else None

    def _took(self, turn: TurnView, reply: Reply, behind: int) -> None:
        probability = reply.probabilities[reply.label]
        agree = _agree(turn, reply.label)
        self._counts["answered"] += 1
        self._counts["compared"] += agree is not None
        self._counts["agreed"] += bool(agree)
        self._last.append(
            RouterReply(
                reply.session,
                turn.turn,
                *(reply.label, probability, turn.router, turn.decided, agree),
                behind,
                reply.lag_ms,
            )
        )

    def _ended(self, session: str, task: asyncio.Task[None]) -> None:
        self.bound.give()
        tasks = self._open[session]
        tasks.remove(task)
        if not tasks:
            del self._open[session]

    def _skip(self, why: str) -> None:
        self._skipped[why] += 1


def _beside(turn: TurnView, behind: int, answer: t.Answer) -> t.RouterAnswer:
    """What is journaled with the answer."""
    return t.RouterAnswer(
        question=answer.question,
        label=answer.label,
        probability=max(answer.probabilities),
        router=turn.router,
        decided=turn.decided,
        agree=_agree(turn, answer.label),
        position=answer.position,
        behind=behind,
        lag_ms=answer.lag_ms,
    )


def _agree(turn: TurnView, label: str) -> bool | None:
    return None if turn.router is None else label == turn.router


def _answered(view: SessionView, turn: TurnView) -> bool:
    """Whether this turn's question was answered, by an earlier process perhaps."""
    began = turn.started_at
    return any(a.kind == ROUTER_KIND and a.answered_at >= began for a in view.answers)
