"""Holds: somebody wants the box quiet for a while, to measure or to start something big.

Laws: while a hold is on, the shadow does nothing of its own accord: it does not read, move states
or load a model. Whoever asks a question gets it answered. Every hold ends by itself; their number
is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from shadow_reader.bounds import Bound
from shadow_reader.clock import Clock
from shadow_reader.errors import InvalidInputError, NotFoundError
from shadow_reader.events.types import HoldEnd

MAX_OWNER_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold; ``left_s``: until it ends by itself."""

    hold: str
    owner: str
    left_s: float


@dataclass(slots=True)
class _Held:
    owner: str
    until_s: float
    timer: asyncio.TimerHandle


class Holds:
    """All holds that are on.

    Args:
        bound: on their number. longest_s: that one may last.

    Attributes:
        on_change: told when the first begins and when one ends.
        on_begin: told which began, and for how long at most. on_end: which ended, and why.
    """

    def __init__(self, clock: Clock, bound: Bound, longest_s: float) -> None:
        self._clock = clock
        self._bound = bound
        self._longest_s = longest_s
        self._held: dict[str, _Held] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.on_begin: Callable[[Hold], None] = lambda _hold: None
        self.on_end: Callable[[str, HoldEnd], None] = lambda _hold, _why: None

    @property
    def any(self) -> bool:
        """Whether a hold is on."""
        return bool(self._held)

    def begin(self, owner: str, duration_s: float) -> Hold:
        """Hold the box for so long.

        Raises:
            InvalidInputError: no owner, or longer than a hold may last. BusyError: too many.
        """
        if not owner or len(owner) > MAX_OWNER_LENGTH or not owner.isprintable():
            raise InvalidInputError(
                f"owner must be 1 to {MAX_OWNER_LENGTH} printable characters, not {owner!r:.60}",
                field="owner",
                limit=MAX_OWNER_LENGTH,
                found=len(owner),
            )
        self._check(duration_s)
        self._bound.take()
        name = uuid4().hex
        self._held[name] = _Held(owner, *self._until(name, duration_s))
        self.on_begin(self._shown(name))
        self.on_change()
        return self._shown(name)

    def extend(self, hold: str, duration_s: float) -> Hold:
        """Let a hold last for so long from now on.

        Raises:
            NotFoundError: it is not on (any more). InvalidInputError: longer than one may last.
        """
        self._check(duration_s)
        held = self._get(hold)
        held.timer.cancel()
        held.until_s, held.timer = self._until(hold, duration_s)
        return self._shown(hold)

    def end(self, hold: str, why: HoldEnd = "released") -> Hold:
        """End a hold before its time.

        Raises:
            NotFoundError: it is not on (any more).
        """
        self._get(hold)
        shown = self._shown(hold)
        self._held.pop(hold).timer.cancel()
        self._bound.give()
        self.on_end(hold, why)
        self.on_change()
        return shown

    def close(self) -> None:
        """End all of them."""
        for hold in tuple(self._held):
            self.end(hold, "closed")

    def shown(self) -> tuple[Hold, ...]:
        """All that are on, the one that ends first first."""
        return tuple(sorted(map(self._shown, self._held), key=lambda hold: hold.left_s))

    def _check(self, duration_s: float) -> None:
        if not 0 < duration_s <= self._longest_s:
            raise InvalidInputError(
                f"seconds must be above 0 and at most {self._longest_s:g}, not {duration_s:g}",
                field="seconds",
                found=duration_s,
                limit=self._longest_s,
            )

    def _until(self, hold: str, duration_s: float) -> tuple[float, asyncio.TimerHandle]:
        timer = asyncio.get_running_loop().call_later(duration_s, self.end, hold, "expired")
        return self._clock.monotonic() + duration_s, timer

    def _get(self, hold: str) -> _Held:
        held = self._held.get(hold)
        if held is None:
            raise NotFoundError(f"no hold {hold!r:.80} is on", field="hold", found=hold[:80])
        return held

    def _shown(self, hold: str) -> Hold:
        held = self._held[hold]
        return Hold(hold, held.owner, max(0.0, held.until_s - self._clock.monotonic()))
