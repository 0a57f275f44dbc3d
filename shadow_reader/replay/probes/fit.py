"""A linear model over hidden vectors: standardised, regularised, and measured on unseen sessions.

Law: what is reported was said of sessions that had no part in it, neither in the fit nor in the
choice of layer and strength. Vectors, labels, rules and seed decide the result, to the bit under
one build of the arithmetic: it runs on one thread, since the order of adding is another on two.
Where the vectors came from is not known here.

What is minimised is the mean log loss plus ``strength / 2`` times the squared coefficients, so a
strength means the same whatever the number of examples.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadow_reader.errors import MissingExtraError, TrainingError
from shadow_reader.replay.probes.folds import folds
from shadow_reader.replay.probes.measure import Measured, measured

Floats: TypeAlias = NDArray[np.float32]
Chances: TypeAlias = NDArray[np.float64]
"""[examples, classes]: rows sum to one."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (paths of strengths that are fitted, paths to fit)."""

LEAST_LABELS: Final = 10
"""Of each class."""
LEAST_SESSIONS: Final = 2
MOST_CLASSES: Final = 26
MAX_ITERATIONS: Final = 1000
_LEAST_CHANCE: Final = 1e-6
"""A class that a part's training has never seen costs no more than this in the log loss."""
_ROUNDING: Final = 1e-6
"""A number that varies by no more than this part of itself does not vary."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """What is learned from.

    Attributes:
        vectors: layer -> [n, hidden] float32; one layer or several to choose from.
        labels, sessions: of each example.
    """

    vectors: Mapping[int, Floats]
    labels: Sequence[str]
    sessions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Rules:
    """How it is learned.

    Attributes:
        strengths: to choose from, falling, so that each fit begins where the one before ended.
        outer: parts that the reported figures are of. inner: parts that choose layer and strength.
    """

    strengths: tuple[float, ...] = (10.0, 1.0, 0.1, 0.01, 0.001)
    outer: int = 5
    inner: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer and the strength of the regularisation there."""

    layer: int
    strength: float


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A classifier: ``mean`` and ``scale`` [H], ``coef`` [C, H], ``intercept`` [C], float32."""

    mean: Floats
    scale: Floats
    coef: Floats
    intercept: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """What was learned of all examples, and how good that is on sessions it had not seen.

    Attributes:
        classes: by name; the rows of ``linear``.
        tried: what the training part of each outer division chose.
        unconverged: fits that ended after ``MAX_ITERATIONS``.
    """

    choice: Choice
    classes: tuple[str, ...]
    linear: Linear
    measured: Measured
    tried: tuple[Choice, ...]
    unconverged: int


def check_labels(labels: Sequence[str], sessions: Sequence[str]) -> None:
    """Refuse what nothing can be learned from, before a vector is read.

    Raises:
        TrainingError: no labels, one class or more than 26, too few labels of a class, too few
            sessions; ``details`` has the counts.
    """
    counts = dict(sorted(Counter(labels).items()))
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    if len(counts) < 2:
        found = f"only one, {shown}" if counts else "none"
        _refuse("classes", f"there must be two classes at least, found {found}", counts, 2)
    if len(counts) > MOST_CLASSES:
        said = f"there may be {MOST_CLASSES} classes at most, found {len(counts)}"
        _refuse("classes", said, counts, MOST_CLASSES)
    if min(counts.values()) < LEAST_LABELS:
        said = f"each class needs {LEAST_LABELS} labels at least, found {shown}"
        _refuse("labels", said, counts, LEAST_LABELS)
    number = len(set(sessions))
    if number < LEAST_SESSIONS:
        said = f"labels of {LEAST_SESSIONS} sessions at least are needed, found {number}"
        _refuse("sessions", f"{said} with {shown}", counts, LEAST_SESSIONS)


def check_installed() -> None:
    """Whether anything can be fitted here.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    _logistic_regression()


def fit(examples: Examples, rules: Rules | None = None, progress: Progress | None = None) -> Fitted:
    """Choose layer and strength, learn from everything, and measure the same way of doing so.

    Where a training part is a single session, nothing can be held out of it: it takes the last
    layer that was given and the middle strength.

    Raises:
        TrainingError: as ``check_labels``. MissingExtraError: scikit-learn is not installed.
    """
    check_labels(examples.labels, examples.sessions)
    work = _Fit(examples, rules or Rules(), progress, _logistic_regression())
    with _one_thread():
        return work.whole()


@dataclass(frozen=True, slots=True)
class _Path:
    """Models of one training part at one layer, one a strength; ``seen``: their classes."""

    mean: Floats
    scale: Floats
    seen: NDArray[np.int64]
    models: tuple[tuple[NDArray[Any], NDArray[Any]], ...]

    def chances(self, vectors: Floats, model: int, classes: int) -> Chances:
        """What a model says of ``vectors``; a class that it has not seen gets 0."""
        coef, intercept = self.models[model]
        scores = (((vectors - self.mean) / self.scale) @ coef.T + intercept).astype(np.float64)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        found = np.zeros((len(vectors), classes))
        found[:, self.seen] = odds / odds.sum(axis=1, keepdims=True)
        return found


