"""What is learned of made vectors: right where there is something, nothing where there is not."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shadow_reader.errors import MissingExtraError, TrainingError
from shadow_reader.replay.probes import fit as fit_module
from shadow_reader.replay.probes.fit import Choice, Examples, Fitted, Rules, check_labels, fit
from shadow_reader.replay.probes.folds import folds
from tests.replay.probes.made import HIDDEN, made

sklearn = pytest.importorskip("sklearn")


def chances(found: Fitted, vectors: np.ndarray) -> np.ndarray:
    """What the classifier says, in float64 throughout."""
    linear = found.linear
    shown = (vectors.astype(np.float64) - linear.mean) / linear.scale
    scores = shown @ linear.coef.T.astype(np.float64) + linear.intercept
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    whole: np.ndarray = odds / odds.sum(axis=1, keepdims=True)
    return whole


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_what_is_there_is_learned(classes: int) -> None:
    examples = made(1, classes=classes, sessions=16, each=20)
    found = fit(examples)
    metrics = found.measured.metrics
    assert metrics.n == 320
    assert found.classes == tuple(f"c{code}" for code in range(classes))
    assert metrics.accuracy > metrics.constant + 0.2
    assert metrics.low > 0
    assert metrics.low <= metrics.accuracy - metrics.constant <= metrics.high
    assert metrics.calibration_error < 0.1
    unseen = made(1, classes=classes, sessions=16, each=20, signal=1.0)
    said = chances(found, unseen.vectors[4]).argmax(axis=1)
    right = np.mean([f"c{code}" == label for code, label in zip(said, unseen.labels, strict=True)])
    assert right >= metrics.accuracy - 0.02


def test_of_labels_that_say_nothing_nothing_is_claimed() -> None:
    better = [fit(made(seed, signal=0.0)).measured.metrics for seed in range(5)]
    assert sum(metrics.low > 0 for metrics in better) <= 1
    assert np.mean([metrics.accuracy - metrics.constant for metrics in better]) < 0.05


def test_a_session_is_never_on_both_sides() -> None:
    """Each session is a cluster of one class, and the clusters say nothing of one another: whoever
    has seen the session answers all of it, and whoever has not, guesses."""
    chance = np.random.default_rng(3)
    sessions = [f"s{n}" for n in range(12) for _ in range(20)]
    labels = ["even" if int(name[1:]) % 2 else "odd" for name in sessions]
    centres = {name: 10 * chance.standard_normal(40) for name in dict.fromkeys(sessions)}
    rows = np.array([centres[name] + 0.01 * chance.standard_normal(40) for name in sessions])
    examples = Examples({0: rows.astype(np.float32)}, labels, sessions)
    found = fit(examples)
    said = found.classes[0], found.classes[1]
    answers = chances(found, examples.vectors[0]).argmax(axis=1)
    assert [said[code] for code in answers] == labels
    assert found.measured.metrics.accuracy < 0.8
    assert found.measured.metrics.low <= 0


def test_the_layer_that_knows_is_chosen_and_the_strength_follows_the_noise() -> None:
    found = fit(made(5, layers=(9, 2, 6)))
    assert found.choice.layer == 9
    assert all(choice.layer == 9 for choice in found.tried)
    assert len(found.tried) == 5
    clear = fit(made(6, signal=4.0)).choice.strength
    dim = fit(made(6, signal=0.2)).choice.strength
    assert clear < dim


def test_against_sklearn_s_own_pipeline() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    for classes in (2, 4):
        examples = made(7, classes=classes)
        strength = 0.1
        found = fit(examples, Rules(strengths=(strength,)))
        shown = StandardScaler().fit_transform(examples.vectors[4].astype(np.float64))
        oracle = LogisticRegression(C=1 / (strength * len(shown)), max_iter=1000)
        oracle.fit(shown, examples.labels)
        expected = oracle.predict_proba(shown)
        np.testing.assert_allclose(chances(found, examples.vectors[4]), expected, atol=2e-3)


def test_the_reported_answers_are_those_of_the_outer_parts() -> None:
    """By hand: hold a part out, choose, learn from the rest, answer."""
    examples = made(24, signal=0.3, sessions=8)
    rules = Rules(outer=4, seed=11)
    found = fit(examples, rules)
    labels = np.array(examples.labels)
    sessions = np.array(examples.sessions)
    right = constant = 0
    for held in folds(examples.labels, examples.sessions, 4, seed=11):
        assert not set(sessions[held]) & set(sessions[~held])
        rest = Examples(
            {4: examples.vectors[4][~held]}, labels[~held].tolist(), sessions[~held].tolist()
        )
        said = chances(fit(rest, rules), examples.vectors[4][held]).argmax(axis=1)
        right += int((np.array(found.classes)[said] == labels[held]).sum())
        most = max(sorted(set(rest.labels)), key=Counter(rest.labels).__getitem__)
        constant += int((labels[held] == most).sum())
    metrics = found.measured.metrics
    assert metrics.accuracy == pytest.approx(right / len(labels))
    assert metrics.constant == pytest.approx(constant / len(labels))


def test_the_same_again_gives_the_same_bits_and_another_seed_other_parts() -> None:
    examples = made(9, layers=(1, 2))
    one, two = fit(examples), fit(examples)
    for name in ("mean", "scale", "coef", "intercept"):
        first, second = getattr(one.linear, name), getattr(two.linear, name)
        assert first.dtype == np.float32
        assert first.tobytes() == second.tobytes()
    assert one.measured == two.measured
    assert one.tried == two.tried
    other = fit(examples, Rules(seed=1))
    assert other.measured != one.measured
    assert other.classes == one.classes


def test_the_bits_are_those_of_one_thread() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    chance = np.random.default_rng(14)
    codes = chance.integers(3, size=3000)
    rows = chance.standard_normal((3000, 512)) + 0.3 * chance.standard_normal((3, 512))[codes]
    labels, sessions = [f"c{code}" for code in codes], [f"s{n % 4}" for n in range(3000)]
    examples = Examples({0: rows.astype(np.float32)}, labels, sessions)
    found = set()
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(limits=threads):
            found.add(fit(examples, Rules(strengths=(0.01,))).linear.coef.tobytes())
    assert len(found) == 1


def test_a_number_that_never_varies_says_nothing() -> None:
    examples = made(10)
    rows = examples.vectors[4].copy()
    rows[:, 3] = np.float32(0.1)
    rows[:, 5] = 0
    found = fit(replace(examples, vectors={4: rows}))
    assert found.linear.scale[3] == found.linear.scale[5] == 1
    assert not found.linear.coef[:, [5]].any()
    assert np.abs(found.linear.coef[:, 3]).max() < 1e-3
    assert found.measured.metrics.low > 0


def test_sessions_of_one_class_each_leave_nothing_to_learn_for_the_other() -> None:
    vectors = np.eye(20, HIDDEN, dtype=np.float32)
    examples = Examples({7: vectors, 3: vectors}, ["x"] * 10 + ["y"] * 10, ["a"] * 10 + ["b"] * 10)
    metrics = fit(examples).measured.metrics
    assert (metrics.accuracy, metrics.constant, metrics.low) == (0.0, 0.0, 0.0)
    assert metrics.calibration_error == 1.0


def test_of_two_sessions_layer_and_strength_are_not_chosen() -> None:
    examples = made(11, sessions=2, each=60, layers=(4, 8))
    found = fit(examples, Rules(strengths=(3.0, 2.0, 1.0)))
    assert found.tried == (Choice(8, 2.0), Choice(8, 2.0))
    assert found.choice.layer == 4


@pytest.mark.parametrize("sessions", [2, 12])
def test_progress_goes_to_its_end(sessions: int) -> None:
    seen: list[tuple[int, int]] = []
    examples = made(12, sessions=sessions, each=60, layers=(1, 2))
    fit(examples, progress=lambda *at: seen.append(at))
    done, work = seen[-1]
    assert done == work == len(seen)
    assert {whole for _, whole in seen} == {work}


def test_fits_that_do_not_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit(made(13)).unconverged == 0
    monkeypatch.setattr(fit_module, "MAX_ITERATIONS", 2)
    assert fit(made(13)).unconverged > 0


@pytest.mark.parametrize(
    ("counts", "sessions", "field", "said"),
    [
        ({}, 3, "classes", "found none"),
        ({"x": 40}, 3, "classes", "found only one, x 40"),
        ({"x": 40, "y": 9}, 3, "labels", "10 labels at least, found x 40, y 9"),
        ({"x": 40, "y": 10}, 1, "sessions", "2 sessions at least are needed, found 1"),
        ({f"c{n:02}": 10 for n in range(27)}, 3, "classes", "26 classes at most, found 27"),
    ],
)
def test_refusals_have_the_counts(
    counts: dict[str, int], sessions: int, field: str, said: str
) -> None:
    labels = [name for name, count in counts.items() for _ in range(count)]
    names = [f"s{place % sessions}" for place in range(len(labels))]
    vectors = {0: np.zeros((len(labels), 2), dtype=np.float32)}
    for call in (
        lambda: check_labels(labels, names),
        lambda: fit(Examples(vectors, labels, names)),
    ):
        with pytest.raises(TrainingError, match=said) as caught:
            call()
        assert caught.value.details["field"] == field
        assert caught.value.details["found"] == counts


def test_at_the_limits_it_is_taken() -> None:
    labels = [f"c{n:02}" for n in range(26) for _ in range(10)]
    check_labels(labels, ["a", "b"] * 130)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtraError, match=r"shadow-reader\[probes\]") as caught:
        fit(made(1))
    assert caught.value.details == {"extra": "probes", "package": "scikit-learn"}
