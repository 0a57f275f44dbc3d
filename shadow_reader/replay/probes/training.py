"""From a journal to a probe, and from a probe to how right it is of a journal.

Law: what is trained is made of the journal, the engine, what is read of it, the rules and the seed,
and nothing else; the same gives the same file. An evaluation asks the file, as the service does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from shadow_reader.errors import InvalidInputError, NotFoundError, ProbeError
from shadow_reader.events.decide import check_name
from shadow_reader.replay.held_state import HeldState
from shadow_reader.replay.probes.fit import Fitted, Progress, Rules, check_labels, fit
from shadow_reader.replay.probes.labels import Found, Labelled
from shadow_reader.replay.probes.measure import Measured, measured
from shadow_reader.replay.probes.vectors import Begun, Reading, Vectors, read_vectors
from shadow_reader.replay.router.past import Entries
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.probe_file import TrainedProbe

SEED: Final = 0
"""Of an evaluation's interval."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A probe, and what is known of it beside what its file says.

    Attributes:
        fitted: what was measured and chosen on the way.
        by_class: labels of each class. skipped: labels that were not used, by why.
    """

    probe: TrainedProbe
    fitted: Fitted
    by_class: dict[str, int]
    skipped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A probe on labels of a journal.

    Attributes:
        measured: beside the constant that is best on these very labels.
        labels, sessions: that were answered. skipped: labels that were not, by why.
        overlap: labels within the entries that it was trained on, if it is the same journal.
        other: labels of classes that it does not have; they count as wrong.
    """

    measured: Measured
    labels: int
    sessions: int
    overlap: int
    other: int
    skipped: dict[str, int]


def check_found(found: Found, name: str) -> None:
    """Whether a probe of this name can be learned of these labels, before a model is loaded.

    Raises:
        InvalidInputError: the name, a class or a source is none that a probe's file can have.
        TrainingError: as ``fit.check_labels``.
    """
    check_name(name, field="name")
    values = [one.value for one in found.labels]
    check_labels(values, [one.session for one in found.labels])
    texts = {"name": {name}, "source": {found.wanted.told}, "class": set(values)}
    for field, text in ((field, text) for field, held in texts.items() for text in sorted(held)):
        check_name(text, field=field)
        if text != text.strip():
            said = f"{field} {text!r} begins or ends with a blank"
            raise InvalidInputError(said, field=field, found=text)


async def train(
    journal: Entries,
    found: Found,
    held: HeldState,
    name: str,
    reading: Reading,
    rules: Rules,
    *,
    begun: Begun | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Read the vectors, and fit. Blocks the loop.

    Raises:
        InvalidInputError: as ``check_found`` and ``check_reading``.
        TrainingError: as ``fit.check_labels``, of the labels that have vectors.
        MissingExtraError: scikit-learn is not installed.
        VocabularyError, OutOfRoomError: as ``read_vectors``.
    """
    check_found(found, name)
    skipped = Counter(found.skipped)
    read = await read_vectors(journal, found, held, reading, skipped, begun)
    fitted = fit(read.examples(), rules, progress)
    values = [one.value for one in read.labels]
    seqs = [one.seq for one in read.labels]
    linear = fitted.linear
    probe = TrainedProbe(
        name=name,
        source=found.wanted.told,
        weights=held.engine.identity.weights,
        grid=held.engine.identity.grid,
        layer=fitted.choice.layer,
        last=reading.last,
        suffix=reading.suffix,
        classes=fitted.classes,
        mean=linear.mean,
        scale=linear.scale,
        coef=linear.coef,
        intercept=linear.intercept,
        strength=fitted.choice.strength,
        first_seq=min(seqs),
        last_seq=max(seqs),
        labels=len(values),
        sessions=_sessions(read.labels),
        metrics=fitted.measured.metrics,
    )
    return Trained(probe, fitted, dict(sorted(Counter(values).items())), dict(skipped))


async def evaluate(
    journal: Entries,
    found: Found,
    held: HeldState,
    probe: TrainedProbe,
    *,
    begun: Begun | None = None,
) -> Evaluated:
    """Ask the probe at every label that was found. Blocks the loop.

    Raises:
        ProbeError: it is another model's or another grid's.
        NotFoundError: no label has a vector.
        VocabularyError, OutOfRoomError: as ``read_vectors``.
    """
    check_engine(probe, held.engine)
    skipped = Counter(found.skipped)
    reading = Reading(probe.suffix, (probe.layer,), probe.last)
    read = await read_vectors(journal, found, held, reading, skipped, begun)
    if not read.labels:
        left = "; ".join(f"{why}: {count}" for why, count in skipped.items())
        raise NotFoundError(f"no label is left: {left}", field="label", skipped=dict(skipped))
    values = [one.value for one in read.labels]
    counts = Counter(values)
    most = min(counts, key=lambda value: (-counts[value], value))
    return Evaluated(
        _asked(probe, read, most),
        len(values),
        _sessions(read.labels),
        sum(probe.first_seq <= one.seq <= probe.last_seq for one in read.labels),
        sum(value not in probe.classes for value in values),
        dict(skipped),
    )


def check_engine(probe: TrainedProbe, engine: Engine) -> None:
    """Whether the probe reads what this engine gives.

    Raises:
        ProbeError: it is another model's or another grid's.
    """
    identity = engine.identity
    for field, found, expected in (
        ("weights", probe.weights, identity.weights),
        ("grid", probe.grid, identity.grid),
        ("hidden", probe.hidden, engine.hidden),
    ):
        if found != expected:
            raise ProbeError(
                f"probe {probe.name!r} was trained with {field} {found}; this model has {expected}",
                probe=probe.name,
                field=field,
                found=found,
                expected=expected,
            )


def _asked(probe: TrainedProbe, read: Vectors, constant: str) -> Measured:
    values = [one.value for one in read.labels]
    chances = np.array([probe.classify(vector) for vector in read.layers[probe.layer]])
    sessions = [one.session for one in read.labels]
    constants = [constant] * len(values)
    return measured(chances, probe.classes, values, constants, sessions, seed=SEED)


def _sessions(labels: Iterable[Labelled]) -> int:
    return len({one.session for one in labels})
