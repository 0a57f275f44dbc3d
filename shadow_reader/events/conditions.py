"""Conditions on rows: ``field OP value``, as a person writes them on a command line.

Law: a field that no asked-for row has is an error, never a condition that silently fails. Values
are JSON, or else text. Unlike values are unequal, and neither is less: a null matches only
``= null``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import orjson

from shadow_reader.errors import InvalidInputError
from shadow_reader.events.rows import Row

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in"]

_FORM: Final = re.compile(r"\s*([A-Za-z_]+)\s*(!=|<=|>=|==|=|<|>|\bin\b)\s*(.*\S)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a row's field with a value."""

    field: str
    operator: Operator
    value: Any

    def holds(self, row: Row) -> bool:
        """Whether the row meets it; a row without the field does not."""
        if self.field not in row:
            return False
        found = row[self.field]
        match self.operator:
            case "=":
                return _equal(found, self.value)
            case "!=":
                return not _equal(found, self.value)
            case "in":
                return any(_equal(found, one) for one in self.value)
            case _:
                return _less(found, self.value, self.operator)


def parse_condition(text: str, fields: Sequence[str]) -> Condition:
    """Read ``agree=false``, ``behind >= 512``, ``label in (chat, debug)``.

    Args:
        fields: those that the asked-for rows have.

    Raises:
        InvalidInputError: it is no condition, or names an unknown field; the known ones are listed.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidInputError(
            f"{text!r:.80} is no condition: write FIELD OP VALUE with = != < <= > >= or in",
            field="where",
            found=text[:80],
        )
    name, operator, value = found.groups()
    if name not in fields:
        raise InvalidInputError(
            f"there is no field {name!r:.80} in these rows; there are {', '.join(fields)}",
            field="where",
            found=name[:80],
        )
    if operator == "in":
        return Condition(name, "in", _values(value, text))
    return Condition(name, "=" if operator == "==" else operator, _value(value))  # type: ignore[arg-type]  # the form's


def _values(text: str, whole: str) -> tuple[Any, ...]:
    if text.startswith("["):
        found = _value(text)
        if isinstance(found, list):
            return tuple(found)
    if text.startswith("(") and text.endswith(")") and text[1:-1].strip():
        return tuple(_value(one.strip()) for one in text[1:-1].split(","))
    raise InvalidInputError(
        f"{whole!r:.80}: behind in comes a list, as (a, b) or as JSON",
        field="where",
        found=whole[:80],
    )


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _equal(found: Any, value: Any) -> bool:
    if isinstance(found, bool) or isinstance(value, bool) or found is None or value is None:
        return found is value
    if isinstance(found, tuple):
        found = list(found)
    return bool(found == value)


def _less(found: Any, value: Any, operator: str) -> bool:
    texts = isinstance(found, str) and isinstance(value, str)
    if not (texts or (_is_number(found) and _is_number(value))):
        return False
    if operator == "<":
        return bool(found < value)
    if operator == "<=":
        return bool(found <= value)
    return bool(found > value) if operator == ">" else bool(found >= value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
