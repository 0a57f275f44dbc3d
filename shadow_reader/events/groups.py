"""Rows counted by one of their fields: how many, how often they agree, and a number's spread.

Numbers are put into buckets: ``behind`` by chunks' sizes, every other one by powers of ten. A
percentile is the nearest rank.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shadow_reader.errors import InvalidInputError
from shadow_reader.events.rows import Row

MAX_GROUPS: Final = 10_000
"""More values of a field than anybody reads; such a field is none to group by."""
BEHIND: Final = (512, 4096, 32_768)


@dataclass(slots=True)
class _Group:
    order: tuple[int, float, str]
    count: int = 0
    compared: int = 0
    agreed: int = 0
    numbers: array[float] = field(default_factory=lambda: array("d"))


class Groups:
    """Takes rows, and sums them up.

    Args:
        by: the field that makes the groups. of: a number's field to be summed up; None: none.
        fields: those that the rows have.

    Raises:
        InvalidInputError: a field that no row has.
    """

    def __init__(self, by: str, of: str | None, fields: Sequence[str]) -> None:
        for name, asked in (("by", by), ("of", of)):
            if asked is not None and asked not in fields:
                raise InvalidInputError(
                    f"there is no field {asked!r:.80} in these rows; there are {', '.join(fields)}",
                    field=name,
                    found=asked[:80],
                )
        self._by = by
        self._of = of
        self._groups: dict[str, _Group] = {}

    def take(self, row: Row) -> None:
        """Count one row.

        Raises:
            InvalidInputError: the field has too many values.
        """
        name, order = _bucket(self._by, row.get(self._by))
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                raise InvalidInputError(
                    f"{self._by} has more than {MAX_GROUPS} values", field="by", limit=MAX_GROUPS
                )
            group = self._groups[name] = _Group(order)
        group.count += 1
        agree = row.get("agree")
        group.compared += agree is not None
        group.agreed += agree is True
        number = row.get(self._of) if self._of is not None else None
        if isinstance(number, int | float) and not isinstance(number, bool):
            group.numbers.append(number)

    def rows(self) -> list[Row]:
        """A row a group, in the order of their values."""
        found = []
        for name, group in sorted(self._groups.items(), key=lambda item: item[1].order):
            row: Row = {self._by: name, "count": group.count}
            if group.compared:
                row["compared"] = group.compared
                row["agree"] = round(group.agreed / group.compared, 6)
            if self._of is not None:
                row |= _spread(group.numbers)
            found.append(row)
        return found


def _spread(numbers: array[float]) -> Row:
    if not numbers:
        return {"mean": None, "p50": None, "p90": None}
    ranked = sorted(numbers)

    def rank(share: float) -> float:
        return ranked[max(1, math.ceil(round(share * len(ranked), 9))) - 1]

    return {"mean": round(sum(ranked) / len(ranked), 6), "p50": rank(0.5), "p90": rank(0.9)}


def _bucket(name: str, value: Any) -> tuple[str, tuple[int, float, str]]:
    """What the value's group is called, and where it stands."""
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
        return text, (0, 0.0, text)
    if isinstance(value, int | float):
        if name == "behind":
            place = bisect_right(BEHIND, value)
            low = (0, *BEHIND)[place]
            text = f"{low}-{BEHIND[place] - 1}" if place < len(BEHIND) else f"{low}-"
            return text, (1, low, text)
        if name in ("seq", "at") or value == 0:
            return str(value), (1, value, "")
        power = 10.0 ** math.floor(math.log10(abs(value)))
        sign = "-" if value < 0 else ""
        text = f"{sign}{power:g}-{sign}{10 * power:g}"
        return text, (1, math.copysign(power, value), text)
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text, (2, 0.0, text)
