"""Deltas: any cut is allowed, no id may be lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import InvalidInputError
from shadow_reader.replay.deltas import split_deltas


@given(st.lists(st.integers(0, 300_000)), st.integers(), st.integers(1, 9), st.integers(0, 9))
def test_deltas_put_together_are_the_output(ids: list[int], seed: int, low: int, more: int) -> None:
    deltas = split_deltas(ids, seed=seed, low=low, high=low + more)
    assert [number for delta in deltas for number in delta] == ids
    assert all(low <= len(delta) <= low + more for delta in deltas[:-1])
    assert all(1 <= len(delta) <= low + more for delta in deltas)
    assert deltas == split_deltas(ids, seed=seed, low=low, high=low + more)


def test_the_cuts_are_the_same_in_every_process() -> None:
    assert [len(delta) for delta in split_deltas(range(20), seed=7)] == [6, 3, 7, 1, 2, 1]
    assert split_deltas(range(40), seed=1) != split_deltas(range(40), seed=2)
    assert split_deltas([], seed=1) == []


@pytest.mark.parametrize(("low", "high"), [(0, 4), (5, 4), (-1, -1)])
def test_bounds_that_make_no_sense_are_refused(low: int, high: int) -> None:
    with pytest.raises(InvalidInputError, match=f"found {low} and {high}"):
        split_deltas([1], seed=1, low=low, high=high)
