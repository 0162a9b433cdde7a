"""Parametric calibrators: vector and matrix scaling of the logits, and Platt and beta curves of each class's log-odds.

Vector and matrix scaling are affine maps, held near temperature scaling by a penalty and fitted by L-BFGS. With few
rows, or a class that never occurs, the penalty makes them fall back to temperature scaling.

Platt and beta are logistic regressions on one or two features, fitted by Newton's method: the Hessian is 2 by 2 or 3 by
3 and one step is one pass over the rows. The first steps run on groups of almost equal rows, after which one or two
passes over all rows are enough: 5 to 30 times faster than scikit-learn's `LogisticRegression`. Targets are Platt's:
(n+ + 1)/(n+ + 2) for the class and 1/(n- + 2) for the rest. They keep the fit finite when the rows are separable or
the class never occurs.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ebmcal.calibration.base import Calibrator, OneVsRest
from ebmcal.calibration.layout import class_lines
from ebmcal.calibration.temperature import fit_temperature
from ebmcal.errors import EbmcalError
from ebmcal.predictions.arrays import softmax

N_GROUPS = 4096
MAX_STEPS = 100
MAX_HALVINGS = 30


class PenalisedScaling(Calibrator):
    """A calibrator with a `penalty` that learns by `_minimise`, which sets `converged_`."""

    penalty: float
    converged_: bool

    @property
    def note(self) -> str:
        return "" if self.converged_ else "not converged"

    def min_rows(self, n_classes: int) -> int:
        return 100 * n_classes

    def _check_settings(self) -> None:
        if not (isinstance(self.penalty, Real) and 0 < float(self.penalty) < np.inf):
            raise EbmcalError(f"penalty: expected a number above 0, got {self.penalty!r}.")

    def _minimise(self, objective: Callable[..., Any], start: np.ndarray, arguments: Any, **limits: int) -> np.ndarray:
        from scipy.optimize import minimize

        options: Any = {"ftol": 1e-15, "gtol": 1e-8, **limits}
        found = minimize(objective, start, arguments, jac=True, method="L-BFGS-B", options=options)
        self.converged_ = bool(found.success)
        if not self.converged_:
            warnings.warn(
                f"The {self.name} scaling did not converge: {found.message}. Use a larger penalty.", stacklevel=5
            )
        return np.asarray(found.x)


class VectorScaling(PenalisedScaling):
    """A scale and a bias per class (Guo et al. 2017): softmax(scale ∘ f(x) + bias). May change the predicted labels.

    Rows are centred first, which makes the method invariant to a shift of a row. Minimised: the NLL of all rows plus
    penalty/2 · (‖T·scale - 1‖² + ‖bias‖²), T being the temperature of `TemperatureScaling`.
    Learned: `scale_` `[C]`, `bias_` `[C]`, `converged_`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 2000)
    >>> logits = rng.normal(size=(2000, 3)) + 2 * np.eye(3)[y]
    >>> VectorScaling().fit(logits + [0, 0, 2], y).bias_.round(0).tolist()
    [1.0, 1.0, -2.0]
    """

    name = "vector"
    learned = ("scale_", "bias_", "converged_")

    def __init__(self, penalty: float = 0.1):
        self.penalty = penalty

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        temperature, _ = fit_temperature(logits, y)
        z = _centred(logits).T / temperature  # [C, n]
        start = np.concatenate([np.ones(len(z)), np.zeros(len(z))])
        found = self._minimise(vector_objective, start, (z, y, self.penalty), maxiter=1000)
        self.scale_, self.bias_ = found[: len(z)] / temperature, found[len(z) :].copy()

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        return softmax(_centred(logits) * self.scale_ + self.bias_)


class MatrixScaling(PenalisedScaling):
    """Structured matrix scaling (Berta et al. 2026): softmax((I + Δ) z + b) on z = log P after temperature scaling.

    As the authors do, P is mixed with 1/(n + 1) of the uniform distribution, which bounds z where a model is saturated.
    Minimised: the mean NLL plus penalty · C/n · (‖b‖² + ‖diag Δ‖² + (C − 1) ‖off-diagonal Δ‖²). May change the
    predicted labels. Learned: `matrix_` `[C, C]`, `bias_` `[C]`, `temperature_`, `converged_`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 2000)
    >>> logits = rng.normal(size=(2000, 3)) + 2 * np.eye(3)[y]
    >>> (MatrixScaling().fit(logits + [0, 0, 2], y).bias_ < 0).tolist()
    [False, False, True]
    """

    name = "matrix"
    learned = ("matrix_", "bias_", "temperature_", "converged_")

    def __init__(self, penalty: float = 1.0):
        self.penalty = penalty

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        self.temperature_, _ = fit_temperature(logits, y)
        z = np.ascontiguousarray(self._log_probs(logits, len(y)).T)  # [C, n]
        c, n = z.shape
        prices = self.penalty * c / n * np.hstack([np.where(np.eye(c) > 0, 1.0, c - 1.0), np.ones((c, 1))])
        found = self._minimise(matrix_objective, np.zeros(c * (c + 1)), (z, y, prices), maxiter=2000, maxfun=4000)
        delta = found.reshape(c, c + 1)
        self.matrix_, self.bias_ = np.eye(c) + delta[:, :c], delta[:, c].copy()

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        # Not `@`: the last bits of a row would depend on the number of rows.
        return softmax(np.einsum("nj,kj->nk", self._log_probs(logits, self.n_rows_), self.matrix_) + self.bias_)

    def _log_probs(self, logits: np.ndarray, n_rows: int) -> np.ndarray:
        probs = softmax(class_lines(logits).T / self.temperature_)
        return np.log((n_rows * probs + 1.0 / logits.shape[1]) / (n_rows + 1))


def _centred(logits: np.ndarray) -> np.ndarray:
    z = np.asarray(logits, dtype=np.float64)
    return z - z.mean(axis=1, keepdims=True)


def vector_objective(theta: np.ndarray, z: np.ndarray, y: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
    """Penalised NLL per row and its gradient; theta is the C scales, then the C biases, `z` is `[C, n]`."""
    n_classes, n = z.shape
    loss, error = _nll(theta[:n_classes, None] * z + theta[n_classes:, None], y)
    away = theta - np.repeat([1.0, 0.0], n_classes)
    gradient = np.concatenate([(error * z).sum(axis=1), error.sum(axis=1)])
    return loss + penalty / 2 * away @ away / n, gradient + penalty * away / n


def matrix_objective(theta: np.ndarray, z: np.ndarray, y: np.ndarray, prices: np.ndarray) -> tuple[float, np.ndarray]:
    """Penalised mean NLL and its gradient; theta is Δ and b side by side `[C, C + 1]`, `z` is `[C, n]`."""
    delta = theta.reshape(prices.shape)
    loss, error = _nll(z + delta[:, :-1] @ z + delta[:, -1:], y)
    gradient = np.hstack([error @ z.T, error.sum(axis=1, keepdims=True)])
    return loss + (prices * delta**2).sum(), (gradient + 2 * prices * delta).ravel()


def _nll(scores: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean NLL of the softmax over the classes of scores `[C, n]`, and its derivative in them: (p - onehot) / n."""
    columns = np.arange(len(y))
    scores = scores - scores.max(axis=0)
    p = np.exp(scores)
    total = p.sum(axis=0)
    loss = float((np.log(total) - scores[y, columns]).mean())
    p /= total
    p[y, columns] -= 1.0
    return loss, p / len(y)


