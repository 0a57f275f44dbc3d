"""What the reader asks of the engine in one go: plain functions that run on the device thread.

Each takes the ids as they were committed when the job was given; the views may have moved on by
the time it ran, and whoever reads the result must say so (``Sessions.record`` does).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadow_reader.clock import Clock
from shadow_reader.errors import ConflictError, ForkError, OutOfRoomError, TooLargeError
from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.shadow.engine import Aligned, Engine
from shadow_reader.shadow.phrasing import Closing
from shadow_reader.shadow.plan import When

NOBODY: Final = ""
"""No session has this name: its state is at 0."""

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
    """What a fork gave; ``probabilities`` is None when the session has to be read first.

    ``prior``: what the question alone gives, where it was wanted.
    """

    aligned: Aligned
    probabilities: tuple[float, ...] | None
    position: int
    forward_ms: float
    prior: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a fork left of some layers, [layers, hidden] float32; None when the session has to be
    read first."""

    aligned: Aligned
    vectors: NDArray[np.float32] | None
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
    wait: When,
    about: int,
) -> Forked:
    """Answer on top of all known ids when less than a chunk of them is unread, or of the first
    ``about`` where that is what the question is about.

    Otherwise a question that wants its answer now gets it on top of the committed ids. After a
    rewind there is no answer yet: the rewind is told first.

    Raises:
        TooLargeError: the known ids have grown, and the question no longer fits the context.
        ConflictError: the state has read past ``about`` and left nothing to answer on.
        OutOfRoomError: no room for the fork. ForkError: the forward failed.
    """
    aligned = engine.align(session, known)
    found = None if aligned.cut is not None else _base(engine, session, known, aligned, wait, about)
    if found is None:
        return Forked(aligned, None, aligned.committed, 0.0)
    line, position = found
    began = clock.monotonic()
    probabilities = answer_on(
        engine,
        session,
        known.take(position),
        line=line,
        question=question,
        closing=closing,
        letters=letters,
    )
    return Forked(aligned, probabilities, position, 1000 * (clock.monotonic() - began))


def answer_on(
    engine: Engine,
    session: str,
    base: Ids,
    *,
    line: int,
    question: Ids,
    closing: Closing | None,
    letters: tuple[int, ...],
) -> tuple[float, ...]:
    """The letters' probabilities of a question on top of ``base``, above a grid line of it that
    the session has a state at.

    Raises:
        TooLargeError: base and question do not fit the context.
        OutOfRoomError: no room for the fork. ForkError: the forward failed.
    """
    position = len(base)
    if closing is not None:
        question = closing.after(base).extend(question)
    _check_room(engine, position, question)
    return _ask(engine, session, Ids.of(base.array(line)), question, letters, line)


def see(
    engine: Engine,
    clock: Clock,
    session: str,
    known: Ids,
    *,
    suffix: Ids,
    layers: Sequence[int],
    last: int,
    wait: When,
    about: int,
) -> Seen:
    """The hidden vectors behind what ``fork`` would answer on top of, with ``suffix`` put there.

    Raises:
        TooLargeError, ConflictError, OutOfRoomError, ForkError: as ``fork``.
    """
    aligned = engine.align(session, known)
    found = None if aligned.cut is not None else _base(engine, session, known, aligned, wait, about)
    if found is None:
        return Seen(aligned, None, aligned.committed, 0.0)
    line, position = found
    base = known.take(position)
    began = clock.monotonic()
    vectors = vectors_on(engine, session, base, line=line, suffix=suffix, layers=layers, last=last)
    return Seen(aligned, vectors, position, 1000 * (clock.monotonic() - began))


def vectors_on(
    engine: Engine,
    session: str,
    base: Ids,
    *,
    line: int,
    suffix: Ids,
    layers: Sequence[int],
    last: int,
) -> NDArray[np.float32]:
    """The hidden vectors behind ``suffix`` on top of ``base``, above a grid line of it that the
    session has a state at.

    Raises:
        TooLargeError: base and suffix do not fit the context.
        OutOfRoomError: no room for the fork. ForkError: the forward failed.
    """
    _check_room(engine, len(base), suffix)
    tail = Ids.of([*base.array(line), *suffix])
    try:
        return engine.vectors(session, tail=tail, layers=layers, last=last, line=line)
    except RuntimeError as error:
        raise ForkError(f"the forward failed: {error}") from error


def _check_room(engine: Engine, position: int, question: Ids) -> None:
    if position + len(question) > engine.context_ids:
        raise TooLargeError(
            f"question has {len(question)} ids; "
            f"{engine.context_ids - position} are left of the context",
            field="question",
            found=len(question),
            limit=engine.context_ids - position,
        )


def base_above(engine: Engine, committed: int, known: Ids, about: int) -> tuple[int, int]:
    """The line to stand on, and up to which id, for what is to see the first ``about`` ids and as
    many more as are read; the state has read the chunks below ``about``."""
    fresh = len(known) - committed < engine.identity.grid
    return committed, len(known) if fresh else max(about, committed)


def prior(engine: Engine, question: Ids, letters: tuple[int, ...]) -> tuple[float, ...]:
    """What the model says of a question about nothing.

    Raises:
        OutOfRoomError: no room for the fork. ForkError: the forward failed.
    """
    return _ask(engine, NOBODY, EMPTY, question, letters, 0)


def _base(
    engine: Engine, session: str, known: Ids, aligned: Aligned, wait: When, about: int
) -> tuple[int, int] | None:
    """The line that the answer stands on, and up to which id; None: more is to be read first."""
    grid, committed = engine.identity.grid, aligned.committed
    if wait != "position":
        fresh = len(known) - committed < grid
        if not fresh and wait == "fresh":
            return None
        return committed, len(known) if fresh else committed
    line = about // grid * grid
    if line > committed:
        return None
    stats = engine.state_stats(session)
    lines = sorted({0, committed, *(stats.checkpoints if stats is not None else ())})
    if line not in lines:
        raise ConflictError(
            f"the state has read past id {about} and has nothing left at line {line}; "
            f"it has states at {', '.join(map(str, lines))}",
            field="position",
            found=about,
            lines=lines,
        )
    return line, about


def _ask(
    engine: Engine, session: str, tail: Ids, question: Ids, letters: tuple[int, ...], line: int
) -> tuple[float, ...]:
    try:
        return engine.ask(session, tail=tail, question=question, letters=letters, line=line)
    except RuntimeError as error:
        raise ForkError(f"the forward failed: {error}") from error


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
