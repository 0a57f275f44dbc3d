"""Live sessions: what the world says is decided, journaled and folded here, in that order.

Laws:

1. Every line has two views. ``tentative`` holds all that was submitted, and decisions are made on
   it; ``durable`` holds what is committed, and the reader reads only that.
2. Between the wait for room and the submit there is no other await, so what was decided on is what
   is journaled behind.
3. What an acknowledgement says is committed; so is what a repeated message only confirms.
4. An erased session is gone for the reader at once, and for the world's next message only when the
   erasure is committed: the two never mix.
5. What the world says of a session goes to the line of talk that it is meant for: a turn's output
   to the turn's, a prompt to the one that it goes on with (``events/branches.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from shadow_reader.errors import InvalidInputError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.branches import Line, choose_line, continues, line_name, split_name
from shadow_reader.events.decide import (
    check_name,
    check_running,
    decide_end,
    decide_first_token,
    decide_labels,
    decide_output,
    decide_prompt,
    decide_questions,
)
from shadow_reader.events.ids import EMPTY, Ids, checked_ids, checked_lists
from shadow_reader.events.outputs import take_outputs
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.lines import LiveLines
from shadow_reader.shadow.live import Accepted, Erased, LiveSession, Receipt, RunReceipt

__all__ = ["Accepted", "Erased", "LiveSession", "Receipt", "RunReceipt", "Sessions"]


@dataclass(slots=True)
class Sessions(LiveLines):
    """All live sessions over one journal: what the world and the reader say of them."""

    # -- what the world says ------------------------------------------------------------------

    async def prompt(
        self,
        session: str,
        ids: object,
        *,
        turn: str | None = None,
        keep: int | None = None,
        keep_of: str | None = None,
        router: str | None = None,
        profile: str | None = None,
        decided: bool | None = None,
    ) -> Receipt:
        """A turn begins; see ``decide_prompt``. Without a turn id one is made.

        Args:
            keep_of: the turn on whose line ``keep`` counts; without it, that of the last prompt.

        Raises:
            InvalidInputError: ``keep_of`` without ``keep``, or what ``decide_prompt`` refuses.
        """
        if keep_of is not None and keep is None:
            raise InvalidInputError(
                "keep_of says whose ids keep counts: give keep too", field="keep_of"
            )
        name = check_name(turn, field="turn") if turn is not None else uuid4().hex
        new = checked_ids(ids, field="ids", vocabulary=self.limits.vocabulary)
        live, whole = await self._prompted(session, name, keep, keep_of, new)
        if whole is not None:
            keep, new = None, whole
        events = decide_prompt(
            live.tentative,
            turn=name,
            keep=keep,
            ids=new,
            router=router,
            limits=self.limits,
            profile=profile,
            decided=decided,
        )
        receipt = self._accept(live, name, events)
        live.prompted_by(receipt)
        turn_view = live.tentative.turn if live.tentative is not None else None
        if receipt.is_new and turn_view is not None and self.limits.reads(turn_view.profile):
            self.turns_begun += 1
        if live.session != live.owner:
            main, branch = self._live[live.owner], split_name(live.session)[1]
            main.branches = max(main.branches, branch or 0)
        return receipt

    async def first_token(self, session: str, turn: str) -> Receipt:
        """Prefill is over; see ``decide_first_token``."""
        live = _line_of(await self._lines(session), turn)
        return self._accept(live, turn, decide_first_token(live.tentative, turn=turn))

    async def output(self, session: str, turn: str, *, offset: int, ids: object) -> Receipt:
        """Output ids; see ``decide_output``."""
        new = checked_ids(ids, field="ids", vocabulary=self.limits.vocabulary)
        live = _line_of(await self._lines(session), turn)
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
        live = _line_of(await self._lines(session), turn)
        at = self.clock.wall()
        run = take_outputs(live.tentative, checked, at=at, turn=turn, limits=self.limits)
        future = live.last if live.inflight else None
        if run.events:
            drafts = [t.Draft(at, live.session, turn, event) for event in run.events]
            future = asyncio.ensure_future(self.journal.submit(drafts))
            self._track(live, run.view, drafts, future)
        self._took(live, len(deltas))
        return RunReceipt(run.outcomes, future, bool(run.events))

    async def line_of_turn(self, session: str, turn: str) -> LiveSession:
        """The line whose last turn this is.

        Raises:
            NotFoundError: no such session or turn. ConflictError: the turn has ended.
        """
        live = _line_of(await self._lines(session), turn)
        check_running(live.tentative, turn)
        return live

    async def end(
        self, session: str, turn: str, *, reason: t.EndReason = "stop", produced: int | None = None
    ) -> Receipt:
        """The turn ends; see ``decide_end``."""
        live = _line_of(await self._lines(session), turn)
        events = decide_end(live.tentative, turn=turn, reason=reason, produced=produced)
        return self._accept(live, turn, events)

    async def questions(self, session: str, questions: Sequence[t.Question]) -> Receipt:
        """Questions were asked, all or none; see ``decide_questions``. Their position is set to the
        known ids.

        ``session`` is the name of one line; see ``spoken``.
        """
        live = await self._heard(session)
        view = live.tentative
        if view is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        placed = [replace(question, position=len(view.known)) for question in questions]
        decided = decide_questions(view, placed, self.limits)
        receipt = self._accept(live, view.turn.turn if view.turn else "", decided)
        self._asked_here.update(question.question for question in decided)
        return receipt

    async def labels(self, session: str, labels: Sequence[t.Label]) -> Receipt:
        """Labels were given, all or none; see ``decide_labels``."""
        live = await self.spoken(session)
        if live.tentative is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        live = await self._heard(live.session)
        view = live.tentative
        if view is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        turn = view.turn.turn if view.turn is not None else ""
        return self._accept(live, turn, decide_labels(view, labels))

    async def erase(self, session: str) -> Erased:
        """Remove the events of all lines of the session from the journal; only the counts stay.

        Raises:
            NotFoundError: no such session.
        """
        lines = await self._lines(session)
        if lines[0].tentative is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        at = self.clock.wall()
        there = [live for live in lines if live.tentative is not None]
        drafts = [t.Draft(at, live.session, "", t.SessionErased(0, 0)) for live in there]
        erasure = asyncio.ensure_future(self.journal.erase(*drafts))
        for live, draft in zip(there, drafts, strict=True):
            self._track(live, None, [draft], erasure)
            live.durable = None
        events = [entry.event for entry in await asyncio.shield(erasure)]
        gone = [event for event in events if isinstance(event, t.SessionErased)]
        return Erased(
            session,
            sum(event.event_count for event in gone),
            sum(event.id_count for event in gone),
            len(lines) - 1,
        )

    # -- what the reader says -----------------------------------------------------------------

    async def record(
        self,
        session: str,
        *events: t.SessionEvent,
        read: Ids = EMPTY,
        opened_at: float | None = None,
        turn: str | None = None,
    ) -> Receipt | None:
        """Journal what the reader did. None: the session is gone, or nothing of it holds any more.

        Args:
            read: the ids that were read: a checkpoint is left out when these are no longer what is
                known up to its position, since its digest would hold for nothing.
            opened_at: when the session was opened that it was done to; a session of the same name
                that was opened since is another one.
            turn: whose turn it belongs to; None: the last one's.
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
        last = view.turn.turn if view.turn else ""
        return self._submit(live, last if turn is None else turn, kept) if kept else None

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

    # -- small things -------------------------------------------------------------------------

    async def _prompted(
        self, session: str, turn: str, keep: int | None, keep_of: str | None, new: Ids
    ) -> tuple[LiveSession, Ids | None]:
        """The line that a prompt goes to, and the whole prompt where that is not ``keep``'s line.

        Nothing may be awaited before the submit.
        """
        limits = self.limits
        while True:
            lines = await self._lines(session)
            said = next((live for live in lines if live.has_turn(turn)), None)
            if said is not None:
                return said, None
            if keep is not None:
                base = _kept_line(lines, keep_of)
                view = base.tentative
                beyond = view is None or not 0 <= keep <= len(view.known)
                if beyond or continues(view, keep, None, branch_min=limits.branch_min):
                    return base, None
                assert view is not None
                new, keep = Ids.join([view.known.take(keep), new]), None
            found = [Line(live.tentative, live.heard_s) for live in lines]
            index = choose_line(found, new, branch_min=limits.branch_min, branches=limits.branches)
            if index < len(lines):
                return lines[index], new
            one_more = self._live.get(line_name(session, index))
            if one_more is None:
                await self.load(line_name(session, index))
            elif one_more.erasing is not None:
                await asyncio.wait([one_more.erasing])
            else:
                return one_more, new

    @staticmethod
    def _news_s(live: LiveSession) -> float:
        """Since when there is no news, as far as this process can have missed none."""
        return max(live.heard_s, live.loaded_s)


def _line_of(lines: Sequence[LiveSession], turn: str) -> LiveSession:
    """The line that has the turn; the first one where none has."""
    if len(lines) == 1:
        return lines[0]
    return next((live for live in lines if live.has_turn(turn)), lines[0])


def _kept_line(lines: Sequence[LiveSession], keep_of: str | None) -> LiveSession:
    """The line on which ``keep`` counts.

    Raises:
        NotFoundError: ``keep_of`` is no turn of the session.
    """
    if keep_of is None:
        return max(lines, key=lambda live: live.prompted)
    for live in lines:
        if live.has_turn(keep_of):
            return live
    raise NotFoundError(f"no turn {keep_of!r} in this session", field="keep_of", found=keep_of)


def _still_holds(view: SessionView, read: Ids, event: t.SessionEvent) -> bool:
    match event:
        case t.Checkpoint():
            return view.known.common_prefix(read) >= event.position
        case t.Answer() | t.RouterAnswer() | t.QuestionEnded():
            return event.question in view.questions
        case _:
            return True
