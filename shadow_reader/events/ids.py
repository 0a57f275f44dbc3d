"""Token ids as an immutable value that grows without copying.

Law: an ``Ids`` never changes. Two values may share one buffer, since a buffer is only ever written
past the end of every value that looks at it; appending to the longest of them is therefore O(new),
and appending to a shorter one copies. A session of n ids costs O(n), however many deltas made it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import countOf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadow_reader.errors import InvalidInputError

ID_BYTES: Final = 4
_WIRE_IS_NATIVE: Final = sys.byteorder == "little"
_FIRST_CAPACITY: Final = 64
_MANY: Final = 32
"""From here on whole-array passes beat a look at each value; a delta has a handful."""


class _Buffer:
    """Growing storage; ``used`` is the longest length any value has claimed.

    ``room``: ids that fit without growing; 0 where the storage is not ours to write.
    """

    __slots__ = ("data", "room", "used")

    def __init__(self, data: NDArray[np.uint32], used: int) -> None:
        self.data = data
        self.used = used
        self.room = len(data) if data.flags.writeable else 0


class Ids:
    """An immutable sequence of token ids (uint32)."""

    __slots__ = ("_buffer", "_start", "_stop")

    def __init__(self, buffer: _Buffer, start: int, stop: int) -> None:
        self._buffer = buffer
        self._start = start
        self._stop = stop

    @classmethod
    def of(cls, values: Sequence[int] | NDArray[Any]) -> Ids:
        """Make a value from ints that are known to be valid ids (0 <= id < 2**32)."""
        data = np.array(values, dtype=np.uint32)
        return cls(_Buffer(data, len(data)), 0, len(data))

    @classmethod
    def from_bytes(cls, blob: bytes) -> Ids:
        """Read little-endian uint32; the length must be a multiple of four bytes."""
        if len(blob) % ID_BYTES:
            raise ValueError(f"{len(blob)} bytes are no whole number of ids")
        data = np.frombuffer(blob, dtype=np.uint32)
        data = data if _WIRE_IS_NATIVE else data.byteswap()
        return cls(_Buffer(data, len(data)), 0, len(data))

    @classmethod
    def join(cls, parts: Sequence[Ids]) -> Ids:
        """All ``parts`` in a row; nothing is copied where they lie in a row already."""
        if not parts:
            return EMPTY
        first, stop = parts[0], parts[0]._stop
        for part in parts[1:]:
            if part._buffer is not first._buffer or part._start != stop:
                return cls.of(np.concatenate([part.array() for part in parts]))
            stop = part._stop
        return cls(first._buffer, first._start, stop)

    def to_bytes(self) -> bytes:
        """Little-endian uint32, four bytes an id."""
        mine = self._buffer.data[self._start : self._stop]
        return (mine if _WIRE_IS_NATIVE else mine.byteswap()).tobytes()

    def array(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint32]:
        """A read-only view of ids [start, stop), uint32."""
        view = self._buffer.data[self._start : self._stop][start:stop]
        view.flags.writeable = False
        return view

    def take(self, length: int) -> Ids:
        """The first ``length`` ids, sharing the storage."""
        return self.window(0, length)

    def window(self, start: int, stop: int) -> Ids:
        """Ids [start, stop), sharing the storage."""
        assert 0 <= start <= stop <= len(self), f"window({start}, {stop}) of {len(self)} ids"
        return Ids(self._buffer, self._start + start, self._start + stop)

    def extend(self, more: Ids) -> Ids:
        """These ids, then ``more``."""
        if more._stop == more._start:
            return self
        buffer = self._buffer
        stop = self._stop + more._stop - more._start
        if buffer.used == self._stop and stop <= buffer.room:
            buffer.data[self._stop : stop] = more._buffer.data[more._start : more._stop]
            buffer.used = stop
            return Ids(buffer, self._start, stop)
        return self._extended(more, stop)

    def common_prefix(self, other: Ids) -> int:
        """How many leading ids agree."""
        shortest = min(len(self), len(other))
        if self._buffer is other._buffer and self._start == other._start:
            return shortest
        differs = self.array(0, shortest) != other.array(0, shortest)
        first = int(differs.argmax()) if shortest else 0
        return first if shortest and differs[first] else shortest

    def _extended(self, more: Ids, stop: int) -> Ids:
        """``extend`` where these ids are not the storage's newest, or it is full or not ours."""
        buffer = self._buffer
        claimed = min(buffer.used, stop)
        taken = buffer.data[self._stop : claimed]
        if stop > buffer.room or not np.array_equal(taken, more.array(0, len(taken))):
            mine = self.array()
            buffer = _Buffer(_grown(mine, len(mine) + len(more)), len(mine))
            return Ids(buffer, 0, len(mine)).extend(more)
        if stop > buffer.used:  # what others claimed agrees; the rest is free
            buffer.data[claimed:stop] = more.array(claimed - self._stop)
            buffer.used = stop
        return Ids(buffer, self._start, stop)

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int) -> int:
        return int(self._buffer.data[self._start : self._stop][index])

    def __iter__(self) -> Iterator[int]:
        return iter(self.array().tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ids):
            return NotImplemented
        return len(self) == len(other) and self.common_prefix(other) == len(self)

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        head = ", ".join(str(i) for i in self.array(0, 8))
        more = ", ..." if len(self) > 8 else ""
        return f"Ids([{head}{more}], length={len(self)})"


