"""Numbers and moments as records write them: strictly read, and always told where they stood."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger.turn import MAX_IDS

_MILLI, _MICRO, _NANO = 1e11, 1e14, 1e17
"""From here on a number of seconds since 1970 would lie beyond the year 5000: a finer unit."""
_LARGEST = 1e21
"""Nothing that is measured is as large, in any of these units."""


def count(value: Any, where: str) -> int:
    """A count of ids; missing counts as 0.

    Raises:
        RecordError: it is no whole number from 0.
    """
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_IDS:
        raise RecordError(f"{where} must be a whole number from 0, found {value!r}", where=where)
    return value


def name(value: Any, where: str) -> str:
    """A name: text that is not empty, or a whole number.

    Raises:
        RecordError: it is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise RecordError(f"{where} must be a name, found {value!r}", where=where)
    return value


def number(value: Any, where: str) -> float:
    """A finite number from 0.

    Raises:
        RecordError: it is none.
    """
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    if not fine or not 0 <= value < _LARGEST:
        raise RecordError(f"{where} must be a number from 0, found {value!r}", where=where)
    return float(value)


def moment(value: Any, where: str) -> float | None:
    """A moment in unix seconds; None where it is missing.

    Numbers are seconds, milliseconds, micro- or nanoseconds, told by their size. Text is ISO 8601;
    without a zone it is UTC.

    Raises:
        RecordError: it is neither.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            read = datetime.fromisoformat(value)
        except ValueError as error:
            raise RecordError(f"{where} is no moment: {value!r}", where=where) from error
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    size = number(value, where)
    for limit, parts in ((_NANO, 1e9), (_MICRO, 1e6), (_MILLI, 1e3)):
        if size >= limit:
            return size / parts
    return size


def produced(*, prompt: int, output: int, reasoning: int, total: int | None) -> tuple[int, bool]:
    """How many ids a request produced, reasoning included, and whether that is a guess.

    Some servers count reasoning within the output and some beside it; the total tells which.
    Without one it is within, unless it is the larger: then it can only stand beside it.
    """
    spare = None if total is None else total - prompt
    if reasoning == 0 and spare in (None, output):
        return output, False
    if spare == output + reasoning:
        return spare, False
    if spare == output and reasoning <= output:
        return output, False
    if spare is None:
        return (output, True) if reasoning <= output else (output + reasoning, True)
    return max(output, reasoning, spare), True