class _Fit:
    def __init__(
        self, examples: Examples, rules: Rules, progress: Progress | None, regression: Any
    ) -> None:
        self._vectors = examples.vectors
        self._layers = list(examples.vectors)
        self._labels = np.array(examples.labels)
        self._sessions = np.array(examples.sessions)
        self._rules = rules
        self._progress = progress
        self._regression = regression
        names, codes = np.unique(self._labels, return_inverse=True)
        self.classes = tuple(map(str, names))
        self._codes = codes.astype(np.int64)
        self._done = self._unconverged = 0
        self._outer = self._divided(np.ones(len(codes), dtype=bool), rules.outer)
        self._work = self._count()

    def whole(self) -> Fitted:
        """All of it."""
        chances = np.zeros((len(self._codes), len(self.classes)))
        constants = np.zeros(len(self._codes), dtype=np.int64)
        tried: list[Choice] = []
        for held in self._outer:
            choice = self._choose(~held)
            path = self._path(~held, choice.layer, [choice.strength])
            tried.append(choice)
            vectors = self._vectors[choice.layer][held]
            chances[held] = path.chances(vectors, 0, len(self.classes))
            constants[held] = np.bincount(self._codes[~held]).argmax()
        every = np.ones(len(self._codes), dtype=bool)
        choice = self._choose(every)
        path = self._path(every, choice.layer, [choice.strength])
        coef, intercept = path.models[0]
        return Fitted(
            choice,
            self.classes,
            Linear(path.mean, path.scale, coef.astype(np.float32), intercept.astype(np.float32)),
            measured(
                chances,
                self.classes,
                self._labels.tolist(),
                [self.classes[code] for code in constants],
                self._sessions.tolist(),
                seed=self._rules.seed,
            ),
            tuple(tried),
            self._unconverged,
        )

    def _choose(self, train: NDArray[np.bool_]) -> Choice:
        """The layer and strength of the least log loss on sessions held out of ``train``."""
        strengths = self._rules.strengths
        parts = self._divided(train, self._rules.inner)
        if len(parts) < 2:
            return Choice(self._layers[-1], strengths[len(strengths) // 2])
        losses = {Choice(*one): 0.0 for one in product(self._layers, strengths)}
        for held, layer in product(parts, self._layers):
            path = self._path(train & ~held, layer, strengths)
            vectors, truth = self._vectors[layer][held], self._codes[held]
            for place, strength in enumerate(strengths):
                said = path.chances(vectors, place, len(self.classes))
                right = said[np.arange(len(truth)), truth].clip(_LEAST_CHANCE)
                losses[Choice(layer, strength)] -= float(np.log(right).sum())
        return min(losses, key=lambda choice: losses[choice])

    def _path(self, train: NDArray[np.bool_], layer: int, strengths: Sequence[float]) -> _Path:
        """Fit ``train`` at every strength, each from where the one before ended."""
        vectors, codes = self._vectors[layer][train], self._codes[train]
        mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        scale = vectors.std(axis=0, dtype=np.float64).astype(np.float32)
        scale[scale <= _ROUNDING * np.abs(mean)] = 1
        seen = np.unique(codes)
        models = []
        if len(seen) == 1:
            nothing = np.zeros((1, vectors.shape[1])), np.zeros(1)
            models = [nothing] * len(strengths)
        else:
            shown = (vectors - mean) / scale
            model = self._regression(max_iter=MAX_ITERATIONS, warm_start=True)
            for strength in strengths:
                model.set_params(C=1 / (strength * len(codes)))
                _fit_quietly(model, shown, codes)
                self._unconverged += bool(model.n_iter_.max() >= MAX_ITERATIONS)
                models.append(_softmax_form(model))
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._work)
        return _Path(mean, scale, seen, tuple(models))

    def _divided(self, chosen: NDArray[np.bool_], count: int) -> list[NDArray[np.bool_]]:
        """Parts of the chosen examples, as masks over all of them."""
        places = np.flatnonzero(chosen)
        parts = folds(
            self._labels[places].tolist(),
            self._sessions[places].tolist(),
            count,
            seed=self._rules.seed,
        )
        found = []
        for part in parts:
            mask = np.zeros(len(chosen), dtype=bool)
            mask[places[part]] = True
            found.append(mask)
        return found

    def _count(self) -> int:
        """Paths that ``whole`` will fit."""
        trains = [~held for held in self._outer] + [np.ones(len(self._codes), dtype=bool)]
        parts = [min(self._rules.inner, len(set(self._sessions[train]))) for train in trains]
        return sum(1 + (count * len(self._layers) if count > 1 else 0) for count in parts)


def _softmax_form(model: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Coefficients and intercepts, a row a class; of two classes the model has one row only."""
    coef, intercept = model.coef_.copy(), model.intercept_.copy()
    if len(coef) == 1:
        coef, intercept = np.concatenate([-coef, coef]) / 2, np.append(-intercept, intercept) / 2
    return coef, intercept


def _fit_quietly(model: Any, shown: Floats, codes: NDArray[np.int64]) -> None:
    """A fit that did not converge is counted, not warned about."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(shown, codes)


def _logistic_regression() -> Any:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtraError(
            "training a probe needs scikit-learn: pip install 'shadow-reader[probes]'",
            extra="probes",
            package="scikit-learn",
        ) from error
    return LogisticRegression


def _one_thread() -> AbstractContextManager[object]:
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(limits=1)
    return limits


def _refuse(field: str, message: str, counts: dict[str, int], limit: int) -> None:
    raise TrainingError(message, field=field, found=counts, limit=limit)
