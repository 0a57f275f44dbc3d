"""What the reader asks of the engine in one go: plain functions that run on the device thread.

Each takes the ids as they were committed when the job was given; the views may have moved on by
the time it ran, and whoever reads the result must say so (``Sessions.record`` does).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from shadow_reader.clock import Clock
from shadow_reader.errors import ForkError, OutOfRoomError, TooLargeError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.engine import Aligned, Engine
from shadow_reader.shadow.questions import Closing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stride:
    """One step of a burst.

    Attributes:
        aligned: where the state stood before it; with a cut, nothing was read.
        stop: where it stands now. digest: of the checkpoint taken there, if one was.
    """

    aligned: Aligned
    stop: int
    digest: str | None = None

    @property
    def read(self) -> bool:
        """Whether a chunk was read."""
        return self.stop > self.aligned.committed

    @property
    def moved(self) -> bool:
        """Whether anything was done: a chunk, a rewind, a start beside others, a checkpoint."""
        aligned = self.aligned
        started = aligned.cut is not None or aligned.shared > 0
        return self.read or started or self.digest is not None


@dataclass(frozen=True, slots=True)
class Forked:
    """What a fork gave; ``probabilities`` is None when the session has to be read first."""

    aligned: Aligned
    probabilities: tuple[float, ...] | None
    position: int
    forward_ms: float


@dataclass(frozen=True, slots=True)
class StateDigest:
    """The digest of a session's state at a grid line, under an engine identity."""

    session: str
    position: int
    digest: str
    engine: str


def stride(engine: Engine, session: str, known: Ids, lines: frozenset[int]) -> Stride:
    """One step: go back if the ids differ, else read a chunk if there is one.

    At the grid lines in ``lines`` a checkpoint is taken. A line can become due when the state
    stands there already (a prompt that ends in the chunk where the output before it ended); its
    checkpoint is then a step of its own, before the state leaves the line.

    Raises:
        OutOfRoomError: there is no room for the chunk; nothing was read.
    """
    aligned = engine.align(session, known)
    if aligned.cut is not None or aligned.committed + engine.identity.grid > len(known):
        return Stride(aligned, aligned.committed)
    digest = _due_checkpoint(engine, session, aligned.committed, lines)
    if digest is not None:
        return Stride(aligned, aligned.committed, digest)
    stop = engine.read_chunk(session, known)
    return Stride(aligned, stop, _due_checkpoint(engine, session, stop, lines))


def _due_checkpoint(
    engine: Engine, session: str, position: int, lines: frozenset[int]
) -> str | None:
    stats = engine.state_stats(session)
    if position not in lines or stats is None or position in stats.checkpoints:
        return None
    try:
        return engine.checkpoint(session)
    except OutOfRoomError as error:
        log.info("no checkpoint of session %s at %d: %s", session, position, error)
        return None


def fork(
    engine: Engine,
    clock: Clock,
    session: str,
    known: Ids,
    *,
    question: Ids,
    closing: Closing | None,
    letters: tuple[int, ...],
    wait: Literal["fresh", "now"],
) -> Forked:
    """Answer on top of all known ids when less than a chunk of them is unread.

    Otherwise a question that wants its answer now gets it on top of the committed ids. After a
    rewind there is no answer yet: the rewind is told first.

    Raises:
        TooLargeError: the known ids have grown, and the question no longer fits the context.
        OutOfRoomError: no room for the fork. ForkError: the forward failed.
    """
    aligned = engine.align(session, known)
    fresh = len(known) - aligned.committed < engine.identity.grid
    if aligned.cut is not None or (not fresh and wait == "fresh"):
        return Forked(aligned, None, aligned.committed, 0.0)
    position = len(known) if fresh else aligned.committed
    if closing is not None:
        question = closing.after(known.take(position)).extend(question)
    if position + len(question) > engine.context_ids:
        raise TooLargeError(
            f"question has {len(question)} ids; "
            f"{engine.context_ids - position} are left of the context",
            field="question",
            found=len(question),
            limit=engine.context_ids - position,
        )
    began = clock.monotonic()
    tail = Ids.of(known.array(aligned.committed, position))
    try:
        probabilities = engine.ask(session, tail=tail, question=question, letters=letters)
    except RuntimeError as error:
        raise ForkError(f"the forward failed: {error}") from error
    return Forked(aligned, probabilities, position, 1000 * (clock.monotonic() - began))


def digest(engine: Engine, session: str) -> StateDigest | None:
    """Digest and position of one moment; None where no state is resident."""
    stats = engine.state_stats(session)
    if stats is None:
        return None
    return StateDigest(session, stats.committed, engine.digest(session), engine.identity.engine)


def export(engine: Engine, session: str, *, limit_bytes: int) -> bytes | None:
    """The state as a safetensors file; None where no state is resident.

    Raises:
        TooLargeError: it would pass ``limit_bytes``.
    """
    if engine.state_stats(session) is None:
        return None
    return engine.export(session, limit_bytes=limit_bytes)
