"""Live sessions: what the world says is decided, journaled and folded here, in that order.

Laws:

1. Every session has two views. ``tentative`` holds all that was submitted, and decisions are made
   on it; ``durable`` holds what is committed, and the reader reads only that.
2. Between the wait for room and the submit there is no other await, so what was decided on is what
   is journaled behind.
3. When a commit fails, the session's live views are forgotten and folded again from the journal.
   Questions that an earlier process left open are ended then: nobody waits for them.
4. What an acknowledgement says is committed; so is what a repeated message only confirms.
5. An erased session is gone for the reader at once, and for the world's next message only when the
   erasure is committed: the two never mix.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from shadow_reader.clock import Clock
from shadow_reader.errors import BusyError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.decide import (
    Limits,
    check_name,
    decide_end,
    decide_first_token,
    decide_output,
    decide_prompt,
    decide_question,
)
from shadow_reader.events.fold import fold, fold_all
from shadow_reader.events.ids import EMPTY, Ids, checked_ids, checked_lists
from shadow_reader.events.journal import Journal
from shadow_reader.events.outputs import take_outputs
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.live import Accepted, Committing, Erased, LiveSession, Receipt, RunReceipt
from shadow_reader.shadow.tally import Tally

__all__ = ["Accepted", "Erased", "LiveSession", "Receipt", "RunReceipt", "Sessions"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sessions:
    """All live sessions over one journal.

    Args:
        capacity: most sessions kept in view; the one not heard of for longest makes room.
        on_change: told the session's name after each commit, each erasure, and when it was loaded.
        messages: how many messages of the world were taken.
        changed: live sessions that were loaded, heard of or committed since ``take_changed``.
        tally: counts what is committed.
    """

    journal: Journal
    clock: Clock
    limits: Limits
    capacity: int
    on_change: Callable[[str], None] = lambda _session: None
    messages: int = 0
    changed: dict[str, None] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    _live: dict[str, LiveSession] = field(default_factory=dict)
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _asked_here: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.journal.on_failure(self._forget_unsure)

    # -- what the world says ------------------------------------------------------------------

    async def prompt(
        self,
        session: str,
        ids: object,
        *,
        turn: str | None = None,
        keep: int | None = None,
        router: str | None = None,
    ) -> Receipt:
        """A turn begins; see ``decide_prompt``. Without a turn id one is made."""
        name = check_name(turn, field="turn") if turn is not None else uuid4().hex
        new = checked_ids(ids, field="ids", vocabulary=self.limits.vocabulary)
        live = await self._heard(session)
        events = decide_prompt(
            live.tentative, turn=name, keep=keep, ids=new, router=router, limits=self.limits
        )
        return self._accept(live, name, events)

    async def first_token(self, session: str, turn: str) -> Receipt:
        """Prefill is over; see ``decide_first_token``."""
        live = await self._heard(session)
        return self._accept(live, turn, decide_first_token(live.tentative, turn=turn))

    async def output(self, session: str, turn: str, *, offset: int, ids: object) -> Receipt:
        """Output ids; see ``decide_output``."""
        new = checked_ids(ids, field="ids", vocabulary=self.limits.vocabulary)
        live = await self._heard(session)
        events = decide_output(
            live.tentative, turn=turn, offset=offset, ids=new, limits=self.limits
        )
        return self._accept(live, turn, events)

    async def outputs(
        self, session: str, turn: str, deltas: Sequence[tuple[int, object]]
    ) -> RunReceipt:
        """Several outputs of one turn: each is decided as ``output`` would, all commit together."""
        lists = checked_lists(
            [ids for _, ids in deltas], field="ids", vocabulary=self.limits.vocabulary
        )
        checked = [(offset, ids) for (offset, _), ids in zip(deltas, lists, strict=True)]
        live = await self._heard(session)
        at = self.clock.wall()
        run = take_outputs(live.tentative, checked, at=at, turn=turn, limits=self.limits)
        future = live.last if live.inflight else None
        if run.events:
            drafts = [t.Draft(at, session, turn, event) for event in run.events]
            future = asyncio.ensure_future(self.journal.submit(drafts))
            self._track(live, run.view, drafts, future)
        self._took(live, len(deltas))
        return RunReceipt(run.outcomes, future, bool(run.events))

    async def end(
        self, session: str, turn: str, *, reason: t.EndReason = "stop", produced: int | None = None
    ) -> Receipt:
        """The turn ends; see ``decide_end``."""
        live = await self._heard(session)
        events = decide_end(live.tentative, turn=turn, reason=reason, produced=produced)
        return self._accept(live, turn, events)

    async def question(self, session: str, question: t.Question) -> Receipt:
        """A question was asked; see ``decide_question``. Its position is set to the known ids."""
        live = await self._heard(session)
        view = live.tentative
        if view is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        placed = t.Question(
            question.question, question.kind, len(view.known), question.ids, question.choices
        )
        decide_question(view, placed, self.limits)
        receipt = self._accept(live, view.turn.turn if view.turn else "", (placed,))
        self._asked_here.add(placed.question)
        return receipt

    async def erase(self, session: str) -> Erased:
        """Remove the session's events from the journal; only the counts stay.

        Raises:
            NotFoundError: no such session.
        """
        live = await self._heard(session)
        if live.tentative is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        draft = t.Draft(self.clock.wall(), session, "", t.SessionErased(0, 0))
        future = asyncio.ensure_future(self.journal.erase(draft))
        self._track(live, None, [draft], future)
        live.durable = None
        event = (await asyncio.shield(future)).event
        assert isinstance(event, t.SessionErased)
        return Erased(session, event.event_count, event.id_count)

    # -- what the reader says -----------------------------------------------------------------

    async def record(
        self,
        session: str,
        *events: t.SessionEvent,
        read: Ids = EMPTY,
        opened_at: float | None = None,
    ) -> Receipt | None:
        """Journal what the reader did. None: the session is gone, or nothing of it holds any more.

        Args:
            read: the ids that were read: a checkpoint is left out when these are no longer what is
                known up to its position, since its digest would hold for nothing.
            opened_at: when the session was opened that it was done to; a session of the same name
                that was opened since is another one.
        """
        ended = [e.question for e in events if isinstance(e, t.Answer | t.QuestionEnded)]
        try:
            live = await self._ready(session)
        finally:
            # Whatever becomes of it: nobody waits for these questions any more.
            self._asked_here.difference_update(ended)
        view = live.tentative
        if view is None or opened_at not in (None, view.opened_at):
            return None
        kept = tuple(event for event in events if _still_holds(view, read, event))
        return self._submit(live, view.turn.turn if view.turn else "", kept) if kept else None

    async def end_stale_turns(self, timeout_s: float) -> float | None:
        """End turns without news for ``timeout_s``; seconds until the next one may end."""
        soonest: float | None = None
        for live in tuple(self._live.values()):
            if not live.running:
                continue
            left = self._news_s(live) + timeout_s - self.clock.monotonic()
            if left > 0:
                soonest = left if soonest is None else min(soonest, left)
                continue
            ready = await self._ready(live.session)
            # While there was no room, news may have come, or another turn.
            stale = self._news_s(ready) + timeout_s <= self.clock.monotonic()
            if ready.running and stale:
                self._submit(ready, "", (t.TurnEnded("timeout"),))
        return soonest

    # -- views --------------------------------------------------------------------------------

    def live(self) -> tuple[LiveSession, ...]:
        """All sessions in memory, in no order that means anything."""
        return tuple(self._live.values())

    def take_changed(self) -> dict[str, None]:
        """``changed``, an ordered set, which is empty afterwards."""
        changed, self.changed = self.changed, {}
        return changed

    def peek(self, session: str) -> LiveSession | None:
        """The session if it is in memory."""
        return self._live.get(session)

    async def load(self, session: str) -> LiveSession:
        """The session, folded from the journal if it is not in memory."""
        check_name(session, field="session")
        while True:
            live = self._live.get(session)
            if live is not None:
                return live
            await asyncio.shield(self._start_loading(session))

    async def _heard(self, session: str) -> LiveSession:
        """The session, ready for a message of the world's; nothing may be awaited before it."""
        while True:
            live = await self._ready(session)
            erasing = live.erasing
            if erasing is None:
                return live
            await asyncio.wait([erasing])

    async def _ready(self, session: str) -> LiveSession:
        """The session with room in the journal; nothing may be awaited before the submit."""
        while True:
            live = await self.load(session)
            await self.journal.room()
            if self._live.get(session) is live:
                return live

    def _start_loading(self, session: str) -> asyncio.Task[None]:
        task = self._loading.get(session)
        if task is None:
            task = asyncio.create_task(self._load(session), name=f"load {session}")
            self._loading[session] = task
        return task

    async def _load(self, session: str) -> None:
        try:
            view: SessionView | None = None
            async for entry in self.journal.entries(session=session):
                view = fold(view, entry)
            self._make_room()
            now = self.clock.monotonic()
            past = max(0.0, self.clock.wall() - view.last_at) if view else 0.0
            live = LiveSession(session, view, view, heard_s=now - past, loaded_s=now)
            self._live[session] = live
            self._tell(session)
            if view is not None:
                left = [q for q in view.questions if q not in self._asked_here]
                self._submit(live, "", [t.QuestionEnded(question, "restart") for question in left])
        finally:
            del self._loading[session]

    def _make_room(self) -> None:
        if len(self._live) < self.capacity:
            return
        idle = [live for live in self._live.values() if live.may_leave]
        if not idle:
            raise BusyError(
                f"{len(self._live)} sessions are active; the limit is {self.capacity}",
                field="session",
                limit=self.capacity,
            )
        # A name that somebody only asked for goes before every session that there is.
        first = min(idle, key=lambda live: (live.tentative is not None, live.heard_s))
        self._leave(first.session)

    # -- submitting ---------------------------------------------------------------------------

    def _accept(self, live: LiveSession, turn: str, events: Sequence[t.SessionEvent]) -> Receipt:
        """Submit what a message of the world's means; a refused one counts as not heard."""
        receipt = self._submit(live, turn, events)
        self._took(live, 1)
        return receipt

    def _took(self, live: LiveSession, messages: int) -> None:
        self.messages += messages
        live.message = self.messages
        live.heard_s = self.clock.monotonic()
        self.changed[live.session] = None

    def _submit(self, live: LiveSession, turn: str, events: Sequence[t.SessionEvent]) -> Receipt:
        if not events:
            return Receipt(_accepted(live, turn), live.last if live.inflight else None, False)
        at = self.clock.wall()
        drafts = [t.Draft(at, live.session, _turn_of(live, turn, event), event) for event in events]
        view = fold_all(live.tentative, drafts)
        future = asyncio.ensure_future(self.journal.submit(drafts))
        self._track(live, view, drafts, future)
        return Receipt(_accepted(live, turn), future, True)

    def _track(
        self,
        live: LiveSession,
        view: SessionView | None,
        drafts: Sequence[t.Draft],
        future: Committing,
    ) -> None:
        live.tentative = view
        live.inflight += 1
        live.last = future

        def done(finished: asyncio.Future[Any]) -> None:
            live.inflight -= 1
            if finished.cancelled() or finished.exception() is not None:
                return
            self.tally.committed(drafts)
            live.durable = view
            if live.tentative is None and self._live.get(live.session) is live:
                self._leave(live.session)
            self._tell(live.session)

        future.add_done_callback(done)

    def _tell(self, session: str) -> None:
        if session in self._live:
            self.changed[session] = None
        self.on_change(session)

    def _leave(self, session: str) -> None:
        del self._live[session]
        self.changed.pop(session, None)

    @staticmethod
    def _news_s(live: LiveSession) -> float:
        """Since when there is no news, as far as this process can have missed none."""
        return max(live.heard_s, live.loaded_s)

    def _forget_unsure(self) -> None:
        """A commit failed: what was decided on it is void."""
        self.tally.commit_failures += 1
        for live in tuple(self._live.values()):
            if live.inflight:
                self._leave(live.session)
                self._start_loading(live.session).add_done_callback(_log_failure)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a session could not be folded again from the journal: %s", error)


def _accepted(live: LiveSession, turn: str) -> Accepted:
    view = live.tentative
    assert view is not None
    return Accepted(live.session, turn, len(view.known), view.output_length, None)


def _turn_of(live: LiveSession, turn: str, event: t.SessionEvent) -> str:
    """A superseded turn's end belongs to that turn, a session's opening to none."""
    if isinstance(event, t.SessionOpened):
        return ""
    if isinstance(event, t.TurnEnded) and live.tentative and live.tentative.turn:
        return live.tentative.turn.turn
    return turn


def _still_holds(view: SessionView, read: Ids, event: t.SessionEvent) -> bool:
    match event:
        case t.Checkpoint():
            return view.known.common_prefix(read) >= event.position
        case t.Answer() | t.QuestionEnded():
            return event.question in view.questions
        case _:
            return True
