"""Parts of examples: whole sessions, all of them, alike in their classes."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.replay.probes.folds import folds

EXAMPLES = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("abcdefg")), min_size=1)


@given(EXAMPLES, st.integers(1, 6), st.integers(0, 3))
def test_every_example_is_in_one_part_with_its_whole_session(
    examples: list[tuple[str, str]], count: int, seed: int
) -> None:
    labels, sessions = [one[0] for one in examples], [one[1] for one in examples]
    parts = folds(labels, sessions, count, seed=seed)
    assert len(parts) == min(count, len(set(sessions)))
    assert (np.sum(parts, axis=0) == 1).all()
    for part in parts:
        assert part.any()
        inside = {name for name, one in zip(sessions, part, strict=True) if one}
        assert all(one == (name in inside) for name, one in zip(sessions, part, strict=True))
    again = folds(labels, sessions, count, seed=seed)
    assert all((one == two).all() for one, two in zip(parts, again, strict=True))


def test_parts_are_alike_in_their_classes() -> None:
    labels = [label for _ in range(6) for label in "xxxxy"] + ["y"] * 30
    sessions = [f"a{n}" for n in range(6) for _ in range(5)]
    sessions += [f"b{n}" for n in range(6) for _ in range(5)]
    for seed in range(5):
        parts = folds(labels, sessions, 3, seed=seed)
        counts = [Counter(np.array(labels)[part].tolist()) for part in parts]
        assert counts == [{"x": 8, "y": 12}] * 3
    places = {tuple(folds(labels, sessions, 3, seed=seed)[0].tolist()) for seed in range(5)}
    assert len(places) > 1
