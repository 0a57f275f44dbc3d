"""What the reader asks of the engine in one go: plain functions that run on the device thread.

Each takes the ids as they were committed when the job was given; the views may have moved on by
the time it ran, and whoever reads the result must say so (``Sessions.record`` does).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from shadow_reader.clock import Clock
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.engine import Aligned, Engine, OutOfRoomError

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
    digest: str | None

    @property
    def read(self) -> bool:
        """Whether a chunk was read."""
        return self.stop > self.aligned.committed


@dataclass(frozen=True, slots=True)
class Forked:
    """What a fork gave; ``probabilities`` is None when the session was not fresh enough."""

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
    """Align, then read one chunk if there is one, then take a checkpoint if ``lines`` has it.

    Raises:
        OutOfRoomError: there is no room for the chunk; nothing was read.
    """
    aligned = engine.align(session, known)
    if aligned.cut is not None or aligned.committed + engine.identity.grid > len(known):
        return Stride(aligned, aligned.committed, None)
    stop = engine.read_chunk(session, known)
    stats = engine.state_stats(session)
    if stop not in lines or stats is None or stop in stats.checkpoints:
        return Stride(aligned, stop, None)
    try:
        return Stride(aligned, stop, engine.checkpoint(session))
    except OutOfRoomError as error:
        log.info("no checkpoint of session %s at %d: %s", session, stop, error)
        return Stride(aligned, stop, None)


def fork(
    engine: Engine,
    clock: Clock,
    session: str,
    known: Ids,
    *,
    question: Ids,
    letters: tuple[int, ...],
    wait: Literal["fresh", "now"],
) -> Forked:
    """Answer on top of all known ids when less than a chunk of them is unread.

    Otherwise a question that wants its answer now gets it on top of the committed ids.
    """
    aligned = engine.align(session, known)
    fresh = len(known) - aligned.committed < engine.identity.grid
    if not fresh and wait == "fresh":
        return Forked(aligned, None, aligned.committed, 0.0)
    position = len(known) if fresh else aligned.committed
    began = clock.monotonic()
    tail = Ids.of(known.array(aligned.committed, position))
    probabilities = engine.ask(session, tail=tail, question=question, letters=letters)
    return Forked(aligned, probabilities, position, 1000 * (clock.monotonic() - began))


def digest(engine: Engine, session: str) -> StateDigest | None:
    """Digest and position of one moment; None where no state is resident."""
    stats = engine.state_stats(session)
    if stats is None:
        return None
    return StateDigest(session, stats.committed, engine.digest(session), engine.identity.engine)
