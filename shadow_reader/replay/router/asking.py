"""Asking journaled questions again, of an engine of our own.

Law: an answer stands on the same grid line as it did live, so the same engine gives the same bits.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Final

from shadow_reader.errors import InvalidInputError, ShadowError, TooLargeError
from shadow_reader.events.ids import Ids
from shadow_reader.replay.held_state import HeldState, Progress
from shadow_reader.replay.router.past import Past
from shadow_reader.replay.router.wordings import Variant, write_variant
from shadow_reader.shadow import jobs
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.questions import calibrated, closing_of
from shadow_reader.shadow.vocabulary import Vocabulary

MAX_PRIORS: Final = 1024


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
    """

    engine: Engine
    vocabulary: Vocabulary
    snapshots: InitVar[Path | None] = None
    progress: InitVar[Progress | None] = None
    _held: HeldState = field(init=False)
    _priors: dict[tuple[bytes, tuple[int, ...]], tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self, snapshots: Path | None, progress: Progress | None) -> None:
        self._held = HeldState(self.engine, snapshots, progress)

    @property
    def restored(self) -> int:
        """Sessions that began with a snapshot."""
        return self._held.restored

    @property
    def read(self) -> int:
        """Ids that were read."""
        return self._held.read

    def ask(self, past: Past, variants: list[Variant]) -> list[Told | ShadowError]:
        """All variants of one question; of one that cannot be asked, the error that says why.

        Raises:
            VocabularyError: the journal's ids are not of this model.
            OutOfRoomError: the session does not fit the memory cap.
        """
        self._held.check_ids(past.base, "the session's")
        self._held.check_ids(past.asked.ids, "the question's")
        if len(past.base) >= self.engine.context_ids:
            return [_too_long(len(past.base), self.engine.context_ids)] * len(variants)
        line = self._held.stand(past.wanted.session, past.base)
        return [self._told(past, variant, line) for variant in variants]

    def leave(self) -> None:
        """Let go of the session's state."""
        self._held.leave()

    def _told(self, past: Past, variant: Variant, line: int) -> Told | ShadowError:
        try:
            ids, choices = write_variant(variant, past.asked, self.vocabulary)
            self._held.check_ids(ids, "the question's")
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


def _too_long(base: int, context: int) -> TooLargeError:
    return TooLargeError(
        f"the {base} ids below the question fill the context of {context}",
        field="question",
        found=base,
        limit=context,
    )
