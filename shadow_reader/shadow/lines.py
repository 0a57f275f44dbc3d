"""Live lines: what is in memory of the journal's sessions, and what is on its way into it.

Laws: every line has two views (``live.py``). When a commit fails, the views of what was on its way
are forgotten and folded again from the journal. Questions that an earlier process left open are
ended then: nobody waits for them. A session's lines are told apart in ``events/branches.py``; but
for ``spoken`` and ``_lines``, everything here knows one line and its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shadow_reader.clock import Clock
from shadow_reader.errors import BusyError, InvalidInputError
from shadow_reader.events import types as t
from shadow_reader.events.branches import MAX_BRANCHES, line_name, line_names, split_name
from shadow_reader.events.decide import Limits, check_name
from shadow_reader.events.fold import fold, fold_all
from shadow_reader.events.journal import Journal
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.live import Accepted, Committing, LiveSession, Receipt
from shadow_reader.shadow.tally import Tally

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveLines:
    """All lines in memory, over one journal.

    Args:
        capacity: most lines kept in view; the one not heard of for longest makes room.
        on_change: told the line's name after each commit, each erasure, and when it was loaded.
        messages: how many messages of the world were taken.
        changed: lines that were loaded, heard of or committed since ``take_changed``.
        tally: counts what is committed.
        turns_begun: turns taken whose profile has them read.
    """

    journal: Journal
    clock: Clock
    limits: Limits
    capacity: int
    on_change: Callable[[str], None] = lambda _session: None
    messages: int = 0
    changed: dict[str, None] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    turns_begun: int = 0
    _live: dict[str, LiveSession] = field(default_factory=dict)
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _asked_here: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.journal.on_failure(self._forget_unsure)

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
        """The line of that name, folded from the journal if it is not in memory."""
        check_name(split_name(session)[0], field="session")
        while True:
            live = self._live.get(session)
            if live is not None:
                return live
            await asyncio.shield(self._start_loading(session))

    async def spoken(self, session: str) -> LiveSession:
        """The line that whoever names the session means: the one heard of last, of those whose turn
        runs if there are any. A name such as ``s1~branch2`` means that line."""
        base, branch = split_name(session)
        if branch is not None:
            return await self.load(line_name(base, branch))
        lines = await self._family(await self.load(session))
        return max(lines, key=lambda live: (live.running, live.heard_s, live.message))

    # -- ready for a message ------------------------------------------------------------------

    async def _lines(self, session: str) -> tuple[LiveSession, ...]:
        """The session's lines, ready for a message; nothing may be awaited before it.

        Raises:
            InvalidInputError: the name of a branch; the world speaks to sessions.
        """
        base, branch = split_name(session)
        if branch is not None:
            raise InvalidInputError(
                f"session {session!r} is the name of a branch of {base!r}: name the session",
                field="session",
                found=session,
            )
        while True:
            main = await self._heard(session)
            if not main.branches:
                return (main,)
            names = line_names(session, main.branches)[1:]
            lines = [live for name in names if (live := self._live.get(name)) is not None]
            erasing = [live.erasing for live in lines if live.erasing is not None]
            if erasing:
                await asyncio.wait(erasing)
            elif len(lines) == len(names):
                return (main, *lines)
            else:
                await self._family(main)

    async def _family(self, main: LiveSession) -> tuple[LiveSession, ...]:
        """All lines of a session, loaded where need be."""
        names = line_names(main.session, main.branches)[1:]
        return (main, *[await self.load(name) for name in names])

    async def _heard(self, session: str) -> LiveSession:
        """The line, ready for a message of the world's; nothing may be awaited before it."""
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

    # -- loading ------------------------------------------------------------------------------

    def _start_loading(self, session: str) -> asyncio.Task[None]:
        task = self._loading.get(session)
        if task is None:
            task = asyncio.create_task(self._load(session), name=f"load {session}")
            self._loading[session] = task
        return task

    async def _load(self, session: str) -> None:
        try:
            view: SessionView | None = None
            prompted = 0
            async for entry in self.journal.entries(session=session):
                view = fold(view, entry)
                prompted = entry.seq if isinstance(entry.event, t.Prompt) else prompted
            branches = await self._count_branches(session) if view is not None else 0
            self._make_room()
            now = self.clock.monotonic()
            past = max(0.0, self.clock.wall() - view.last_at) if view else 0.0
            owner = split_name(session)[0]
            live = LiveSession(session, owner, view, view, now - past, now, prompted, branches)
            if view is not None and view.turn is not None and view.turn.first_token_at is not None:
                live.decoding, live.decoding_s = view.turn.turn, now
            self._live[session] = live
            self._tell(session)
            if view is not None:
                left = [q for q in view.questions if q not in self._asked_here]
                self._submit(live, "", [t.QuestionEnded(question, "restart") for question in left])
        finally:
            del self._loading[session]

    async def _count_branches(self, session: str) -> int:
        """How many lines the journal has beside the session's first; they are begun in order."""
        base, branch = split_name(session)
        count = 0
        while branch is None and count < MAX_BRANCHES:
            newest = self.journal.entries(
                session=line_name(base, count + 1), newest_first=True, limit=1
            )
            last = [entry async for entry in newest]
            if not last or isinstance(last[0].event, t.SessionErased):
                break
            count += 1
        return count

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
        turn = view.turn if view is not None else None
        if turn is not None and turn.first_token_at is not None and live.decoding != turn.turn:
            live.decoding, live.decoding_s = turn.turn, self.clock.monotonic()
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
    return Accepted(live.owner, turn, len(view.known), view.output_length, None)


def _turn_of(live: LiveSession, turn: str, event: t.SessionEvent) -> str:
    """A superseded turn's end belongs to that turn, a session's opening to none."""
    if isinstance(event, t.SessionOpened):
        return ""
    if isinstance(event, t.TurnEnded) and live.tentative and live.tentative.turn:
        return live.tentative.turn.turn
    return turn
