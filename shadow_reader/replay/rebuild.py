"""A session rebuilt from its journal, and the proof that the server's state was exact.

Law: nothing of the server's process is used: the ids come from the journal, the state from a fresh
prefill on an engine of our own. A state counts as exact only when something was compared and every
bit of it agreed; digests are compared only under the same engine identity.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np

from shadow_reader.errors import ConflictError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.fold import fold
from shadow_reader.events.view import CheckpointView, SessionView
from shadow_reader.replay.state_file import Difference, StateFile, compare, parse_state
from shadow_reader.shadow.engine import Engine, EngineIdentity

Verdict: TypeAlias = Literal["exact", "differs", "nothing to compare"]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (ids read, ids to read)."""

EXPORT_LIMIT_BYTES: Final = 1 << 40
_BITS: Final = ("weights", "grid", "dtype", "device", "build", "layout")


@dataclass(frozen=True, slots=True)
class Journaled:
    """What the journal holds of a session.

    Attributes:
        view: the session, folded.
        checkpoints: every journaled digest that holds for the ids known now, by position. Unlike
            the view's, these are not bounded.
    """

    view: SessionView
    checkpoints: tuple[CheckpointView, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCheck:
    """A journaled digest beside that of the fresh prefill."""

    position: int
    journaled: str
    fresh: str
    exact: bool


@dataclass(frozen=True, slots=True)
class StateCheck:
    """An exported state beside the fresh prefill's at the same position.

    Attributes:
        digest: the one that the file claims. fresh: that of the fresh prefill.
        bytes: compared. difference: the first one; None when every bit is equal.
    """

    position: int
    digest: str
    fresh: str
    bytes: int
    exact: bool
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One session's proof.

    Attributes:
        known: ids in the journal. position: the grid line the fresh prefill came to.
        digest: of the fresh prefill there.
        other_engines: journaled checkpoints of other engine identities, which prove nothing here.
    """

    session: str
    turns: int
    known: int
    position: int
    digest: str
    checkpoints: tuple[CheckpointCheck, ...]
    other_engines: int
    state: StateCheck | None
    verdict: Verdict

    @property
    def exact(self) -> bool:
        """Whether something was compared and all of it agreed."""
        return self.verdict == "exact"


class SessionEntries(Protocol):
    """A journal, or a reader of one."""

    def entries(self, *, session: str) -> AsyncIterator[t.Entry]:
        """All entries of a session, in order."""
        ...


async def journaled_session(journal: SessionEntries, session: str) -> Journaled:
    """Fold one session from the journal.

    Raises:
        NotFoundError: the journal knows nothing of it (any more).
        JournalFormatError: an entry that cannot be read or cannot follow.
    """
    view: SessionView | None = None
    checkpoints: dict[int, CheckpointView] = {}
    async for entry in journal.entries(session=session):
        view = fold(view, entry)
        match entry.event:
            case t.Prompt(keep=keep):
                checkpoints = {p: c for p, c in checkpoints.items() if p <= keep}
            case t.Checkpoint(position=position, digest=digest, engine=engine):
                checkpoints[position] = CheckpointView(position, digest, engine)
            case t.SessionErased():
                checkpoints = {}
            case _:
                pass
    if view is None:
        raise NotFoundError(f"the journal holds no session {session!r}", field="session")
    return Journaled(view, tuple(checkpoints[p] for p in sorted(checkpoints)))


def has_read(state: StateFile, view: SessionView) -> bool:
    """Whether the state's ids are the session's first ones."""
    ids = state.tensors.get("ids")
    first = view.known.take(min(state.position, len(view.known)))
    return ids is not None and bytes(ids.raw) == first.to_bytes()


def rebuild(
    journaled: Journaled,
    engine: Engine,
    *,
    state: StateFile | None = None,
    progress: Progress | None = None,
) -> Rebuilt:
    """Prefill the session's known ids from nothing, and compare wherever something is journaled.

    Blocks for as long as the reading takes. The engine's state of the session is dropped before
    and after.

    Args:
        state: the state that a server exported; compared at its own position.

    Raises:
        ConflictError: ``state`` is another engine's, or stands past the known ids.
        OutOfRoomError: the session does not fit the engine's memory cap.
    """
    view = journaled.view
    grid = engine.identity.grid
    stop = len(view.known) // grid * grid
    if state is not None:
        _check_state(state, engine.identity, stop)
    comparable = {
        c.position: c for c in journaled.checkpoints if c.engine == engine.identity.engine
    }
    checks: list[CheckpointCheck] = []
    state_check: StateCheck | None = None
    engine.drop(view.session)
    try:
        position = engine.align(view.session, view.known).committed
        while True:
            if position in comparable:
                checks.append(_check_digest(comparable[position], engine.digest(view.session)))
            if state is not None and position == state.position:
                state_check = _check_bits(state, engine, view.session)
            if progress is not None:
                progress(position, stop)
            if position >= stop:
                break
            position = engine.read_chunk(view.session, view.known)
        digest = engine.digest(view.session)
    finally:
        engine.drop(view.session)
    return Rebuilt(
        session=view.session,
        turns=view.turns,
        known=len(view.known),
        position=position,
        digest=digest,
        checkpoints=tuple(checks),
        other_engines=len(journaled.checkpoints) - len(comparable),
        state=state_check,
        verdict=_verdict(
            [check.exact for check in checks] + ([state_check.exact] if state_check else [])
        ),
    )


def verdict_of_all(found: Sequence[Rebuilt]) -> Verdict:
    """Exact where something was compared, in any session, and all of it agreed."""
    return _verdict(one.exact for one in found if one.verdict != "nothing to compare")


def _verdict(results: Iterable[bool]) -> Verdict:
    found = list(results)
    if not found:
        return "nothing to compare"
    return "exact" if all(found) else "differs"


def _check_digest(journaled: CheckpointView, fresh: str) -> CheckpointCheck:
    return CheckpointCheck(
        journaled.position, journaled.digest, fresh, exact=journaled.digest == fresh
    )


def _check_bits(state: StateFile, engine: Engine, session: str) -> StateCheck:
    raw = engine.export(session, limit_bytes=EXPORT_LIMIT_BYTES)
    fresh = parse_state(np.frombuffer(raw, dtype=np.uint8), "of the fresh prefill")
    difference = compare(state, fresh)
    return StateCheck(
        position=state.position,
        digest=state.digest,
        fresh=fresh.digest,
        bytes=sum(len(tensor.raw) for tensor in fresh.tensors.values()),
        exact=difference is None and state.digest == fresh.digest,
        difference=difference,
    )


def _check_state(state: StateFile, identity: EngineIdentity, stop: int) -> None:
    ours = {key: str(value) for key, value in asdict(identity).items()}
    wrong = [key for key in _BITS if state.metadata.get(key) != ours[key]]
    if wrong:
        named = "; ".join(f"{k} {state.metadata.get(k)!r}, here {ours[k]!r}" for k in wrong)
        raise ConflictError(
            f"the state is another engine's and cannot be compared: {named}",
            field="state",
            found={key: state.metadata.get(key) for key in wrong},
            expected={key: ours[key] for key in wrong},
        )
    if state.position % identity.grid or state.position > stop:
        raise ConflictError(
            f"the state stands at {state.position}; the journal reaches grid line {stop}",
            field="state",
            found=state.position,
            limit=stop,
        )
