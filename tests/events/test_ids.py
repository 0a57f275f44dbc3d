"""Ids against lists: whatever shares whatever, no value ever changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from shadow_reader.errors import InvalidInputError
from shadow_reader.events.ids import EMPTY, Ids, checked_ids, checked_lists

# few values, so that what is appended to a shared buffer often agrees with what is there already
few_ids = st.lists(st.integers(0, 2), max_size=80)
any_ids = st.lists(st.integers(0, 2**32 - 1), max_size=20)


class SharedBuffers(RuleBasedStateMachine):
    """Values made from each other in every way, each beside the list it stands for."""

    values: Bundle[tuple[Ids, list[int]]] = Bundle("values")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[Ids, list[int]]] = [(EMPTY, [])]

    def _made(self, ids: Ids, model: list[int]) -> tuple[Ids, list[int]]:
        self.all.append((ids, model))
        return ids, model

    @rule(target=values, model=few_ids)
    def of(self, model: list[int]) -> tuple[Ids, list[int]]:
        return self._made(Ids.of(model), model)

    @rule(target=values, model=few_ids)
    def from_bytes(self, model: list[int]) -> tuple[Ids, list[int]]:
        return self._made(Ids.from_bytes(np.array(model, dtype="<u4").tobytes()), model)

    @rule(target=values, base=values, data=st.data())
    def take(self, base: tuple[Ids, list[int]], data: st.DataObject) -> tuple[Ids, list[int]]:
        length = data.draw(st.integers(0, len(base[1])))
        return self._made(base[0].take(length), base[1][:length])

    @rule(target=values, base=values, data=st.data())
    def window(self, base: tuple[Ids, list[int]], data: st.DataObject) -> tuple[Ids, list[int]]:
        start = data.draw(st.integers(0, len(base[1])))
        stop = data.draw(st.integers(start, len(base[1])))
        return self._made(base[0].window(start, stop), base[1][start:stop])

    @rule(target=values, base=values, cuts=st.lists(st.integers(0, 80), max_size=4))
    def join_of_its_parts(
        self, base: tuple[Ids, list[int]], cuts: list[int]
    ) -> tuple[Ids, list[int]]:
        places = sorted({0, len(base[1]), *(cut for cut in cuts if cut < len(base[1]))})
        parts = [base[0].window(start, stop) for start, stop in pairwise(places)]
        return self._made(Ids.join(parts), base[1])

    @rule(target=values, one=values, two=values)
    def join(self, one: tuple[Ids, list[int]], two: tuple[Ids, list[int]]) -> tuple[Ids, list[int]]:
        return self._made(Ids.join([one[0], two[0]]), one[1] + two[1])

    @rule(target=values, base=values, more=values)
    def extend(
        self, base: tuple[Ids, list[int]], more: tuple[Ids, list[int]]
    ) -> tuple[Ids, list[int]]:
        return self._made(base[0].extend(more[0]), base[1] + more[1])

    @rule(one=values, two=values)
    def compare(self, one: tuple[Ids, list[int]], two: tuple[Ids, list[int]]) -> None:
        agree = 0
        while agree < min(len(one[1]), len(two[1])) and one[1][agree] == two[1][agree]:
            agree += 1
        assert one[0].common_prefix(two[0]) == two[0].common_prefix(one[0]) == agree
        assert (one[0] == two[0]) == (one[1] == two[1])
        if one[1] == two[1]:
            assert hash(one[0]) == hash(two[0])

    @invariant()
    def nothing_changed(self) -> None:
        for ids, model in self.all:
            assert ids.array().tolist() == model


SharedBuffers.TestCase.settings = settings(max_examples=settings().max_examples // 3)
TestSharedBuffers = SharedBuffers.TestCase


@given(any_ids)
def test_an_ids_is_the_sequence_it_was_made_of(model: list[int]) -> None:
    ids = Ids.of(model)
    assert list(ids) == model
    assert len(ids) == len(model)
    assert [ids[i] for i in range(-len(model), len(model))] == model + model
    assert ids.to_bytes() == b"".join(i.to_bytes(4, "little") for i in model)
    assert Ids.from_bytes(ids.to_bytes()) == ids
    assert ids.array(2, 5).tolist() == model[2:5]
    with pytest.raises(IndexError):
        ids[len(model)]


def test_the_bytes_of_a_value_are_its_own_and_not_its_buffer_s() -> None:
    longer = Ids.of([1, 2, 3])
    assert longer.take(2).to_bytes() == bytes([1, 0, 0, 0, 2, 0, 0, 0])


def test_appending_to_the_longest_value_copies_nothing() -> None:
    ids = Ids.of(range(1000)).extend(Ids.of([7]))  # grown with room to spare
    before = ids.array().__array_interface__["data"][0]
    for step in range(100):
        ids = ids.extend(Ids.of([step]))
    assert ids.array().__array_interface__["data"][0] == before


def test_an_array_cannot_be_written_through() -> None:
    ids = Ids.of([1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        ids.array()[0] = 9
    with pytest.raises(ValueError, match="read-only"):
        ids.extend(Ids.of([4])).array(3)[0] = 9


def test_ids_compare_only_with_ids() -> None:
    assert Ids.of([1]) != [1]
    assert "1, 2" in repr(Ids.of([1, 2]))
    assert repr(Ids.of(range(20))).endswith("7, ...], length=20)")


def test_bytes_that_are_no_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        Ids.from_bytes(b"12345")


@given(st.lists(st.integers(0, 99)))
def test_good_input_becomes_ids(values: list[int]) -> None:
    assert list(checked_ids(values, field="ids", vocabulary=100)) == values


@pytest.mark.parametrize(
    ("values", "details"),
    [
        ("abc", {"field": "ids", "found": "str"}),
        (None, {"field": "ids", "found": "NoneType"}),
        ({"0": 1}, {"field": "ids", "found": "dict"}),
        ([1, 100], {"field": "ids", "index": 1, "found": "100", "limit": 99}),
        ([-1], {"field": "ids", "index": 0, "found": "-1", "limit": 99}),
        ([1, 2, 3.0], {"field": "ids", "index": 2, "found": "3.0", "limit": 99}),
        ([True], {"field": "ids", "index": 0, "found": "True", "limit": 99}),
        (["7"], {"field": "ids", "index": 0, "found": "'7'", "limit": 99}),
        ([[7]], {"field": "ids", "index": 0, "found": "[7]", "limit": 99}),
        ([2**70], {"field": "ids", "index": 0, "found": str(2**70), "limit": 99}),
    ],
)
def test_bad_input_names_the_first_bad_place(values: Any, details: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        checked_ids(values, field="ids", vocabulary=100)
    assert caught.value.details == details


@given(st.integers(0, 200), st.sampled_from([100, -1, True, 1.0, "7", None, 2**70, [7]]))
def test_bad_input_is_found_among_many(place: int, bad: Any) -> None:
    values: list[Any] = [n % 100 for n in range(200)]
    assert list(checked_ids(values, field="ids", vocabulary=100)) == values
    values.insert(place, bad)
    with pytest.raises(InvalidInputError) as caught:
        checked_ids(values, field="ids", vocabulary=100)
    assert caught.value.details["index"] == place
    assert caught.value.details["found"] == repr(bad)


def test_no_ids_at_all_are_refused_where_one_is_needed() -> None:
    assert len(checked_ids([], field="ids", vocabulary=100)) == 0
    with pytest.raises(InvalidInputError) as caught:
        checked_ids([], field="choices", vocabulary=100, empty_ok=False)
    assert caught.value.details == {"field": "choices", "found": 0, "limit": 1}


wire_values = st.lists(st.integers(-1, 101) | st.sampled_from([True, 1.0, "1", None]), max_size=3)


@given(st.lists(wire_values | st.lists(st.integers(0, 100), max_size=3) | st.just("no list")))
def test_many_lists_are_checked_as_each_alone(lists: list[object]) -> None:
    found = checked_lists(lists, field="ids", vocabulary=101)
    for values, checked in zip(lists, found, strict=True):
        if isinstance(checked, InvalidInputError):
            with pytest.raises(InvalidInputError) as alone:
                checked_ids(values, field="ids", vocabulary=101)
            assert (checked.message, checked.details) == (alone.value.message, alone.value.details)
        else:
            assert checked == checked_ids(values, field="ids", vocabulary=101)


def test_parts_that_lie_in_a_row_are_joined_without_a_copy() -> None:
    whole = Ids.of(range(100))
    parts = [whole.window(n, n + 10) for n in range(20, 60, 10)]
    assert np.shares_memory(Ids.join(parts).array(), whole.array())


def test_ids_of_this_process_pass_if_they_are_in_the_vocabulary() -> None:
    known = Ids.of([1, 2, 3])
    assert checked_ids(known, field="ids", vocabulary=4) is known
    with pytest.raises(InvalidInputError) as refused:
        checked_ids(known, field="ids", vocabulary=3)
    assert refused.value.details["index"] == 2
    with pytest.raises(InvalidInputError):
        checked_ids(Ids.of([]), field="ids", vocabulary=3, empty_ok=False)
