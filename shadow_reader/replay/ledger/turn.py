"""One line of a usage ledger: when one request ran, and how many ids it brought.

Law: a field is there, of its type and in its range, or the line is refused by name. What a record
could not say and somebody assumed stands in ``assumed``, so no guess passes for a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadow_reader.errors import LedgerError

ASSUMABLE: Final = ("start_s", "first_s", "end_s", "prompt_ids", "prefix_ids", "output_ids")
"""The fields whose value may be an assumption."""

MAX_IDS: Final = 1 << 31
"""The most ids a count may name: ids are counted in 32 bits wherever they are kept."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the big model.

    Attributes:
        session: the session's name.
        parent: the session that started this one (a subagent's), None for a person's own.
        turn: which request of its session, from 0, without gaps.
        start_s, end_s: when it was sent and when its last id came; unix seconds.
        first_s: when its first output id came; None where the record does not say.
        prompt_ids: ids of the whole prompt, cached ones included.
        prefix_ids: how many of them the session's known ids (last prompt and its output) begin
            with too; 0 at the first turn.
        output_ids: ids it produced, reasoning included.
        assumed: names of the fields that are not measured.
    """

    session: str
    parent: str | None
    turn: int
    start_s: float
    first_s: float | None
    end_s: float
    prompt_ids: int
    prefix_ids: int
    output_ids: int
    assumed: tuple[str, ...] = ()

    @property
    def known_ids(self) -> int:
        """What its session holds once it has ended."""
        return self.prompt_ids + self.output_ids

    @property
    def row(self) -> dict[str, Any]:
        """The line as a JSON object, fields in the file's order."""
        return {name: _plain(getattr(self, name)) for name in FIELDS}


FIELDS: Final = tuple(Turn.__dataclass_fields__)


def turn_of(row: Mapping[str, Any], line: int) -> Turn:
    """The turn that a parsed line says.

    Raises:
        LedgerError: a field is missing, unknown, of a wrong type or range, or contradicts another.
    """
    for name in row:
        if name not in FIELDS:
            raise fault(line, name, "is unknown; known are " + ", ".join(FIELDS))
    for name in FIELDS:
        if name not in row and name != "assumed":
            raise fault(line, name, "is missing")
    turn = Turn(
        session=_name(row["session"], line, "session"),
        parent=None if row["parent"] is None else _name(row["parent"], line, "parent"),
        turn=_count(row["turn"], line, "turn"),
        start_s=_seconds(row["start_s"], line, "start_s"),
        first_s=None if row["first_s"] is None else _seconds(row["first_s"], line, "first_s"),
        end_s=_seconds(row["end_s"], line, "end_s"),
        prompt_ids=_count(row["prompt_ids"], line, "prompt_ids"),
        prefix_ids=_count(row["prefix_ids"], line, "prefix_ids"),
        output_ids=_count(row["output_ids"], line, "output_ids"),
        assumed=_assumed(row.get("assumed", []), line),
    )
    _agree(turn, line)
    return turn


def fault(line: int, field: str, why: str) -> LedgerError:
    """The error that names a line (from 1) and a field of it."""
    return LedgerError(f"line {line}: {field} {why}", line=line, field=field)


def _agree(turn: Turn, line: int) -> None:
    if turn.parent == turn.session:
        raise fault(line, "parent", "is the session itself")
    if turn.prompt_ids == 0:
        raise fault(line, "prompt_ids", "must be at least 1, found 0")
    if turn.end_s < turn.start_s:
        raise fault(line, "end_s", f"{turn.end_s} lies before start_s {turn.start_s}")
    if turn.first_s is not None and not turn.start_s <= turn.first_s <= turn.end_s:
        raise fault(
            line,
            "first_s",
            f"{turn.first_s} lies outside the turn, {turn.start_s} to {turn.end_s}",
        )
    if turn.prefix_ids > turn.prompt_ids:
        raise fault(
            line, "prefix_ids", f"{turn.prefix_ids} is more than prompt_ids {turn.prompt_ids}"
        )


def _name(value: Any, line: int, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise fault(line, field, f"must be a string that is not empty, found {value!r}")
    return value


def _count(value: Any, line: int, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise fault(line, field, f"must be a whole number, found {value!r}")
    if not 0 <= value < MAX_IDS:
        raise fault(line, field, f"must be from 0 to {MAX_IDS - 1}, found {value}")
    return value


def _seconds(value: Any, line: int, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault(line, field, f"must be a number of seconds, found {value!r}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not 0 <= seconds < math.inf:
        raise fault(line, field, f"must be a finite number from 0, found {value!r}")
    return seconds


def _assumed(value: Any, line: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(set(map(str, value))) != len(value):
        raise fault(line, "assumed", f"must be an array of different names, found {value!r}")
    for name in value:
        if name not in ASSUMABLE:
            raise fault(line, "assumed", f"names {name!r}; it may name " + ", ".join(ASSUMABLE))
    return tuple(value)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