EMPTY: Final = Ids.of(())


def checked_ids(values: object, *, field: str, vocabulary: int, empty_ok: bool = True) -> Ids:
    """Turn untrusted input into Ids.

    Args:
        values: what the caller sent; a list of int (no bool, no float), or Ids of this process.
        field: name of the field, for the error.
        vocabulary: ids must be below this number of embedding rows.
        empty_ok: whether no ids at all are allowed.

    Raises:
        InvalidInputError: names the field, the first bad index and what was found there.
    """
    if isinstance(values, Ids) and values and values.array().max() < vocabulary:
        return values
    if isinstance(values, Ids):
        values = list(values)
    if not isinstance(values, list):
        raise InvalidInputError(
            f"{field} must be a list of token ids, not {type(values).__name__}",
            field=field,
            found=type(values).__name__,
        )
    if not values and not empty_ok:
        raise InvalidInputError(f"{field} must not be empty", field=field, found=0, limit=1)
    if len(values) >= _MANY and (found := _all_ids(values, vocabulary)) is not None:
        return found
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < vocabulary:
            raise InvalidInputError(
                f"{field}[{index}] must be an integer from 0 to {vocabulary - 1}, "
                f"not {value!r:.80}",
                field=field,
                index=index,
                found=repr(value)[:80],
                limit=vocabulary - 1,
            )
    return Ids.of(values)


def checked_lists(
    lists: Sequence[object], *, field: str, vocabulary: int
) -> list[Ids | InvalidInputError]:
    """``checked_ids`` of many lists, each with its own error; all at once where none is wrong."""
    together: list[object] = []
    stops = [0]
    for values in lists:
        if type(values) is not list:
            break
        together += values
        stops.append(len(together))
    else:
        found = _all_ids(together, vocabulary)
        if found is not None:
            buffer = found._buffer
            return [Ids(buffer, start, stop) for start, stop in pairwise(stops)]
    return [_checked_or_error(values, field, vocabulary) for values in lists]


def _checked_or_error(values: object, field: str, vocabulary: int) -> Ids | InvalidInputError:
    try:
        return checked_ids(values, field=field, vocabulary=vocabulary)
    except InvalidInputError as error:
        return error


def _all_ids(values: list[Any], vocabulary: int) -> Ids | None:
    """The values if every one is an id; the whole list at C speed, since prompts are long."""
    if countOf(map(type, values), int) != len(values):
        return None
    try:
        data = np.array(values, dtype=np.int64)
    except OverflowError:
        return None
    if len(data) and not 0 <= data.min() <= data.max() < vocabulary:
        return None
    return Ids.of(data)


def _grown(data: NDArray[np.uint32], total: int) -> NDArray[np.uint32]:
    capacity = max(_FIRST_CAPACITY, total + total // 2)
    grown = np.empty(capacity, dtype=np.uint32)
    grown[: len(data)] = data
    return grown
