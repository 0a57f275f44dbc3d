"""A probe as it answers questions: what it reads of a fork, and what it makes of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadow_reader.events.ids import Ids

PROBE_KIND: Final = "probe"
"""Of a question that a probe answers, in the journal."""

Reads: TypeAlias = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """Which probe answered, and how far it is to be trusted.

    Attributes:
        accuracy: on sessions that it had not seen when it was trained.
        constant: what always saying the most frequent class would have reached there.
        forced: it is asked although it was not shown to be better than that.
    """

    name: str
    version: int
    accuracy: float
    constant: float
    forced: bool = False


@dataclass(frozen=True, slots=True)
class ServedProbe:
    """A version of a probe that may be asked.

    Attributes:
        suffix: ids put behind those that the question is about, at least one.
        layer, last: which hidden vector is read, as in ``Engine.vectors``.
        classes: what it may answer.
        classify: [hidden] float32 -> a probability for each class; they sum to one.
    """

    facts: ProbeFacts
    suffix: Ids
    layer: int
    last: int
    classes: tuple[str, ...]
    classify: Callable[[NDArray[np.float32]], tuple[float, ...]]

    @property
    def reads(self) -> Reads:
        """Probes with the same are answered from one forward, whatever their layers."""
        return self.suffix.to_bytes(), self.last
