"""How right answers are, beside the answer that is always the same.

Law: whoever answered is not asked; an example counts for what was said of it. Examples of one
session resemble each other, so the interval draws sessions, each with all its examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadow_reader.replay.ledger.freshness import resampled
from shadow_reader.shadow.probe_file import ProbeMetrics

BINS: Final = 10
"""Of equal width, over the likeliest class's probability, for the calibration error."""


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class: how many examples have it, how often it was said, how often rightly."""

    name: str
    labels: int
    said: int
    right: int

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, 0 where nothing is right."""
        both = self.labels + self.said
        return 2 * self.right / both if both else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures over examples.

    Attributes:
        by_class: every class that somebody said, or that is right of an example, by name.
        confusion: class -> what was said of its examples -> how many.
    """

    metrics: ProbeMetrics
    by_class: tuple[ClassFigures, ...]
    confusion: dict[str, dict[str, int]]


def measured(
    probabilities: NDArray[np.float64],
    classes: Sequence[str],
    labels: Sequence[str],
    constants: Sequence[str],
    sessions: Sequence[str],
    *,
    seed: int,
) -> Measured:
    """Hold answers against labels; a label that is none of ``classes`` was answered wrongly.

    Args:
        probabilities: [n, classes]; the answer is the likeliest class, the first of several.
        labels, sessions: of each example.
        constants: what somebody who always says the same would have said of each.
    """
    assert len(labels) == len(probabilities) > 0, f"{len(labels)} of {len(probabilities)} examples"
    said = [classes[place] for place in probabilities.argmax(axis=1)]
    right = np.array([one == label for one, label in zip(said, labels, strict=True)])
    constant = [one == label for one, label in zip(constants, labels, strict=True)]
    above: dict[str, list[int]] = {}
    for session, one, other in zip(sessions, right.tolist(), constant, strict=True):
        above.setdefault(session, []).append(int(one) - int(other))
    interval = resampled(above, _mean, seed=seed)
    by_class = _by_class(said, labels)
    metrics = ProbeMetrics(
        n=len(labels),
        accuracy=float(right.mean()),
        macro_f1=sum(one.f1 for one in by_class) / len(by_class),
        calibration_error=calibration_error(probabilities.max(axis=1), right),
        constant=sum(constant) / len(constant),
        low=interval.low,
        high=interval.high,
    )
    return Measured(metrics, by_class, _confusion(said, labels))


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """How far confidence and accuracy lie apart, weighed over bins of confidence; 0 is best."""
    places = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    apart = np.bincount(places, weights=confidence - right, minlength=BINS)
    return min(1.0, float(np.abs(apart).sum() / len(confidence)))


def _by_class(said: Sequence[str], labels: Sequence[str]) -> tuple[ClassFigures, ...]:
    pairs = list(zip(said, labels, strict=True))
    return tuple(
        ClassFigures(
            name,
            sum(label == name for _, label in pairs),
            sum(one == name for one, _ in pairs),
            sum(one == label == name for one, label in pairs),
        )
        for name in sorted({*said, *labels})
    )


def _confusion(said: Sequence[str], labels: Sequence[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one, label in sorted(zip(said, labels, strict=True), key=lambda pair: pair[::-1]):
        row = found.setdefault(label, {})
        row[one] = row.get(one, 0) + 1
    return found


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