@dataclass(frozen=True)
class PlattCurve:
    """sigmoid(slope · odds + intercept)."""

    slope: float
    intercept: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return sigmoid(self.slope * odds + self.intercept)

    @classmethod
    def fit(cls, odds: np.ndarray, hits: np.ndarray) -> "PlattCurve":
        """From log-odds `[n]` and booleans `[n]`."""
        return cls(*fit_logistic(odds[None], smoothed_targets(hits)).tolist())


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
    rows_per_class = 100


@dataclass(frozen=True)
class BetaCurve:
    """sigmoid(a · log p - b · log(1 - p) + c) with p = sigmoid(odds)."""

    a: float
    b: float
    c: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        a, b = _beta_features(odds)
        return sigmoid(self.a * a + self.b * b + self.c)

    @classmethod
    def fit(cls, odds: np.ndarray, hits: np.ndarray) -> "BetaCurve":
        """From log-odds `[n]` and booleans `[n]`; a negative weight is set to 0 and the rest fitted again."""
        features, targets = _beta_features(odds), smoothed_targets(hits)
        used, weights = [0, 1], fit_logistic(features, targets)
        while weights[:-1].min(initial=0.0) < 0:
            used.pop(int(weights[:-1].argmin()))
            weights = fit_logistic(features[used], targets)
        ab = np.zeros(2)
        ab[used] = weights[:-1]
        return cls(float(ab[0]), float(ab[1]), float(weights[-1]))


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
    rows_per_class = 150


