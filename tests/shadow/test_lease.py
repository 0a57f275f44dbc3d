"""The lease: ranks, fairness, shared requests, and cancellation at any moment leaving no trace."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.clock import ManualClock
from shadow_reader.shadow.lease import Grant, Lease, LeaseEntry, Rank
from tests.fakes import EFFORT, run_virtual, steps


@dataclass(eq=False)
class Caller:
    """One ``acquire`` driven by hand, so that a cancellation can come between any two moments.

    asyncio cancels in two moments: it cancels the future the task waits for (if that is not done
    yet), and later throws into the coroutine. Everything else may happen in between.
    """

    number: int
    rank: Rank
    line: Coroutine[Any, Any, Grant]
    future: asyncio.Future[None] | None = None
    grant: Grant | None = None
    cancelled: bool = False
    gone: bool = False

    def begin(self) -> None:
        try:
            self.future = self.line.send(None)
        except StopIteration as stop:
            self.grant = stop.value

    def cancel(self) -> None:
        assert self.future is not None
        self.cancelled = True
        self.future.cancel()

    def deliver(self) -> None:
        """The task runs again: with its cancellation, or with what it waited for."""
        try:
            if self.cancelled:
                self.line.throw(asyncio.CancelledError())
            else:
                self.line.send(None)
        except StopIteration as stop:
            self.grant = stop.value
        except asyncio.CancelledError:
            self.gone = True

    @property
    def deliverable(self) -> bool:
        return (
            self.grant is None
            and not self.gone
            and self.future is not None
            and (self.cancelled or self.future.done())
        )


@dataclass
class Scene:
    """A lease, everybody who came to it, and what must be true whenever anything happened."""

    lease: Lease = field(default_factory=lambda: Lease(ManualClock()))
    callers: list[Caller] = field(default_factory=list)
    tried: list[Grant] = field(default_factory=list)
    freed: int = 0
    granted: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.lease.on_free(self._count)

    def _count(self) -> None:
        self.freed += 1

    def holding(self) -> list[int]:
        return [int(entry.owner) for entry in self.lease.status().holders]

    def live_waiters(self) -> list[Caller]:
        held = set(self.holding())
        return [
            caller
            for caller in self.callers
            if caller.number not in held
            and caller.grant is None
            and not caller.cancelled
            and not caller.gone
        ]

    def check(self, free_before: bool, freed_before: int) -> None:
        holders = self.lease.status().holders
        ranks = [entry.rank for entry in holders]
        assert len(ranks) <= 1 or set(ranks) == {"request"}, "only requests share"

        waiting = sorted((c.rank, c.number) for c in self.live_waiters())
        if waiting:
            admits = not ranks or (waiting[0][0] is Rank.REQUEST and set(ranks) == {"request"})
            assert not admits, "the first in line could have it and does not"
        for rank in Rank:
            if any(c.rank < rank for c in self.live_waiters()):
                assert self.lease.wanted(rank)

        for number in self.holding():
            if number >= 0 and number not in self.granted:
                self.granted.add(number)
                caller = self.callers[number]
                if caller.future is not None:
                    ahead = [w for w in waiting if w < (caller.rank, caller.number)]
                    assert not ahead, "somebody ahead in line still waits"
                    assert not caller.cancelled, "granted after it was cancelled"

        became_free = self.lease.free and not free_before
        assert self.freed - freed_before == became_free, "told once, when it becomes free"

    def release(self, number: int) -> None:
        if number < 0:
            grant = next(g for g in self.tried if g.owner == str(number))
            self.tried.remove(grant)
        else:
            caller = self.callers[number]
            if caller.grant is None:
                return  # granted, but its task has not run yet: it cannot let go
            grant, caller.gone = caller.grant, True
        self.lease.release(grant)

    def act(self, what: str, pick: int) -> None:
        ranks = list(Rank)
        if what == "acquire":
            number, rank = len(self.callers), ranks[pick % len(ranks)]
            caller = Caller(number, rank, self.lease.acquire(rank, str(number)))
            self.callers.append(caller)
            caller.begin()
        elif what == "try":
            grant = self.lease.try_acquire(ranks[pick % len(ranks)], str(-1 - len(self.tried)))
            waits = self.live_waiters()
            if grant is not None:
                assert not waits, "try_acquire goes behind every waiter"
                self.tried.append(grant)
        elif what == "release" and (holding := self.holding()):
            self.release(holding[pick % len(holding)])
        elif what == "cancel":
            waiting = [c for c in self.callers if c.future and not (c.grant or c.gone)]
            if waiting:
                waiting[pick % len(waiting)].cancel()
        elif what == "deliver":
            ready = [c for c in self.callers if c.deliverable]
            if ready:
                ready[pick % len(ready)].deliver()


MOVES = st.tuples(
    st.sampled_from(["acquire", "acquire", "try", "release", "release", "cancel", "deliver"]),
    st.integers(0, 40),
)


@settings(max_examples=150 * EFFORT)
@given(st.lists(MOVES, max_size=60))
def test_laws_hold_in_every_interleaving(moves: list[tuple[str, int]]) -> None:
    async def play() -> None:
        scene = Scene()
        for what, pick in moves:
            before = scene.lease.free, scene.freed
            scene.act(what, pick)
            scene.check(*before)
        while not scene.lease.free:
            for caller in scene.callers:
                if caller.deliverable:
                    caller.deliver()
            for number in scene.holding():
                scene.release(number)
        assert scene.lease.status().holders == scene.lease.status().waiters == ()

    run_virtual(play())


@pytest.mark.parametrize("rank", list(Rank))
async def test_better_ranks_first_and_equals_in_order(rank: Rank) -> None:
    lease, order = Lease(ManualClock()), list[str]()

    async def take(other: Rank, name: str) -> None:
        async with lease.hold(other, name):
            order.append(name)

    first = await lease.acquire(rank, "first")
    tasks = []
    for number in range(2):
        for other in reversed(Rank):
            tasks.append(asyncio.create_task(take(other, f"{other.name}{number}")))
            await steps(2)
    lease.release(first)
    await asyncio.gather(*tasks)
    # Nobody may pass the requests, which share the lease at once when the first is a request too.
    assert order == [f"{other.name}{number}" for other in Rank for number in range(2)]


async def test_requests_share_and_others_wait_for_all_of_them() -> None:
    lease, clock_free = Lease(ManualClock()), list[int]()
    lease.on_free(lambda: clock_free.append(1))
    one = await lease.acquire(Rank.REQUEST, "one")
    two = await lease.acquire(Rank.REQUEST, "two")
    reader = asyncio.create_task(lease.acquire(Rank.READER, "reader"))
    await steps(3)
    assert [h.owner for h in lease.status().holders] == ["one", "two"]
    # A request that comes later goes before the reader, and shares.
    three = await lease.acquire(Rank.REQUEST, "three")
    lease.release(one)
    lease.release(two)
    await steps(3)
    assert not reader.done()
    lease.release(three)
    grant = await reader
    assert not clock_free
    lease.release(grant)
    assert clock_free == [1]


async def test_a_request_waits_for_whoever_holds_it_alone() -> None:
    lease = Lease(ManualClock())
    grant = lease.try_acquire(Rank.READER, "reader")
    assert grant is not None
    assert not lease.wanted(Rank.READER)
    waiting = asyncio.create_task(lease.acquire(Rank.REQUEST, "request"))
    await steps(2)
    assert lease.wanted(Rank.READER)
    assert not lease.wanted(Rank.REQUEST)
    assert lease.try_acquire(Rank.REQUEST, "impatient") is None
    lease.release(grant)
    assert [h.owner for h in lease.status().holders] == ["request"]
    lease.release(await waiting)
    assert lease.free


async def test_cancelled_in_the_moment_of_being_granted() -> None:
    lease = Lease(ManualClock())
    first = await lease.acquire(Rank.READER, "first")
    granted = asyncio.create_task(lease.acquire(Rank.READER, "granted"))
    behind = asyncio.create_task(lease.acquire(Rank.READER, "behind"))
    await steps(2)
    lease.release(first)
    granted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await granted
    lease.release(await behind)
    assert lease.free


async def test_hold_lets_go_when_its_block_fails_or_is_cancelled() -> None:
    lease = Lease(ManualClock())
    with pytest.raises(ZeroDivisionError):
        async with lease.request():
            raise ZeroDivisionError
    assert lease.free

    async def sit() -> None:
        async with lease.request():
            await asyncio.Event().wait()

    task = asyncio.create_task(sit())
    await steps(2)
    assert [h.owner for h in lease.status().holders] == ["request"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lease.free


async def test_status_names_holders_and_waiters_with_their_seconds() -> None:
    clock = ManualClock()
    lease = Lease(clock)
    grant = await lease.acquire(Rank.NARRATOR, "narrator")
    clock.advance(2)
    waiting = asyncio.create_task(lease.acquire(Rank.READER, "reader"))
    ahead = asyncio.create_task(lease.acquire(Rank.REQUEST, "request"))
    await steps(2)
    clock.advance(3)
    clock.jump(-1000)
    status = lease.status()
    assert status.holders == (LeaseEntry("narrator", "narrator", 5.0),)
    assert status.waiters == (
        LeaseEntry("request", "request", 3.0),
        LeaseEntry("reader", "reader", 3.0),
    )
    lease.release(grant)
    # Held since it was granted, not since it began to wait.
    clock.advance(1)
    assert lease.status().holders == (LeaseEntry("request", "request", 1.0),)
    lease.release(await ahead)
    lease.release(await waiting)


async def test_letting_go_twice_is_our_bug_and_says_so() -> None:
    lease = Lease(ManualClock())
    grant = await lease.acquire(Rank.READER, "reader")
    lease.release(grant)
    with pytest.raises(ValueError, match="not in list"):
        lease.release(grant)
