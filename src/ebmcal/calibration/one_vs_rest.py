"""Calibrators that learn one curve per class, from its one-vs-rest log-odds to its probability: Platt and beta.

With two classes there is one curve, for class 1, and P(0) = 1 - P(1); with more the curves are fitted one by one
and rows are divided by their sum. A curve is a frozen dataclass of numbers and arrays that can be called.

Platt and beta are logistic regressions on one or two features, fitted by Newton's method: the Hessian is 2 by 2 or 3 by
3 and one step is one pass over the rows. The first steps run on groups of almost equal rows, after which one or two
passes over all rows are enough: 5 to 30 times faster than scikit-learn's `LogisticRegression`. Targets are Platt's:
(n+ + 1)/(n+ + 2) for the class and 1/(n- + 2) for the rest. They keep the fit finite when the rows are separable or
the class never occurs.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ebmcal.calibration.base import Calibrator, plain
from ebmcal.calibration.layout import log_odds, normalized_rows

N_GROUPS = 4096
MAX_STEPS = 100
MAX_HALVINGS = 30


class OneVsRest(Calibrator):
    """Base class of the calibrators with one curve per class; learned: `curves_`."""

    curve: ClassVar[type]
    learned: ClassVar[tuple[str, ...]] = ("curves_",)

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> Any:
        """The curve for log-odds `[n]` of one class and whether each row has that class `[n]`."""
        raise NotImplementedError

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        odds = log_odds(logits)
        labels = [1] if len(odds) == 2 else range(len(odds))
        self.curves_ = [self._fit_curve(odds[label], y == label) for label in labels]

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        odds = log_odds(logits)
        if len(odds) == 2:
            p = self.curves_[0](odds[1])
            return np.stack([1.0 - p, p], axis=1)
        return normalized_rows(np.stack([curve(line) for curve, line in zip(self.curves_, odds, strict=True)]))

    def _learned_to_json(self, name: str) -> Any:
        if name != "curves_":
            return super()._learned_to_json(name)
        return [{key: plain(value) for key, value in asdict(curve).items()} for curve in self.curves_]

    @classmethod
    def _learned_from_json(cls, name: str, value: Any) -> Any:
        if name != "curves_":
            return super()._learned_from_json(name, value)
        return [
            cls.curve(**{key: super(OneVsRest, cls)._learned_from_json(key, part) for key, part in curve.items()})
            for curve in value
        ]


@dataclass(frozen=True)
class PlattCurve:
    """sigmoid(slope · odds + intercept)."""

    slope: float
    intercept: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return sigmoid(self.slope * odds + self.intercept)


def fit_platt_curve(odds: np.ndarray, hits: np.ndarray) -> PlattCurve:
    """The Platt curve of log-odds `[n]` and booleans `[n]`.

    >>> fit_platt_curve(np.array([-1.0, 1.0]), np.array([False, True])).slope > 0
    True
    """
    slope, intercept = fit_logistic(odds[None], smoothed_targets(hits))
    return PlattCurve(float(slope), float(intercept))


class Platt(OneVsRest):
    """Platt scaling (1999): a slope and an intercept per class.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> logits = rng.normal(size=(2000, 2)) + np.eye(2)[y]
    >>> Platt().fit(3 * logits, y).predict_proba([[0.0, 3.0]]).round(1).tolist()
    [[0.2, 0.8]]
    """

    name = "platt"
    curve = PlattCurve

    def min_rows(self, n_classes: int) -> int:
        return 100 * n_classes

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> PlattCurve:
        return fit_platt_curve(odds, hits)


@dataclass(frozen=True)
class BetaCurve:
    """sigmoid(a · log p - b · log(1 - p) + c) with p = sigmoid(odds)."""

    a: float
    b: float
    c: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return sigmoid(self.a * _log_sigmoid(odds) - self.b * _log_sigmoid(-odds) + self.c)


def fit_beta_curve(odds: np.ndarray, hits: np.ndarray) -> BetaCurve:
    """The beta curve of log-odds `[n]` and booleans `[n]`; a negative weight is set to 0 and the rest fitted again."""
    features, targets = np.stack([_log_sigmoid(odds), -_log_sigmoid(-odds)]), smoothed_targets(hits)
    used, weights = [0, 1], fit_logistic(features, targets)
    while weights[:-1].min(initial=0.0) < 0:
        used.pop(int(weights[:-1].argmin()))
        weights = fit_logistic(features[used], targets)
    ab = np.zeros(2)
    ab[used] = weights[:-1]
    return BetaCurve(float(ab[0]), float(ab[1]), float(weights[-1]))


class Beta(OneVsRest):
    """Beta calibration (Kull et al. 2017): the two ends of the probability scale are stretched separately.

    Correct when probabilities are beta-distributed in each class; a = b = 1, c = 0 is the identity.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> logits = rng.normal(size=(2000, 2)) + np.eye(2)[y]
    >>> Beta().fit(3 * logits, y).predict_proba([[0.0, 3.0]]).round(1).tolist()
    [[0.2, 0.8]]
    """

    name = "beta"
    curve = BetaCurve

    def min_rows(self, n_classes: int) -> int:
        return 150 * n_classes

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> BetaCurve:
        return fit_beta_curve(odds, hits)


def _log_sigmoid(x: np.ndarray) -> np.ndarray:
    """log sigmoid(x) without overflow: -log(1 + exp(-x))."""
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


def smoothed_targets(hits: np.ndarray) -> np.ndarray:
    """Platt's targets `[n]` of booleans `[n]`.

    >>> smoothed_targets(np.array([True, False, False])).tolist()
    [0.6666666666666666, 0.25, 0.25]
    """
    n_hits = int(np.count_nonzero(hits))
    return np.where(hits, (n_hits + 1.0) / (n_hits + 2.0), 1.0 / (hits.size - n_hits + 2.0))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1/(1 + exp(-x)), with x clipped to ±700, where it is 0 or 1 to 1e-304.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).round(9).tolist()
    [0.0, 0.5, 1.0]
    """
    return 1.0 / (1.0 + np.exp(-np.clip(x, -700.0, 700.0)))


