"""Figures of answers, by hand and beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from shadow_reader.replay.probes.measure import calibration_error, measured

CLASSES = ("x", "y", "z")


def test_by_hand() -> None:
    chances = np.array([[0.8, 0.1, 0.1], [0.5, 0.5, 0.0], [0.1, 0.9, 0.0], [0.0, 0.2, 0.8]])
    found = measured(
        chances, CLASSES, ["x", "y", "y", "w"], ["x", "x", "y", "y"], ["a", "a", "b", "b"], seed=0
    )
    metrics = found.metrics
    assert (metrics.n, metrics.accuracy, metrics.constant) == (4, 0.5, 0.5)
    assert (metrics.low, metrics.high) == (0.0, 0.0)
    figures = {one.name: (one.labels, one.said, one.right) for one in found.by_class}
    assert figures == {"w": (1, 0, 0), "x": (1, 2, 1), "y": (2, 1, 1), "z": (0, 1, 0)}
    assert metrics.macro_f1 == pytest.approx((0 + 2 / 3 + 2 / 3 + 0) / 4)
    assert found.confusion == {"w": {"z": 1}, "x": {"x": 1}, "y": {"x": 1, "y": 1}}
    # One bin holds 0.8 right and 0.8 wrong, the others one example each.
    expected = (abs(0.8 + 0.8 - 1) + abs(0.5 - 0) + abs(0.9 - 1)) / 4
    assert metrics.calibration_error == pytest.approx(expected)


def test_who_is_as_sure_as_right_is_calibrated() -> None:
    right = np.array([True] * 15 + [False] * 5)
    assert calibration_error(np.full(20, 0.75), right) == pytest.approx(0)
    assert calibration_error(np.full(20, 1.0), right) == pytest.approx(0.25)
    assert calibration_error(np.ones(3), np.zeros(3, dtype=bool)) == 1.0


def test_macro_f1_is_scikit_learn_s() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    chance = np.random.default_rng(1)
    chances = chance.dirichlet(np.ones(3), size=60)
    labels = [CLASSES[code] for code in chance.integers(3, size=60)]
    sessions = [f"s{n % 5}" for n in range(60)]
    found = measured(chances, CLASSES, labels, ["x"] * 60, sessions, seed=0)
    said = [CLASSES[code] for code in chances.argmax(axis=1)]
    assert found.metrics.macro_f1 == pytest.approx(metrics.f1_score(labels, said, average="macro"))
    assert found.metrics.accuracy == pytest.approx(metrics.accuracy_score(labels, said))


def test_the_interval_draws_sessions() -> None:
    """All examples of a session are right or wrong together: as many examples more make it no
    narrower."""
    few, many = (
        measured(
            np.array([[0.9, 0.1] if n % 3 else [0.1, 0.9] for n in range(9) for _ in range(each)]),
            ("x", "y"),
            ["x"] * 9 * each,
            ["y"] * 9 * each,
            [f"s{n}" for n in range(9) for _ in range(each)],
            seed=0,
        ).metrics
        for each in (1, 50)
    )
    assert (few.low, few.high) == (many.low, many.high)
    assert few.low < few.accuracy - few.constant < few.high
