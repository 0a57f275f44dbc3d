"""What the reader remembers of each session beside its state, and who makes room for whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shadow_reader.clock import Clock
from shadow_reader.errors import ModelError
from shadow_reader.events.branches import split_name
from shadow_reader.events.decide import Limits
from shadow_reader.events.view import MAX_CHECKPOINTS, SessionView
from shadow_reader.shadow.engine import Engine, StateStats
from shadow_reader.shadow.plan import Candidate
from shadow_reader.shadow.sessions import LiveSession, Sessions

PROFILE_OFF: Final = "the profile of its last turn has the shadow off"


@dataclass(slots=True)
class Notes:
    """Notes on one session.

    Attributes:
        aligned_turns: the view's turn count when the state was last compared with the ids.
        unserved_s: since when it is behind without a burst (monotonic); None: it is not.
        blocked: why it is not read; lifted by a message after ``blocked_at``, a message's number.
        mismatches: checkpoints whose digest was not the one journaled earlier (law 2 broken).
        moving: what its state waits for on its way between memory and disk; empty: nothing.
        snapshot_tried: no snapshot needs to be looked for before it is read from zero.
        refused: why its last snapshot was not used.
    """

    aligned_turns: int = -1
    unserved_s: float | None = None
    blocked: str = ""
    blocked_at: int = 0
    mismatches: int = 0
    moving: str = ""
    snapshot_tried: bool = False
    refused: str = ""


class Progress(NamedTuple):
    """Where a session stands.

    Attributes:
        known: ids committed in the journal. committed: the grid line that the state stands at.
        behind: known - committed.
        fresh: less than a chunk is unread, and the state was compared with the newest prompt: until
            then it may have read what no longer holds.
        stats: of the resident state; None where there is none.
    """

    known: int
    committed: int
    behind: int
    fresh: bool
    stats: StateStats | None


@dataclass(slots=True)
class Roster:
    """Notes on every session that is live or has a resident state.

    A thousand live sessions of which none changed cost nothing: only those that changed since the
    last look, or were then found to need something, are looked at.

    Attributes:
        foreground: what keeps the reader from reading at all; empty when nothing does.
    """

    sessions: Sessions
    engine: Engine
    clock: Clock
    foreground: str = ""
    _notes: dict[str, Notes] = field(default_factory=dict)
    _watched: dict[str, None] = field(default_factory=dict)
    _unaligned: dict[str, None] = field(default_factory=dict)
    _running: dict[str, None] = field(default_factory=dict)
    _grid: int = 0

    def __post_init__(self) -> None:
        self._grid = self.engine.identity.grid
        self._watched = dict.fromkeys(live.session for live in self.sessions.live())
        self._unaligned = dict(self._watched)
        self._running = {live.session: None for live in self.sessions.live() if live.running}

    def notes(self, session: str) -> Notes:
        """The session's notes; new ones for a new session."""
        found = self._notes.get(session)
        if found is None:
            found = self._notes[session] = Notes()
        return found

    def forget(self, session: str) -> None:
        """Keep nothing on the session."""
        self._notes.pop(session, None)
        self._watched.pop(session, None)

    def committed(self, session: str) -> int:
        """The grid line the session's state stands at; 0 where none is resident."""
        stats = self.engine.state_stats(session)
        return stats.committed if stats else 0

    def progress(self, live: LiveSession) -> Progress:
        """Where the session stands: the one place that decides what is behind and what is fresh."""
        view = live.durable
        stats = self.engine.state_stats(live.session)
        known = len(view.known) if view is not None else 0
        committed = min(stats.committed, known) if stats is not None else 0
        aligned = view is not None and self.notes(live.session).aligned_turns == view.turns
        behind = known - committed
        return Progress(known, committed, behind, aligned and behind < self._grid, stats)

    def fresh(self, live: LiveSession) -> bool:
        """See ``Progress.fresh``."""
        return self.progress(live).fresh

    def has_read(self, view: SessionView, position: int) -> bool:
        """Whether the state has read every whole chunk of the view's first ``position`` ids, and
        nothing that the view does not hold. Whoever has the lease may rely on it."""
        aligned = self.notes(view.session).aligned_turns == view.turns
        return aligned and self.committed(view.session) >= position // self._grid * self._grid

    def reads(self, view: SessionView) -> bool:
        """Whether the profile of the session's last turn has it read."""
        return view.turn is None or self.sessions.limits.reads(view.turn.profile)

    def block(self, session: str, why: str, seen: int) -> None:
        """Do not read the session until its next message after number ``seen``.

        ``seen`` is ``Sessions.messages`` from before whatever failed: a message that came while it
        did is a new one.
        """
        notes = self.notes(session)
        notes.blocked, notes.blocked_at = why, seen
        self._watched[session] = None

    def heard_s(self, session: str) -> float:
        """When the session was last heard of, monotonic; minus infinity when it is not live."""
        live = self.sessions.peek(session)
        return live.heard_s if live else float("-inf")

    def known(self, session: str) -> SessionView | None:
        """What is committed of the session; None: it is gone, or being folded again."""
        live = self.sessions.peek(session)
        return live.durable if live else None

    def to_align(self) -> Iterator[LiveSession]:
        """Sessions with a prompt that the state was not compared with yet."""
        self._take_changed()
        for name in tuple(self._unaligned):
            live = self.sessions.peek(name)
            if live is not None and self._to_align(live):
                yield live
            else:
                del self._unaligned[name]

    def any_runs(self) -> bool:
        """Whether a turn runs, committed or not."""
        self._take_changed()
        for name in tuple(self._running):
            live = self.sessions.peek(name)
            if live is not None and live.running:
                return True
            del self._running[name]
        return False

    def running(self) -> list[LiveSession]:
        """The lines whose turn runs, committed or not."""
        self._take_changed()
        found = [(name, self.sessions.peek(name)) for name in self._running]
        running = [live for _, live in found if live is not None and live.running]
        if len(running) < len(found):
            self._running = {live.session: None for live in running}
        return running

    def candidates(
        self,
        asked: Collection[str] = (),
        cost_s: Callable[[int], float | None] = lambda _position: None,
    ) -> list[Candidate]:
        """The live sessions that the plan must see: behind, running, or asked about.

        A session whose opening is not committed yet is among them while its turn runs. ``cost_s``
        says what a chunk at a position will take.
        """
        now = self.clock.monotonic()
        found = []
        self._watched.update(dict.fromkeys(asked))
        for live in self._look():
            view = live.durable
            unread = view is not None and not self.reads(view)
            known = len(view.known) if view is not None and not unread else 0
            notes = self.notes(live.session)
            behind = known - self.committed(live.session) >= self._grid
            if not behind:
                notes.unserved_s = None
            elif notes.unserved_s is None:
                notes.unserved_s = now
            if notes.blocked and live.message > notes.blocked_at:
                notes.blocked = ""
            needs = behind or live.running or live.session in asked
            if not (needs or notes.blocked or notes.moving or self._to_align(live)):
                self._watched.pop(live.session, None)
            if needs:
                progress = self.progress(live)
                found.append(
                    Candidate(
                        session=live.session,
                        known=progress.known,
                        committed=progress.committed,
                        running=live.running,
                        heard_s=live.heard_s,
                        unserved_s=now if notes.unserved_s is None else notes.unserved_s,
                        blocked=notes.blocked or (PROFILE_OFF if unread else ""),
                        moving=bool(notes.moving),
                        cost_s=cost_s(progress.committed),
                    )
                )
        return found

    def why_unread(self, session: str, behind: int) -> str:
        """Why a session that is behind is not being read; empty when it is, or is not behind."""
        view, notes = self.known(session), self.notes(session)
        if view is not None and not self.reads(view):
            return PROFILE_OFF
        waits = self.foreground if behind >= self._grid else ""
        return notes.moving or notes.blocked or waits

    def the_running(self) -> str:
        """A session whose turn runs, as last looked at; empty when there is none."""
        return next(iter(self._running), "")

    def _take_changed(self) -> None:
        changed = self.sessions.take_changed()
        for name in changed:
            live = self.sessions.peek(name)
            if live is not None and live.running:
                self._running[name] = None
        self._watched |= changed
        self._unaligned |= changed

    def _look(self) -> list[LiveSession]:
        """The live sessions that may need something."""
        self._take_changed()
        looked = [(name, self.sessions.peek(name)) for name in self._watched]
        self._watched = {name: None for name, live in looked if live is not None}
        return [live for _, live in looked if live is not None]

    def _to_align(self, live: LiveSession) -> bool:
        view = live.durable
        return view is not None and view.turns != self.notes(live.session).aligned_turns

    def victim(self, session: str) -> str | None:
        """Whose state makes room for ``session``: the one not heard of for longest.

        Never one that was heard of later than ``session`` itself.
        """
        return next(iter(self.elders(session)), None)

    def elders(self, session: str) -> list[str]:
        """Residents heard of less recently than ``session``, the least recently first."""
        mine = self.heard_s(session)
        return [name for name in self.residents() if name != session and self.heard_s(name) < mine]

    def residents(self) -> list[str]:
        """Lines with a resident state: first those that their session does not speak of now, then
        the one heard of least recently."""
        names = [name for name in self._notes if self.engine.state_stats(name) is not None]
        newest: dict[str, float] = {}
        for name in names:
            owner = split_name(name)[0]
            newest[owner] = max(newest.get(owner, float("-inf")), self.heard_s(name))

        def order(name: str) -> tuple[bool, float, str]:
            heard_s = self.heard_s(name)
            return heard_s >= newest[split_name(name)[0]], heard_s, name

        return sorted(names, key=order)

    def wants_snapshot(self, view: SessionView) -> bool:
        """Whether a snapshot may save reading the session from zero."""
        notes = self.notes(view.session)
        unread = len(view.known) >= self._grid and self.engine.state_stats(view.session) is None
        return unread and not notes.snapshot_tried

    def snapshot_tried(self, session: str, refused: str = "") -> None:
        """The session's snapshot was used, or is not there, or was refused: read the rest."""
        if session in self._notes:
            self._notes[session].snapshot_tried = True
            self._notes[session].refused = refused

    def dropped(self, session: str, why: str, seen: int) -> None:
        """Its state left memory; a snapshot of it may have been written. See ``block``."""
        self.notes(session).snapshot_tried = False
        self.block(session, why, seen)

    def moved(self, session: str) -> None:
        """What its state waited for is over.

        A prompt may have come meanwhile: what came back is compared with it.
        """
        if session in self._notes:
            self._notes[session].moving = ""
            self._notes[session].aligned_turns = -1
            self._watched[session] = None
            self._unaligned[session] = None

    def prune(self) -> None:
        """Forget sessions that are neither live nor resident, once they could be half of all."""
        if len(self._notes) <= len(self.sessions.live()) + self.engine.stats().sessions:
            return
        for name in tuple(self._notes):
            if self.sessions.peek(name) is None and self.engine.state_stats(name) is None:
                del self._notes[name]


def checkpoint_lines(view: SessionView, grid: int) -> frozenset[int]:
    """Grid lines where a checkpoint is due: at or below the last prompts' ends."""
    lines = sorted({end // grid * grid for end in view.prompt_ends} - {0})
    return frozenset(lines[-MAX_CHECKPOINTS:])


def check_read(session: str, view: SessionView | None, limits: Limits) -> None:
    """Raises:
    ModelError: the profile of the session's last turn has the shadow off.
    """
    if view is not None and view.turn is not None and not limits.reads(view.turn.profile):
        raise ModelError(
            f"session {session!r} is not read: {PROFILE_OFF}", field="session", found=session
        )
