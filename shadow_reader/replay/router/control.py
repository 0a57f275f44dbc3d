"""The control: the same question again has to give what the journal says.

Law: under the same engine identity every bit; under the same weights on another grid, device or
build within a tolerance; of another model nothing is expected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from shadow_reader.replay.router.asking import Told
from shadow_reader.replay.router.past import Past
from shadow_reader.shadow.engine import EngineIdentity

Kinship: TypeAlias = Literal["same", "same weights", "another model", "not known"]
Verdict: TypeAlias = Literal["holds", "fails", "nothing to compare"]

TOLERANCE: Final = 0.02
"""Largest difference of a probability by default, where the engines are not the same; that of the
original's own control."""


@dataclass(slots=True)
class EngineControl:
    """The answers that one engine gave live.

    Attributes:
        kin: what it is to the engine that asks again.
        tolerance: None: nothing is expected.
        equal: bit for bit. within: the tolerance. same_label: the likeliest choice.
        largest: deviation of a probability; at: the question that has it.
    """

    engine: str | None
    model: str | None
    kin: Kinship
    tolerance: float | None
    answers: int = 0
    equal: int = 0
    within: int = 0
    same_label: int = 0
    largest: float = 0.0
    at: str | None = None


@dataclass(slots=True)
class Control:
    """All of it, by engine."""

    identity: EngineIdentity
    tolerance: float = TOLERANCE
    engines: dict[str | None, EngineControl] = field(default_factory=dict)

    def take(self, past: Past, told: Told) -> None:
        """Hold an answer of ours against the journal's."""
        row = self._row(past)
        journaled = past.answer.probabilities
        pairs = zip(journaled, told.probabilities, strict=True)
        deviation = max(abs(one - two) for one, two in pairs)
        row.answers += 1
        row.equal += journaled == told.probabilities
        row.within += row.tolerance is not None and deviation <= row.tolerance
        row.same_label += told.label == past.answer.label
        if deviation > row.largest:
            row.largest, row.at = deviation, past.asked.question

    @property
    def verdict(self) -> Verdict:
        """Whether what was to agree agreed."""
        compared = [row for row in self.engines.values() if row.tolerance is not None]
        if not compared:
            return "nothing to compare"
        return "holds" if all(row.within == row.answers for row in compared) else "fails"

    def _row(self, past: Past) -> EngineControl:
        live = past.engine
        name = live.engine if live is not None else None
        found = self.engines.get(name)
        if found is None:
            kin = self._kin(past)
            tolerance = {"same": 0.0, "another model": None}.get(kin, self.tolerance)
            model = live.model if live is not None else None
            found = self.engines[name] = EngineControl(name, model, kin, tolerance)
        return found

    def _kin(self, past: Past) -> Kinship:
        if past.engine is None:
            return "not known"
        if past.engine.engine == self.identity.engine:
            return "same"
        return "same weights" if past.engine.weights == self.identity.weights else "another model"
