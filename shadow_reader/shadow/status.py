"""How everything stands: plain frozen values that the API hands out as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from shadow_reader.bounds import Limit
from shadow_reader.events.journal import JournalStats
from shadow_reader.events.snapshots import SnapshotStats
from shadow_reader.events.types import EndReason
from shadow_reader.events.view import MAX_CUTS, AnswerView, SessionView
from shadow_reader.shadow.engine import Engine, EngineIdentity, EngineStats
from shadow_reader.shadow.holds import Hold
from shadow_reader.shadow.lease import LeaseStatus
from shadow_reader.shadow.narrator import NarratorStatus
from shadow_reader.shadow.roster import Roster
from shadow_reader.shadow.rounds import Rounds
from shadow_reader.shadow.router import RouterStatus
from shadow_reader.shadow.sessions import LiveSession
from shadow_reader.shadow.windows import Windows

SlotState: TypeAlias = Literal[
    "off", "waiting", "loading", "loaded", "releasing", "released", "failed"
]
ServiceState: TypeAlias = Literal["off", "ready", "failed", "closing"]
NO_MODEL = "no model is loaded (model is empty)"


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One line of a session's talk; most sessions have only one.

    Attributes:
        session: the line's name: the session's, or that with ``~branch`` and a number behind.
        branches: lines of the session beside its first; told at that one.
        known: ids the journal holds. committed: the grid line the state stands at.
        behind: known - committed. fresh: behind is less than one chunk.
        turn: the last turn's id; running: whether it runs. router: what the sender's router made
            of it. reason: why it ended; unsure: its sender counted other output ids than came.
        rewinds, reread, read: as folded from the journal.
        checkpoints: grid lines of the resident state's checkpoints.
        mismatches: digests that differed from journaled ones; anything but 0 is a fault of ours.
        bytes, pages: what the resident state takes.
        note: why it is not being read; empty when it is, or is fresh.
        rewritten: why it is read again turn after turn; empty when it is not.
        refused: why its last snapshot was not used; empty when it was, or there was none.
    """

    session: str
    branches: int
    known: int
    committed: int
    behind: int
    fresh: bool
    turns: int
    running: bool
    turn: str | None
    router: str | None
    reason: EndReason | None
    unsure: bool
    prompt: int
    output: int
    rewinds: int
    reread: int
    read: int
    checkpoints: tuple[int, ...]
    mismatches: int
    bytes: int
    pages: int
    open_questions: int
    answers: tuple[AnswerView, ...]
    opened_at: float
    last_at: float
    note: str
    rewritten: str
    refused: str


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The loaded model. ``engine`` names what decides the bits of a state."""

    engine: str
    identity: EngineIdentity
    memory: EngineStats
    vocabulary: int
    context_ids: int


@dataclass(frozen=True, slots=True)
class RationStatus:
    """What was used of one running turn: ``used_ms`` of the ``decode_ms`` since its first token,
    and ``left_ms`` that may be used now (below 0 after a slice that took longer than thought)."""

    session: str
    turn: str
    decode_ms: float
    used_ms: float
    left_ms: float
    slices: int


@dataclass(frozen=True, slots=True)
class WindowsStatus:
    """What keeps the shadow from doing something unasked, and what it may do all the same.

    Attributes:
        holds: that are on. box_lock: off, held by the reader, or free as far as was seen.
        share: of a turn's time. rations: of the turns that decode.
    """

    holds: tuple[Hold, ...]
    box_lock: Literal["off", "held", "free"]
    box_problem: str
    share: float
    rations: tuple[RationStatus, ...]


@dataclass(frozen=True, slots=True)
class RoundReply:
    """What a round gave: ids read in it, the time it took, and what the turn still allows."""

    read: int
    used_ms: float
    left_ms: float


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """Whether the model is in memory.

    Attributes:
        reason: why it is not, or how far it is; empty when it is.
        claim_bytes: what weights and cap take together; free_bytes: what was free when it was
            last looked at, before loading. None: not looked at yet.
    """

    state: SlotState
    reason: str
    claim_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the live sessions; each line of talk counts."""

    sessions: int
    known: int
    behind: int
    fresh: int
    running: int
    open_questions: int