def fit_logistic(features: np.ndarray, targets: np.ndarray, tolerance: float = 1e-4) -> np.ndarray:
    """Weights `[d + 1]`, intercept last, minimising the cross-entropy of sigmoid(w · x + b) with targets in (0, 1).

    `features` is `[d, n]`; they are scaled to unit range first, so that saturated log-odds cost no precision.
    Newton's error is squared at each step: stopping after a step of `tolerance` leaves an error of about its square.

    >>> x = np.array([[-2.0, -1.0, 1.0, 2.0]])
    >>> fit_logistic(x, 1 / (1 + np.exp(-3 * x[0] - 1))).round(6).tolist()
    [3.0, 1.0]
    """
    scale = np.maximum(np.abs(features).max(axis=1), np.finfo(np.float64).tiny)
    n = len(targets)
    rows = _Rows(np.vstack([features / scale[:, None], np.ones(n)]), targets, np.full(n, 1.0 / n))
    weights = np.zeros(len(rows.x))
    if n > 4 * N_GROUPS:
        weights = _newton(rows.grouped(), weights, tolerance)
    return _newton(rows, weights, tolerance) / np.append(scale, 1.0)


class _Rows(NamedTuple):
    """Scaled features with a line of ones below `[d + 1, n]`, targets `[n]` and weights `[n]` that sum to one."""

    x: np.ndarray
    targets: np.ndarray
    shares: np.ndarray

    def blocks(self, width: int = 4096) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Parts small enough for their temporaries to stay in the processor's cache."""
        for start in range(0, len(self.targets), width):
            part = slice(start, start + width)
            yield self.x[:, part], self.targets[part], self.shares[part]

    def grouped(self) -> "_Rows":
        """Means over rows with almost the same first feature."""
        group = ((self.x[0] + 1.0) * (N_GROUPS / 2)).astype(np.intp)
        counts = np.bincount(group)
        filled = np.flatnonzero(counts)
        means = [np.bincount(group, line)[filled] / counts[filled] for line in (*self.x[:-1], self.targets)]
        return _Rows(np.stack([*means[:-1], np.ones(len(filled))]), means[-1], counts[filled] / len(group))


def _newton(rows: _Rows, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """Newton's method with steps halved while they overshoot; the loss is convex."""
    gradient, hessian = _derivatives(rows, weights)
    for _ in range(MAX_STEPS):
        # The ridge, far below rounding of a healthy Hessian, fixes directions that the rows do not determine.
        ridge = 1e-13 * np.trace(hessian) + np.finfo(np.float64).tiny
        step = np.linalg.solve(hessian + ridge * np.eye(len(hessian)), -gradient)
        if np.abs(step).max() <= tolerance * (1.0 + np.abs(weights).max()):
            return weights + step
        weights, gradient, hessian = _advance(rows, weights, step, gradient)
    return weights


def _advance(rows: _Rows, weights: np.ndarray, step: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, ...]:
    """Take the step, or half of it until the slope at its end is not steeper upwards than it was downwards."""
    downhill = -gradient @ step
    for _ in range(MAX_HALVINGS):
        new_gradient, hessian = _derivatives(rows, weights + step)
        if new_gradient @ step <= 0.9 * downhill:
            break
        step, downhill = step / 2, downhill / 2
    return weights + step, new_gradient, hessian


def _derivatives(rows: _Rows, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient `[d + 1]` and Hessian `[d + 1, d + 1]` of the mean cross-entropy."""
    gradient, hessian = np.zeros(len(weights)), np.zeros((len(weights), len(weights)))
    for x, targets, shares in rows.blocks():
        p = sigmoid(weights @ x)
        gradient += x @ ((p - targets) * shares)
        hessian += (x * (p * (1.0 - p) * shares)) @ x.T
    return gradient, hessian
