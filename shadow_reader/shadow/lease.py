"""The GPU lease: who may use the device now. Cooperative, fair, safe to cancel.

Laws:

1. A better rank goes first; equals go in the order they came.
2. Requests (rank 0) share the lease with each other, since a serving engine runs several at once.
   Every other rank holds it alone.
3. Nobody is interrupted: a holder sees ``wanted`` and lets go. The reader looks before each chunk.
   Requests that pause lend it to the reader for a slice; who comes meanwhile waits for that.
4. A cancelled waiter leaves no trace, also when it was granted in the same moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum

from shadow_reader.clock import Clock


class Rank(IntEnum):
    """Who goes first, best first."""

    REQUEST = 0
    DRAFTER = 1
    NARRATOR = 2
    SUMMARY = 3
    READER = 4


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """A holder or a waiter as the status shows it; ``seconds`` held or waited so far."""

    owner: str
    rank: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Who holds, who waits."""

    holders: tuple[LeaseEntry, ...]
    waiters: tuple[LeaseEntry, ...]


class Grant:
    """One holder's part of the lease; also stands for a waiter while it waits."""

    __slots__ = ("future", "owner", "rank", "since")

    def __init__(self, rank: Rank, owner: str, since: float) -> None:
        self.rank = rank
        self.owner = owner
        self.since = since
        self.future: asyncio.Future[None] | None = None


class Lease:
    """The lease of one device."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holders: list[Grant] = []
        self._waiting: dict[Rank, deque[Grant]] = {rank: deque() for rank in Rank}
        self._listeners: list[Callable[[], None]] = []

    def on_free(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever the lease becomes free with nobody waiting."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` no more."""
        self._listeners.remove(listener)

    @property
    def free(self) -> bool:
        """Nobody holds it and nobody waits."""
        return not self._holders and not any(self._waiting.values())

    def wanted(self, rank: Rank) -> bool:
        """Whether somebody with a better rank than ``rank`` waits."""
        return any(self._waiting[better] for better in Rank if better < rank)

    def try_acquire(self, rank: Rank, owner: str) -> Grant | None:
        """Take the lease if it is to be had at once, behind every waiter; else None."""
        if any(self._waiting.values()) or not self._admits(rank):
            return None
        return self._grant(Grant(rank, owner, self._clock.monotonic()))

    @property
    def lendable(self) -> bool:
        """Whether requests alone hold it, and nobody waits."""
        held = bool(self._holders) and all(h.rank is Rank.REQUEST for h in self._holders)
        return held and not any(self._waiting.values())

    def lend(self, rank: Rank, owner: str) -> Grant | None:
        """Take it beside the requests that hold it, which have paused; None: they do not, or
        somebody waits. ``release`` gives it back."""
        if not self.lendable:
            return None
        return self._grant(Grant(rank, owner, self._clock.monotonic()))

    async def acquire(self, rank: Rank, owner: str) -> Grant:
        """Wait for the lease."""
        ahead = any(self._waiting[other] for other in Rank if other <= rank)
        grant = Grant(rank, owner, self._clock.monotonic())
        if not ahead and self._admits(rank):
            return self._grant(grant)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        grant.future = future
        self._waiting[rank].append(grant)
        try:
            await future
        except asyncio.CancelledError:
            if grant in self._holders:
                self.release(grant)
            elif grant in self._waiting[rank]:
                self._waiting[rank].remove(grant)
                self._pass_on()
            raise
        return grant

    def release(self, grant: Grant) -> None:
        """Let go; the next in line is granted before this returns."""
        self._holders.remove(grant)
        self._pass_on()

    @asynccontextmanager
    async def hold(self, rank: Rank, owner: str) -> AsyncIterator[Grant]:
        """Hold the lease for a block."""
        grant = await self.acquire(rank, owner)
        try:
            yield grant
        finally:
            self.release(grant)

    def request(self, owner: str = "request") -> AbstractAsyncContextManager[Grant]:
        """What a request of the big model holds while it runs: ``async with lease.request():``."""
        return self.hold(Rank.REQUEST, owner)

    def status(self) -> LeaseStatus:
        """Who holds and who waits, in order."""
        now = self._clock.monotonic()
        waiting = [grant for rank in Rank for grant in self._waiting[rank]]
        return LeaseStatus(
            holders=tuple(_entry(grant, now) for grant in self._holders),
            waiters=tuple(_entry(grant, now) for grant in waiting),
        )

    def _admits(self, rank: Rank) -> bool:
        if not self._holders:
            return True
        return rank is Rank.REQUEST and all(h.rank is Rank.REQUEST for h in self._holders)

    def _grant(self, grant: Grant) -> Grant:
        grant.since = self._clock.monotonic()
        self._holders.append(grant)
        return grant

    def _pass_on(self) -> None:
        for rank in Rank:
            line = self._waiting[rank]
            while line and self._admits(rank):
                grant = line.popleft()
                assert grant.future is not None
                if not grant.future.done():
                    self._grant(grant)
                    grant.future.set_result(None)
            if line:
                return
        if self.free:
            for listener in self._listeners:
                listener()


def _entry(grant: Grant, now: float) -> LeaseEntry:
    return LeaseEntry(grant.owner, grant.rank.name.lower(), now - grant.since)
