"""Asking journaled questions again, of an engine of our own.

Law: an answer stands on the same grid line as it did live, so the same engine gives the same bits.
One session's state is held at a time; it comes from a snapshot that fits, or is read from nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from shadow_reader.errors import (
    InvalidInputError,
    OutOfRoomError,
    ShadowError,
    SnapshotError,
    TooLargeError,
    VocabularyError,
)
from shadow_reader.events.ids import Ids
from shadow_reader.replay.router.past import Past
from shadow_reader.replay.router.wordings import Variant, write_variant
from shadow_reader.shadow import jobs
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.questions import calibrated, closing_of
from shadow_reader.shadow.vocabulary import Vocabulary
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.reader import SnapshotReader
from shadow_reader.store.snapshots.shelf import folder_name

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (ids that the state has read, ids that it is to read)."""
MAX_PRIORS: Final = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer of ours: ``probabilities`` in the order of ``choices``."""

    choices: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def label(self) -> str:
        """The likeliest choice, the first of several, as online."""
        best = max(range(len(self.choices)), key=lambda i: self.probabilities[i])
        return self.choices[best]


@dataclass(slots=True)
class Asker:
    """Asks on one session's state after the other. All calls belong to the engine's thread.

    Args:
        snapshots: the folder that the journal's states were spilled to; None: none is used.

    Attributes:
        restored: sessions that began with a snapshot. read: ids that were read.
    """

    engine: Engine
    vocabulary: Vocabulary
    snapshots: Path | None = None
    progress: Progress | None = None
    restored: int = 0
    read: int = 0
    _session: str = ""
    _priors: dict[tuple[bytes, tuple[int, ...]], tuple[float, ...]] = field(default_factory=dict)

    def ask(self, past: Past, variants: list[Variant]) -> list[Told | ShadowError]:
        """All variants of one question; of one that cannot be asked, the error that says why.

        Raises:
            VocabularyError: the journal's ids are not of this model.
            OutOfRoomError: the session does not fit the memory cap.
        """
        self._check_ids(past.base, "the session's")
        self._check_ids(past.asked.ids, "the question's")
        if len(past.base) >= self.engine.context_ids:
            return [_too_long(len(past.base), self.engine.context_ids)] * len(variants)
        line = self._stand(past.wanted.session, past.base)
        return [self._told(past, variant, line) for variant in variants]

    def leave(self) -> None:
        """Let go of the session's state."""
        if self._session:
            self.engine.drop(self._session, erased=True)
        self._session = ""

    def _told(self, past: Past, variant: Variant, line: int) -> Told | ShadowError:
        try:
            ids, choices = write_variant(variant, past.asked, self.vocabulary)
            self._check_ids(ids, "the question's")
            letters = tuple(self.vocabulary.letter_ids(len(choices)))
            found = jobs.answer_on(
                self.engine,
                past.wanted.session,
                past.base,
                line=line,
                question=ids,
                closing=closing_of(past.asked, self.vocabulary),
                letters=letters,
            )
        except (TooLargeError, InvalidInputError) as error:
            return error
        wanted = past.answer.prior is not None if variant.calibrate is None else variant.calibrate
        if wanted:
            found = calibrated(found, self._prior(ids, letters))
        return Told(choices, found)

    def _prior(self, ids: Ids, letters: tuple[int, ...]) -> tuple[float, ...]:
        key = (ids.to_bytes(), letters)
        found = self._priors.get(key)
        if found is None:
            found = self._priors[key] = jobs.prior(self.engine, ids, letters)
            if len(self._priors) > MAX_PRIORS:
                del self._priors[next(iter(self._priors))]
        return found

    def _stand(self, session: str, base: Ids) -> int:
        """Bring the state to the last grid line of ``base``."""
        grid = self.engine.identity.grid
        line = len(base) // grid * grid
        below = base.take(line)
        if session != self._session:
            self.leave()
            self._session = session
            if line and self.snapshots is not None:
                self.restored += self._restore(session, below, self.snapshots)
        at = self.engine.align(session, below).committed
        while at < line:
            if self.progress is not None:
                self.progress(at, line)
            before, at = at, self._read(session, below)
            self.read += at - before
        if line:
            self._set_aside(session)
        return line

    def _read(self, session: str, below: Ids) -> int:
        while True:
            try:
                return self.engine.read_chunk(session, below)
            except OutOfRoomError:
                if not self.engine.give_way((session,)):
                    raise

    def _set_aside(self, session: str) -> None:
        """A later question may go back to here."""
        try:
            self.engine.checkpoint(session)
        except OutOfRoomError as error:
            log.info("no checkpoint of session %s: %s", session, error)

    def _restore(self, session: str, below: Ids, root: Path) -> bool:
        """Begin with what was spilled, if it is this engine's and of these ids."""
        folder = root / folder_name(session)
        if not folder.is_dir():
            return False
        reader = SnapshotReader(Disk(self.engine.host_buffer), folder, session)
        try:
            manifest = reader.manifest()
            restore = self.engine.begin_restore(session, manifest, reader.head(manifest), below)
            try:
                for piece in restore.pieces:
                    restore.put(piece, reader.piece(piece))
                restore.finish()
            finally:
                restore.abort()
        except (SnapshotError, OutOfRoomError, OSError) as error:
            log.info("the snapshot of session %s is not used: %s", session, error)
            return False
        return True

    def _check_ids(self, ids: Ids, whose: str) -> None:
        most = int(ids.array().max()) if len(ids) else 0
        if most >= self.engine.vocabulary:
            raise VocabularyError(
                f"{whose} id {most} is none of {self.engine.identity.model}, which has "
                f"{self.engine.vocabulary}: the journal is of another vocabulary",
                field="model",
                found=most,
                limit=self.engine.vocabulary,
            )


def _too_long(base: int, context: int) -> TooLargeError:
    return TooLargeError(
        f"the {base} ids below the question fill the context of {context}",
        field="question",
        found=base,
        limit=context,
    )
