"""Bounds: whoever takes gives back, a refusal takes nothing, and a wait ends when there is room."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.bounds import Bound, Bounds, Limit
from shadow_reader.errors import BusyError
from tests.fakes import settle, steps


def test_a_refusal_names_the_bound_and_takes_nothing() -> None:
    bound = Bound("bodies_bytes", 10)
    bound.take(7)
    with pytest.raises(BusyError, match="7 of 10 are in use, 4 more") as error:
        bound.take(4)
    assert error.value.details == {"field": "bodies_bytes", "found": 7, "limit": 10}
    assert bound.as_limit() == Limit("bodies_bytes", 7, 10)
    bound.take(3)
    assert bound.used == 10
    with pytest.raises(BusyError):
        bound.check(1)
    bound.check(0)


def fail_with_a_share(bound: Bound) -> None:
    with bound.one(), bound.share() as share:
        share.take(4)
        share.give(1)
        share.take(5)
        assert (bound.used, share.taken) == (9, 8)
        with pytest.raises(BusyError):
            share.take(2)
        assert (bound.used, share.taken) == (9, 8)
        raise ZeroDivisionError


def test_blocks_give_back_also_when_they_fail() -> None:
    bound = Bound("x", 10)
    with pytest.raises(ZeroDivisionError):
        fail_with_a_share(bound)
    assert bound.used == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40))
def test_it_never_passes_its_limit_and_forgets_nobody(moves: list[tuple[int, int]]) -> None:
    """Holders take; one that is full or refused lets go of all it has."""
    bound = Bound("x", 12)
    held = [0] * 5
    for holder, count in moves:
        try:
            bound.take(count)
        except BusyError:
            assert sum(held) + count > 12
            bound.give(held[holder])
            held[holder] = 0
        else:
            held[holder] += count
        assert bound.used == sum(held) <= 12


async def test_who_waits_for_room_goes_on_once_there_is_enough() -> None:
    bound = Bound("x", 10)
    bound.take(9)
    done: list[int] = []

    async def wait(count: int) -> None:
        await bound.room(count)
        bound.take(count)
        done.append(count)

    waits = [asyncio.create_task(wait(count)) for count in (6, 5, 1)]
    await steps()
    assert done == [1]
    waits[0].cancel()
    bound.give(4)
    await steps()
    assert done == [1]
    bound.give(1)
    await settle(*waits)
    assert done == [1, 5]
    assert bound.used == 10
    with pytest.raises(BusyError):
        await bound.room(11)


def test_the_list_shows_counts_and_what_is_counted_elsewhere() -> None:
    bounds, used = Bounds(), [3]
    first = bounds.add(Bound("requests", 5))
    bounds.watch("sessions", 9, lambda: used[0])
    with first.one():
        used[0] = 4
        assert bounds.limits() == (Limit("requests", 1, 5), Limit("sessions", 4, 9))
    bounds.add(Bound("requests", 7))
    assert bounds.limits()[0] == Limit("requests", 0, 7)