@dataclass(frozen=True, slots=True)
class Status:
    """The whole service.

    Attributes:
        limits: every bound, and how much of it is in use.
        snapshots: as of the last one written, read or removed; None without a model or a disk.
        totals: over all live sessions.
        router: what became of the router's questions; None where no profile has them.
        narrator: None while no model is loaded.
        sessions: those heard of last, newest first, at most ``status_sessions``.
    """

    state: ServiceState
    reason: str
    uptime_s: float
    slot: SlotStatus
    model: EngineStatus | None
    journal: JournalStats
    snapshots: SnapshotStats | None
    lease: LeaseStatus
    windows: WindowsStatus
    limits: tuple[Limit, ...]
    totals: Totals
    router: RouterStatus | None
    narrator: NarratorStatus | None
    sessions: tuple[SessionStatus, ...]


def engine_status(engine: Engine) -> EngineStatus:
    """The engine's facts and what it holds."""
    identity = engine.identity
    return EngineStatus(
        identity.engine, identity, engine.stats(), engine.vocabulary, engine.context_ids
    )


def session_status(live: LiveSession, view: SessionView, roster: Roster | None) -> SessionStatus:
    """One session, from its committed view and its resident state."""
    progress = roster.progress(live) if roster else None
    stats = progress.stats if progress else None
    notes = roster.notes(live.session) if roster else None
    turn = view.turn
    return SessionStatus(
        session=live.session,
        branches=live.branches,
        known=len(view.known),
        committed=progress.committed if progress else 0,
        behind=progress.behind if progress else len(view.known),
        fresh=progress is not None and progress.fresh,
        turns=view.turns,
        running=view.running,
        turn=turn.turn if turn else None,
        router=turn.router if turn else None,
        reason=turn.reason if turn else None,
        unsure=turn is not None and turn.unsure,
        prompt=view.prompt_length,
        output=view.output_length,
        rewinds=view.rewinds,
        reread=view.reread,
        read=view.read,
        checkpoints=stats.checkpoints if stats else (),
        mismatches=notes.mismatches if notes else 0,
        bytes=stats.bytes if stats else 0,
        pages=stats.pages if stats else 0,
        open_questions=len(view.questions),
        answers=view.answers,
        opened_at=view.opened_at,
        last_at=view.last_at,
        note=roster.why_unread(live.session, progress.behind) if roster and progress else NO_MODEL,
        rewritten=why_rewritten(view, roster.engine.identity.grid) if roster else "",
        refused=notes.refused if notes else "",
    )


def why_rewritten(view: SessionView, grid: int) -> str:
    """Why a session is read again turn after turn; empty when it is not.

    It is when each of its last prompts kept less than half of what was known, and a chunk or more
    went: something that stands early in its prompts changes.
    """
    lost = [cut for cut in view.cuts if 2 * cut.keep < cut.known and cut.known - cut.keep >= grid]
    if len(lost) < MAX_CUTS:
        return ""
    newest = lost[-1]
    return (
        f"each of its last {MAX_CUTS} prompts kept less than half of what was known, "
        f"the newest {newest.keep} of {newest.known} ids: what follows is read again every turn"
    )


def windows_status(windows: Windows, rounds: Rounds | None, now_s: float) -> WindowsStatus:
    """Holds, box lock and rations as they stand."""
    accounts = rounds.ration.accounts.items() if rounds is not None else ()
    rations = [
        RationStatus(
            line,
            account.turn,
            round(1000 * (now_s - account.since_s), 3),
            round(1000 * account.used_s, 3),
            round(1000 * (windows.share * (now_s - account.since_s) - account.used_s), 3),
            account.slices,
        )
        for line, account in accounts
    ]
    box = windows.box
    state: Literal["off", "held", "free"] = "held" if box.held else "free" if box.is_on else "off"
    return WindowsStatus(windows.holds.shown(), state, box.problem, windows.share, tuple(rations))


def totals(there: Iterable[LiveSession], roster: Roster | None) -> Totals:
    """Sum up the sessions that are committed; there may be thousands, so nothing is made of each.

    Sessions that are not committed yet count for nothing.
    """
    sessions = known = behind = fresh = running = open_questions = 0
    for live in there:
        view = live.durable
        if view is None:
            continue
        turn = view.turn
        sessions += 1
        running += turn is not None and turn.running
        open_questions += len(view.questions)
        if roster is None:
            ids = len(view.known)
            known += ids
            behind += ids
        else:
            progress = roster.progress(live)
            known += progress.known
            behind += progress.behind
            fresh += progress.fresh
    return Totals(sessions, known, behind, fresh, running, open_questions)
