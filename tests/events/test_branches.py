"""Which line of a session's talk a prompt goes to."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.config import Settings
from shadow_reader.events.branches import (
    MAX_BRANCHES,
    Line,
    choose_line,
    continues,
    line_name,
    line_names,
    split_name,
    told_again,
)
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView, TurnView

BRANCH_MIN = 10


def line(ids: list[int], heard: float = 0.0, *, running: bool = False) -> Line:
    """A line that knows ``ids``, the last two of them output."""
    ended_at = None if running else 2.0
    turn = TurnView("t", max(0, len(ids) - 2), 1.0, ended_at=ended_at)
    return Line(SessionView("s", 1.0, 1.0, known=Ids.of(ids), turn=turn), heard)


FREE = Line(None, 0.0)


def choose(lines: list[Line], prompt: list[int], *, branches: int = 3) -> int:
    return choose_line(lines, Ids.of(prompt), branch_min=BRANCH_MIN, branches=branches)


def test_a_name_says_its_session_and_its_line() -> None:
    assert line_names("s", 2) == ("s", "s~branch1", "s~branch2")
    assert split_name("s") == ("s", None)
    assert split_name("s~branch0") == ("s", 0)
    assert split_name("s~branch12") == ("s", 12)
    assert split_name("s~branch1~branch2") == ("s~branch1", 2)


@pytest.mark.parametrize(
    "name", ["s~branch", "~branch1", "s~branch01", "s~branch100", "s~branch1 ", "s~branchx", "s~1"]
)
def test_what_only_looks_like_the_name_of_a_line_is_a_session(name: str) -> None:
    assert split_name(name) == (name, None)


@given(st.text(min_size=1), st.integers(1, MAX_BRANCHES))
def test_every_name_of_a_line_reads_back(session: str, branch: int) -> None:
    assert split_name(line_name(session, branch)) == (session, branch)


def test_the_setting_goes_as_far_as_the_names() -> None:
    assert Settings(branches=MAX_BRANCHES).branches == MAX_BRANCHES
    with pytest.raises(ValueError, match="16"):
        Settings(branches=MAX_BRANCHES + 1)


LONG = list(range(100, 140))
"""40 ids: to lose more than ten of them takes a line of its own."""


@pytest.mark.parametrize(
    ("lines", "prompt", "expected"),
    [
        ([FREE], [1, 2], 0),
        ([line(LONG)], [*LONG, 1], 0),
        ([line(LONG)], LONG[:20], 0),
        ([line(LONG)], LONG[:19], 1),
        ([line(LONG)], [1, 2, 3], 1),
        ([line(LONG[:10])], [1, 2, 3], 0),
        ([line(LONG[:11])], [1, 2, 3], 1),
        ([line(LONG[:4], running=True)], [1, 2, 3], 1),
        ([line(LONG[:4], running=True)], [*LONG[:2], 9], 0),
        ([line(LONG), line([1, 2, 3])], [*LONG, 7], 0),
        ([line(LONG), line([1, 2, 3])], [1, 2, 3, 4], 1),
        ([line(LONG), line([1, 2, 3])], [7, 7], 1),
        ([line(LONG), FREE], [7, 7], 1),
        ([line(LONG), FREE, line([*LONG[:10], *range(30)])], [7, 7], 1),
        ([line(LONG), line([*LONG[:10], *range(30)])], [*LONG[:10], *range(30), 4], 1),
    ],
)
def test_a_prompt_goes_to_the_line_that_it_goes_on_with(
    lines: list[Line], prompt: list[int], expected: int
) -> None:
    assert choose(lines, prompt) == expected


def test_of_equal_lines_the_one_that_would_lose_least_takes_it() -> None:
    assert choose([line([1, *range(50, 70)]), line([1, 2])], [1, 9, 9]) == 1
    assert choose([line([1, 2], 1.0), line([1, 3], 2.0)], [1, 9]) == 1


def test_where_no_line_may_be_added_the_one_spoken_of_longest_ago_is_taken_over() -> None:
    lines = [line(LONG, 3.0), line(LONG[::-1], 1.0, running=True), line(LONG[5:], 2.0)]
    assert choose(lines, [7, 7, 7], branches=2) == 2
    every = [line(LONG, 3.0, running=True), line(LONG[::-1], 1.0, running=True)]
    assert choose(every, [7, 7, 7], branches=1) == 1
    assert choose([line(LONG)], [7, 7, 7], branches=0) == 0


# -- told again in other ids -------------------------------------------------------------------


def talk(turns: int, *, reasoning: bool, seed: int = 1) -> list[int]:
    """A system prompt, then answers with 300 ids of reasoning or none, and results of 200 ids."""
    random = Random(seed)
    ids = [random.randrange(1000) for _ in range(100)]
    for _ in range(turns):
        thought = [random.randrange(1000) for _ in range(300)]
        result = [random.randrange(1000) for _ in range(200)]
        ids += [7, *(thought if reasoning else []), 8, *result]
    return ids


def test_a_prompt_without_the_earlier_reasoning_is_the_same_line() -> None:
    """Case 2: it agrees only up to the first thought, far below half."""
    before, after = talk(20, reasoning=True), [*talk(20, reasoning=False), 3, 4, 5]
    assert choose([line(before)], after) == 0
    assert choose([line(before, running=True)], after) == 0, "it supersedes the turn"
    assert choose([line(before), line([1, 2, 3])], after) == 0


def test_a_title_request_that_quotes_the_first_message_is_another_line() -> None:
    before = talk(20, reasoning=True)
    title = [901, 902, *before[100:500], 903]
    assert choose([line(before)], title) == 1
    other = [*before[:100], *talk(20, reasoning=False, seed=2)[100:]]
    assert choose([line(before)], other) == 1, "only the system prompt is the same"


def test_what_is_told_again_is_counted_in_whole_ids() -> None:
    known = Ids.of([*range(10), *[1 << 8, 1 << 16] * 50])
    shifted = known.to_bytes()[41:]
    assert told_again(known, 10, Ids.from_bytes(shifted[: len(shifted) // 4 * 4])) == 0
    assert told_again(known, 10, Ids.of([5, *known.array(10)])) == 1
    assert told_again(Ids.of(range(20)), 0, Ids.of(range(20))) == 0, "too short for a probe"


ids = st.lists(st.integers(0, 2), max_size=30)
some_lines = st.lists(
    st.one_of(
        st.just(FREE),
        st.builds(
            lambda known, heard, running: line(known, heard, running=running),
            ids.filter(bool),
            st.floats(0, 9),
            st.booleans(),
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(some_lines, ids.filter(bool), st.integers(0, 5))
def test_a_choice_is_a_line_that_there_is_or_may_be(
    lines: list[Line], prompt: list[int], branches: int
) -> None:
    index = choose(lines, prompt, branches=branches)
    assert 0 <= index <= len(lines)
    known = [one.view.known if one.view else Ids.of([]) for one in lines]
    agreed = [one.common_prefix(Ids.of(prompt)) for one in known]
    going_on = [
        i
        for i, one in enumerate(lines)
        if one.view is not None
        and continues(one.view, agreed[i], Ids.of(prompt), branch_min=BRANCH_MIN)
    ]
    if going_on:
        assert index in going_on
        assert agreed[index] == max(agreed[i] for i in going_on)
    elif index == len(lines) or lines[index].view is None:
        assert index <= branches or not any(one.view for one in lines)
    else:
        free = [i for i, one in enumerate(lines) if one.view is None] + [len(lines)]
        assert free[0] > branches
