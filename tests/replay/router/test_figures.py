from __future__ import annotations

import pytest

from shadow_reader.replay.router.figures import Turn, figures, wilson


def test_wilson_against_known_values() -> None:
    """The values of Newcombe (1998), method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for hits, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = wilson(hits, n)
        assert found.low == pytest.approx(low, abs=1e-4)
        assert found.high == pytest.approx(high, abs=1e-4)
    assert wilson(20, 20).high == 1.0


TURNS = [
    Turn("s1", "edit", 0, {"a": "edit", "b": "chat"}),
    Turn("s1", "edit", 600, {"a": "edit", "b": "edit"}),
    Turn("s2", "chat", 40_000, {"a": "edit", "b": "chat"}),
    Turn("s2", "edit", 5, {"a": "chat"}),
]


def test_agreement_confusion_groups_and_the_constant() -> None:
    found = figures(TURNS, ["a", "b"])
    assert found is not None
    assert (found.turns, found.sessions) == (4, 2)
    assert (found.constant.label, found.constant.agreement.hits) == ("edit", 3)
    a, b = found.variants
    assert (a.agreement.n, a.agreement.hits, a.above_constant) == (4, 2, -0.25)
    assert (b.agreement.n, b.agreement.hits, b.above_constant) == (3, 2, 0.0)
    assert a.confusion == {"chat": {"edit": 1}, "edit": {"chat": 1, "edit": 2}}
    assert [(g.name, g.n, g.hits) for g in a.by_class] == [("chat", 1, 0), ("edit", 3, 2)]
    assert [(g.name, g.n, g.hits) for g in a.by_behind] == [
        ("under 512", 2, 1),
        ("under 4,096", 1, 1),
        ("32,768 and more", 1, 0),
    ]
    # Two sessions: all right or all wrong, and what lies between.
    assert (a.agreement.by_session.low, a.agreement.by_session.high) == (0.0, 1.0)


def test_pairs_are_of_the_turns_that_both_answered() -> None:
    found = figures(TURNS, ["a", "b", "never"])
    assert found is not None
    (pair,) = found.pairs
    assert (pair.first, pair.second, pair.n) == ("a", "b", 3)
    counts = (pair.both, pair.only_first, pair.only_second, pair.neither, pair.same_label)
    assert counts == (1, 1, 1, 0, 1)
    assert pair.difference == 0.0
    assert (pair.interval.low, pair.interval.high) == (-0.5, 1.0)


def test_nothing_to_agree_with() -> None:
    assert figures([], ["a"]) is None


def test_of_two_constants_the_first_by_name() -> None:
    found = figures(TURNS[1:3], ["a"])
    assert found is not None
    assert found.constant.label == "chat"
