"""What answers beside the router's classes come to: agreement, with intervals, and the constant.

Wilson's interval takes turns for independent; the other draws sessions, whose turns resemble each
other, and is the one to believe.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shadow_reader.events.groups import BEHIND
from shadow_reader.replay.ledger.freshness import Interval, resampled

Z95: Final = 1.959963984540054
SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A compared turn: the router's own class, and what each way of asking said."""

    session: str
    own: str
    behind: int
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """Of ``n`` turns ``hits``; ``wilson`` by turns, ``by_session`` by sessions, both 95 %."""

    n: int
    hits: int
    share: float
    wilson: Interval
    by_session: Interval


@dataclass(frozen=True, slots=True)
class Group:
    """Some of the turns."""

    name: str
    n: int
    hits: int


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """One way of asking.

    Attributes:
        above_constant: agreement less the constant's on the same turns, by sessions, 95 %.
        confusion: own class -> label -> turns.
    """

    name: str
    agreement: Share
    above_constant: float
    above: Interval
    by_class: tuple[Group, ...]
    by_behind: tuple[Group, ...]
    confusion: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ways of asking on the turns that both answered.

    ``difference``: the second's agreement less the first's, with its interval by sessions.
    """

    first: str
    second: str
    n: int
    both: int
    only_first: int
    only_second: int
    neither: int
    same_label: int
    difference: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Constant:
    """The most frequent own class, said of every turn."""

    label: str
    agreement: Share


@dataclass(frozen=True, slots=True)
class Figures:
    """All of it."""

    turns: int
    sessions: int
    constant: Constant
    variants: tuple[VariantFigures, ...]
    pairs: tuple[Pair, ...]


def wilson(hits: int, n: int) -> Interval:
    """Wilson's 95 % interval of a share."""
    assert 0 <= hits <= n > 0
    share, z2 = hits / n, Z95 * Z95
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Interval(max(0.0, middle - reach), min(1.0, middle + reach), 0.95)


def figures(turns: Sequence[Turn], names: Sequence[str]) -> Figures | None:
    """Figures of every way of asking, in this order; None where no turn has an own class."""
    if not turns:
        return None
    label = _most_frequent(turn.own for turn in turns)
    constant = Constant(label, _share(turns, lambda turn: turn.own == label))
    return Figures(
        len(turns),
        len({turn.session for turn in turns}),
        constant,
        tuple(_variant(turns, name, label) for name in names if _answered(turns, name)),
        tuple(
            _pair(turns, first, second)
            for place, first in enumerate(names)
            for second in names[place + 1 :]
            if _answered(turns, first, second)
        ),
    )


def _variant(turns: Sequence[Turn], name: str, constant: str) -> VariantFigures:
    turns = _answered(turns, name)

    def right(turn: Turn) -> bool:
        return turn.labels[name] == turn.own

    above = [(turn, int(right(turn)) - int(turn.own == constant)) for turn in turns]
    confusion: dict[str, Counter[str]] = {}
    for turn in turns:
        confusion.setdefault(turn.own, Counter())[turn.labels[name]] += 1
    return VariantFigures(
        name,
        _share(turns, right),
        _mean([value for _, value in above]),
        _by_session(above),
        _groups(turns, right, lambda turn: (0, turn.own)),
        _groups(turns, right, lambda turn: _bucket(turn.behind)),
        {own: dict(sorted(confusion[own].items())) for own in sorted(confusion)},
    )


def _pair(turns: Sequence[Turn], first: str, second: str) -> Pair:
    turns = _answered(turns, first, second)
    right = [(turn.labels[first] == turn.own, turn.labels[second] == turn.own) for turn in turns]
    differences = [
        (turn, int(two) - int(one)) for turn, (one, two) in zip(turns, right, strict=True)
    ]
    counts = Counter(right)
    return Pair(
        *(first, second, len(turns)),
        *(counts[True, True], counts[True, False], counts[False, True], counts[False, False]),
        sum(turn.labels[first] == turn.labels[second] for turn in turns),
        _mean([value for _, value in differences]),
        _by_session(differences),
    )


def _answered(turns: Sequence[Turn], *names: str) -> list[Turn]:
    return [turn for turn in turns if all(name in turn.labels for name in names)]


def _share(turns: Sequence[Turn], right: Callable[[Turn], bool]) -> Share:
    values = [(turn, int(right(turn))) for turn in turns]
    hits = sum(value for _, value in values)
    return Share(len(turns), hits, hits / len(turns), wilson(hits, len(turns)), _by_session(values))


def _by_session(values: Sequence[tuple[Turn, int]]) -> Interval:
    sessions: dict[str, list[int]] = {}
    for turn, value in values:
        sessions.setdefault(turn.session, []).append(value)
    return resampled(sessions, _mean, seed=SEED)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _groups(
    turns: Sequence[Turn],
    right: Callable[[Turn], bool],
    key: Callable[[Turn], tuple[int, str]],
) -> tuple[Group, ...]:
    found: dict[tuple[int, str], list[bool]] = {}
    for turn in turns:
        found.setdefault(key(turn), []).append(right(turn))
    return tuple(Group(k[1], len(found[k]), sum(found[k])) for k in sorted(found))


def _bucket(behind: int) -> tuple[int, str]:
    for place, stop in enumerate(BEHIND):
        if behind < stop:
            return place, f"under {stop:,}"
    return len(BEHIND), f"{BEHIND[-1]:,} and more"


def _most_frequent(labels: Iterable[str]) -> str:
    """The first by name of several."""
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))
