"""Counts that must not pass a limit, and the one list of all of them that the status shows.

Law: whoever takes gives back, and ``used`` never passes ``limit``: a refusal takes nothing.
Used on the event loop alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shadow_reader.errors import BusyError


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound as the status shows it.

    Attributes:
        name: of the setting that sets it; ``memory_bytes`` is set by ``cap_gb``.
        used: how much of it is taken now. limit: the most that may be.
    """

    name: str
    used: int
    limit: int


class Bound:
    """Something that may be taken up to a limit: requests, bytes.

    Args:
        name: of the setting that sets the limit.
    """

    __slots__ = ("_waiting", "limit", "name", "used")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self._waiting: list[asyncio.Future[None]] = []

    def check(self, count: int) -> None:
        """Whether ``count`` could be taken now.

        Raises:
            BusyError: less is left; try again later.
        """
        if self.used + count > self.limit:
            raise BusyError(
                f"{self.name} are at their limit: {self.used} of {self.limit} are in use, "
                f"{count} more are asked for",
                field=self.name,
                found=self.used,
                limit=self.limit,
            )

    def take(self, count: int = 1) -> None:
        """Take ``count``; ``give`` must follow.

        Raises:
            BusyError: less is left; nothing was taken.
        """
        self.check(count)
        self.used += count

    def give(self, count: int = 1) -> None:
        """Give back ``count`` of what was taken."""
        assert 0 <= count <= self.used, f"{count} of {self.used} {self.name} given back"
        self.used -= count
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def room(self, count: int = 1) -> None:
        """Wait until ``count`` could be taken; it can until something else is awaited.

        Raises:
            BusyError: it never could: the limit is lower.
        """
        if count > self.limit:
            self.check(count)
        while self.used + count > self.limit:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take one for the length of a block.

        Raises:
            BusyError: all are taken.
        """
        self.take()
        try:
            yield
        finally:
            self.give()

    @contextmanager
    def share(self) -> Iterator[Share]:
        """A share that grows within a block and is given back whole at its end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.give(share.taken)

    def as_limit(self) -> Limit:
        """How it stands."""
        return Limit(self.name, self.used, self.limit)


class Share:
    """What one holder has of a bound; made by ``Bound.share``."""

    __slots__ = ("bound", "taken")

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.taken = 0

    def take(self, count: int) -> None:
        """Take ``count`` more.

        Raises:
            BusyError: less is left; nothing was taken.
        """
        self.bound.take(count)
        self.taken += count

    def give(self, count: int) -> None:
        """Give back ``count`` before the block ends."""
        assert count <= self.taken, f"{count} of a share of {self.taken} given back"
        self.bound.give(count)
        self.taken -= count


class Bounds:
    """Every bound of a service, by name, in the order they were added."""

    def __init__(self) -> None:
        self._looks: dict[str, Callable[[], Limit]] = {}

    def add(self, bound: Bound) -> Bound:
        """List a bound; one of the same name is replaced."""
        self._looks[bound.name] = bound.as_limit
        return bound

    def watch(self, name: str, limit: int, used: Callable[[], int]) -> None:
        """List something that is bounded elsewhere; ``used`` is asked whenever somebody looks."""
        self._looks[name] = lambda: Limit(name, used(), limit)

    def limits(self) -> tuple[Limit, ...]:
        """How all of them stand."""
        return tuple(look() for look in self._looks.values())
