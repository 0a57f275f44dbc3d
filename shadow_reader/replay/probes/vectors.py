"""The hidden vectors at labelled places, read as a probe reads them when it is asked.

Law: the bits are those of the live service, since the same call stands on the same grid line. Of a
line of talk every id is read once, as far as the checkpoints reach: labels are taken in the order
of their ids, each behind those that it continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadow_reader.errors import InvalidInputError
from shadow_reader.events.ids import Ids
from shadow_reader.replay.held_state import HeldState
from shadow_reader.replay.probes.fit import Examples
from shadow_reader.replay.probes.labels import Found, Labelled, line_labels
from shadow_reader.replay.router.past import Entries
from shadow_reader.shadow import jobs
from shadow_reader.shadow.probe_file import MAX_LAST, MAX_SUFFIX_IDS

Begun: TypeAlias = Callable[[int, int, str], None]
"""Called with (lines of talk done, lines, the one that is next)."""

TOO_LONG: Final = "too long for the context"
GONE: Final = "its session was erased meanwhile"


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of a fork.

    Attributes:
        suffix: ids put behind those that the label is about.
        layers: each once, as in ``Engine.vectors``. last: rows that a vector is the mean of.
    """

    suffix: Ids
    layers: tuple[int, ...]
    last: int = 1


@dataclass(slots=True)
class Vectors:
    """Labels, and [labels, hidden] float32 of each layer in the same order."""

    labels: list[Labelled] = field(default_factory=list)
    layers: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def examples(self) -> Examples:
        """As they are learned from."""
        return Examples(
            self.layers,
            [one.value for one in self.labels],
            [one.session for one in self.labels],
        )


def default_layers(layers: int) -> tuple[int, ...]:
    """Of so many layers: half-way, three quarters, and what is left after the final norm."""
    return tuple(dict.fromkeys((layers // 2, 3 * layers // 4, layers)))


def check_reading(reading: Reading, layers: int) -> None:
    """Whether a model of so many layers can be read so.

    Raises:
        InvalidInputError: names the field, the limit and what was found.
    """
    for layer in reading.layers:
        if not 0 <= layer <= layers:
            said = f"layer must be from 0 to {layers}, after the final norm, not {layer}"
            raise InvalidInputError(said, field="layer", found=layer, limit=layers)
    if not reading.layers or len(set(reading.layers)) != len(reading.layers):
        said = f"layers must be named once each: {', '.join(map(str, reading.layers)) or 'none'}"
        raise InvalidInputError(said, field="layer", found=list(reading.layers))
    for name, found, limit in (
        ("last", reading.last, MAX_LAST),
        ("suffix", len(reading.suffix), MAX_SUFFIX_IDS),
    ):
        if not 1 <= found <= limit:
            said = f"{name} must be from 1 to {limit}, not {found}"
            raise InvalidInputError(said, field=name, found=found, limit=limit)


async def read_vectors(
    journal: Entries,
    found: Found,
    held: HeldState,
    reading: Reading,
    skipped: Counter[str],
    begun: Begun | None = None,
) -> Vectors:
    """The vectors of all labels that were found, line by line. Blocks the loop while it reads.

    Args:
        skipped: counts labels that have none, by why.

    Raises:
        InvalidInputError: as ``check_reading``.
        VocabularyError: the journal's ids are not of this model.
        OutOfRoomError: a session does not fit the memory cap.
    """
    check_reading(reading, held.engine.layers)
    held.check_ids(reading.suffix, "the suffix's")
    read = Vectors()
    rows: list[NDArray[np.float32]] = []
    try:
        for place, (line, expected) in enumerate(found.lines.items()):
            if begun is not None:
                begun(place, len(found.lines), line)
            pairs = await line_labels(journal, line, found, Counter())
            if gone := len(expected) - len(pairs):
                skipped[GONE] += gone
            _read_line(held, pairs, reading, skipped, read.labels, rows)
            held.leave()
    finally:
        held.leave()
    whole = np.array(rows, dtype=np.float32).reshape(
        len(rows), len(reading.layers), held.engine.hidden
    )
    for place, layer in enumerate(reading.layers):
        read.layers[layer] = np.ascontiguousarray(whole[:, place])
    return read


def _read_line(
    held: HeldState,
    pairs: list[tuple[Labelled, Ids]],
    reading: Reading,
    skipped: Counter[str],
    labels: list[Labelled],
    rows: list[NDArray[np.float32]],
) -> None:
    for one, base in sorted(pairs, key=cmp_to_key(_in_order)):
        held.check_ids(base, "the session's")
        if len(base) + len(reading.suffix) > held.engine.context_ids:
            skipped[TOO_LONG] += 1
            continue
        line = held.stand(one.line, base)
        vectors = jobs.vectors_on(
            held.engine,
            one.line,
            base,
            line=line,
            suffix=reading.suffix,
            layers=reading.layers,
            last=reading.last,
        )
        labels.append(one)
        rows.append(vectors)


def _in_order(one: tuple[Labelled, Ids], other: tuple[Labelled, Ids]) -> int:
    """As words are ordered, so that what goes on stands behind what it goes on from."""
    (first, left), (second, right) = one, other
    shared = left.common_prefix(right)
    if shared < min(len(left), len(right)):
        return -1 if left[shared] < right[shared] else 1
    return len(left) - len(right) or first.seq - second.seq
