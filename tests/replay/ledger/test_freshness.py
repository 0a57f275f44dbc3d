"""Definitions of behind, nearest ranks, and intervals over sessions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.replay.ledger import Turn
from shadow_reader.replay.ledger.freshness import (
    Behind,
    Figures,
    behind_at,
    figures,
    fresh_share,
    percentile,
    resampled,
)

FIRST = Turn("s", None, 0, 0.0, 1.0, 2.0, 10_000, 0, 800)
TOOL = Turn("s", None, 1, 3.0, 4.0, 5.0, 11_500, 10_800, 300)
PERSON = Turn("s", None, 1, 3.0, 4.0, 5.0, 10_600, 10_000, 300)


def test_a_first_turn_is_behind_by_its_prompt_only_in_b() -> None:
    assert behind_at(None, FIRST, read_ids=0, rewound_ids=0) == Behind(0, 10_000, 0)


def test_a_tool_turn_keeps_everything() -> None:
    found = behind_at(FIRST, TOOL, read_ids=10_752, rewound_ids=10_752)
    assert found == Behind(a=48, b=748, c=48)


def test_a_rewind_counts_in_b_and_c_and_not_in_a() -> None:
    found = behind_at(FIRST, PERSON, read_ids=10_752, rewound_ids=9_728)
    assert found == Behind(a=48, b=872, c=272)


@pytest.mark.parametrize(
    ("read", "rewound"), [(-1, 0), (10_801, 0), (10_752, 10_753), (10_752, 10_001), (100, -1)]
)
def test_what_cannot_have_been_read_is_refused(read: int, rewound: int) -> None:
    with pytest.raises(ValueError, match="must be from 0 to"):
        behind_at(FIRST, PERSON, read_ids=read, rewound_ids=rewound)


def test_percentiles_are_values_by_nearest_rank() -> None:
    values = [50, 10, 40, 20, 30]
    assert [percentile(values, p) for p in (0.01, 0.2, 0.21, 0.5, 0.9, 1.0)] == [
        10, 10, 20, 30, 50, 50,
    ]  # fmt: skip
    assert percentile(list(range(1, 11)), 0.9) == 9
    assert percentile([7], 0.5) == 7


@given(st.lists(st.integers(0, 10**6), min_size=1), st.integers(1, 100))
def test_a_percentile_covers_its_share_and_no_smaller_value_does(
    values: list[int], percent: int
) -> None:
    found = percentile(values, percent / 100)
    assert sum(v <= found for v in values) * 100 >= percent * len(values)
    assert sum(v < found for v in values) * 100 < percent * len(values)


def test_fresh_is_less_than_a_chunk() -> None:
    assert fresh_share([0, 511, 512, 5000]) == 0.5
    assert fresh_share([0, 511], grid_ids=256) == 0.5
    assert figures([0, 511, 512, 5000]) == Figures(turns=4, fresh=0.5, p50=511, p90=5000)


@pytest.mark.parametrize("call", [lambda: percentile([], 0.5), lambda: fresh_share([])])
def test_no_values_have_no_figures(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match="at least one value"):
        call()


def test_shares_that_are_none_are_refused() -> None:
    for share in (0.0, 1.01):
        with pytest.raises(ValueError, match="share"):
            percentile([1], share)


def test_an_interval_depends_on_its_seed_alone_and_holds_the_figure() -> None:
    sessions = {f"s{n}": [100] * (n % 3 + 1) + [900] * (n % 5) for n in range(41)}
    flat = [value for values in sessions.values() for value in values]
    one = resampled(sessions, fresh_share, seed=3, draws=400)
    backwards = dict(reversed(list(sessions.items())))
    assert one == resampled(backwards, fresh_share, seed=3, draws=400)
    assert one != resampled(sessions, fresh_share, seed=4, draws=400)
    assert one.low < fresh_share(flat) < one.high
    narrow = resampled(sessions, fresh_share, seed=3, draws=400, level=0.5)
    assert one.low < narrow.low < narrow.high < one.high


def test_sessions_that_are_all_alike_have_no_spread() -> None:
    found = resampled({"a": [1, 600], "b": [2, 700], "none": []}, fresh_share, seed=0, draws=50)
    assert (found.low, found.high) == (0.5, 0.5)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one session"):
        resampled({"a": []}, fresh_share, seed=0)
    with pytest.raises(ValueError, match="draws"):
        resampled({"a": [1]}, fresh_share, seed=0, draws=0)
    with pytest.raises(ValueError, match="level"):
        resampled({"a": [1]}, fresh_share, seed=0, level=1.0)
