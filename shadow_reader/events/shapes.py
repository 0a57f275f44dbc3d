"""What a field may hold, read once from the events' annotations.

Law: nothing is journaled that could not be read back. The codec asks the same question when it
writes and when it reads, so a wrong value stops at the writer and not at the next start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from shadow_reader.events.ids import Ids

Check: TypeAlias = Callable[[object], bool]


def _is_int(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_float(value: object) -> bool:
    return (type(value) is float and math.isfinite(value)) or _is_int(value)


def _is_str(value: object) -> bool:
    return type(value) is str


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_none(value: object) -> bool:
    return value is None


_PLAIN: Final[Mapping[object, Check]] = MappingProxyType(
    {int: _is_int, float: _is_float, str: _is_str, bool: _is_bool, NoneType: _is_none}
)


def checks_of(cls: type[Any]) -> Mapping[str, Check]:
    """The check of every field of an event class, its ids left out, by the field's name.

    Raises:
        TypeError: an annotation that no check is known for; add one here.
    """
    hints = get_type_hints(cls)
    return MappingProxyType(
        {name: _check(hint) for name, hint in sorted(hints.items()) if hint is not Ids}
    )


def _check(hint: Any) -> Check:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        allowed = frozenset(args)
        return lambda value: type(value) is str and value in allowed
    if origin is UnionType:
        either = tuple(_check(arg) for arg in args)
        return lambda value: any(check(value) for check in either)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        every = _check(args[0])
        return lambda value: type(value) is tuple and all(map(every, value))
    raise TypeError(f"no check for the annotation {hint!r}")