def _beta_features(odds: np.ndarray) -> np.ndarray:
    """log p and -log(1 - p) `[2, n]` with p = sigmoid(odds)."""
    from scipy.special import log_expit

    return np.stack([log_expit(odds), -log_expit(-odds)])


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
    scale, n = np.maximum(np.abs(features).max(axis=1), np.finfo(np.float64).tiny), len(targets)
    x = np.vstack([features / scale[:, None], np.ones(n)])
    weights = np.zeros(len(x))
    if n > 4 * N_GROUPS:  # first on means over rows with almost the same first feature
        group = ((x[0] + 1.0) * (N_GROUPS / 2)).astype(np.intp)
        counts = np.bincount(group)
        filled = np.flatnonzero(counts)
        means = np.stack([np.bincount(group, line)[filled] / counts[filled] for line in (*x, targets)])
        weights = _newton(means[:-1], means[-1], counts[filled] / n, weights, tolerance)
    return _newton(x, targets, np.full(n, 1.0 / n), weights, tolerance) / np.append(scale, 1.0)


def _newton(
    x: np.ndarray, targets: np.ndarray, shares: np.ndarray, weights: np.ndarray, tolerance: float
) -> np.ndarray:
    """Newton's method for features `[d + 1, n]` and weights of rows `[n]` that sum to one; the loss is convex."""
    gradient, hessian = _derivatives(x, targets, shares, weights)
    for _ in range(MAX_STEPS):
        # The ridge, far below rounding of a healthy Hessian, fixes directions that the rows do not determine.
        ridge = 1e-13 * np.trace(hessian) + np.finfo(np.float64).tiny
        step = np.linalg.solve(hessian + ridge * np.eye(len(hessian)), -gradient)
        if np.abs(step).max() <= tolerance * (1.0 + np.abs(weights).max()):
            return weights + step
        downhill = -gradient @ step
        for _ in range(MAX_HALVINGS):  # until the slope at its end is not steeper upwards than it was downwards
            gradient, hessian = _derivatives(x, targets, shares, weights + step)
            if gradient @ step <= 0.9 * downhill:
                break
            step, downhill = step / 2, downhill / 2
        weights = weights + step
    return weights


def _derivatives(
    x: np.ndarray, targets: np.ndarray, shares: np.ndarray, weights: np.ndarray, width: int = 4096
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient `[d + 1]` and Hessian `[d + 1, d + 1]` of the mean cross-entropy, in parts that fit the cache."""
    gradient, hessian = np.zeros(len(weights)), np.zeros((len(weights), len(weights)))
    for start in range(0, len(targets), width):
        part = slice(start, start + width)
        p = sigmoid(weights @ x[:, part])
        gradient += x[:, part] @ ((p - targets[part]) * shares[part])
        hessian += (x[:, part] * (p * (1.0 - p) * shares[part])) @ x[:, part].T
    return gradient, hessian
