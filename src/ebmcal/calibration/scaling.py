"""Calibrators that scale the logits: temperature (also by grid, and as an ensemble), vector and matrix scaling.

Temperature scaling (Guo et al. 2017) is P(y|x) = softmax(f(x) / T) with one T > 0. The mean NLL is convex in b = 1/T,
with derivative E_p[z] - z_y and second derivative Var_p[z] under p = softmax(b z), so Newton's method inside a bracket
finds b in a few passes. Vector and matrix scaling are affine maps, held near temperature scaling by a penalty and
fitted by L-BFGS. With few rows, or a class that never occurs, the penalty makes them fall back to temperature scaling.

Logits are laid out `[C, n]` inside, one contiguous line per class: with two or three classes a reduction over classes
is then a few vector additions, several times faster than over rows of three.
"""

import warnings
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from ebmcal.calibration.base import Calibrator, require_whole_number
from ebmcal.errors import EbmcalError
from ebmcal.predictions import softmax

# T from 1/100 to 100: beyond, softmax is a step or flat, and the fit only shows that the rows are separable or that the
# logits are uninformative.
MAX_SCALE = 100.0
SAMPLE_ROWS = 8192
MAX_STEPS = 60
#: The temperatures that the authors' scripts choose from.
AUTHORS_GRID = (0.1, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0)
# A class this far behind has probability 0 at every temperature; a larger gap would only lose digits of the others.
MAX_GAP = 1e6


class TemperatureScaling(Calibrator):
    """Divides all logits by one temperature, which minimises the NLL. Predicted labels do not change.

    Learned: `temperature_`; `converged_`, False when T stopped at a bound (1/100 or 100) or ran out of steps.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 5000)
    >>> logits = rng.normal(size=(5000, 3)) + 2 * np.eye(3)[y]
    >>> calibrator = TemperatureScaling().fit(3 * logits, y)
    >>> round(calibrator.temperature_, 1), calibrator.converged_
    (1.5, True)
    """

    name = "temperature"
    learned: ClassVar[tuple[str, ...]] = ("temperature_", "converged_")

    @property
    def note(self) -> str:
        return f"T = {self.temperature_:.4g}" + ("" if self.converged_ else ", not converged")

    def min_rows(self, n_classes: int) -> int:
        return 100

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        self.temperature_, self.converged_ = fit_temperature(logits, y)
        if not self.converged_:
            reason = (
                "(almost) all fitting rows are predicted correctly, so more confidence always helps"
                if self.temperature_ < 1
                else "the logits are uninformative about these labels, so less confidence always helps"
            )
            warnings.warn(
                f"The temperature did not converge: T = {self.temperature_:.4g}, because {reason}. "
                "Fit on more rows, on rows the model was not trained on, and check the order of the labels.",
                stacklevel=4,
            )

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits / self.temperature_)


class TemperatureGrid(TemperatureScaling):
    """The one of 13 fixed temperatures (0.1 to 3) that gives the smallest top-label ECE.

    This is what the authors' scripts call temperature scaling. The bins have equal width; of a tie the first of
    `AUTHORS_GRID` is taken. Learned: `temperature_`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 5000)
    >>> TemperatureGrid().fit(3 * rng.normal(size=(5000, 3)) + 6 * np.eye(3)[y], y).temperature_
    1.5
    """

    name = "temperature-grid"
    learned = ("temperature_",)
    converged_ = True

    def __init__(self, n_bins: int = 20):
        self.n_bins = n_bins

    def min_rows(self, n_classes: int) -> int:
        return 200

    def _check_settings(self) -> None:
        require_whole_number("n_bins", self.n_bins)

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        from ebmcal.metrics import ece_top_label

        errors = [ece_top_label(y, logits=logits / t, n_bins=self.n_bins) for t in AUTHORS_GRID]
        self.temperature_ = AUTHORS_GRID[int(np.argmin(errors))]


#: Of the tempered probabilities in a mixture: with none, all labels would be equally likely.
MIN_WEIGHT = 1e-6


class EnsembleTemperature(Calibrator):
    """A mixture of softmax(f/T), softmax(f) and the uniform distribution (Zhang et al. 2020). Labels do not change.

    P = w₁ softmax(f/T) + w₂ softmax(f) + w₃/C, weights ≥ 0. T by NLL as in `TemperatureScaling`, then the
    weights that minimise the NLL, which is convex in them.
    Learned: `temperature_`; `weights_` `[3]` of tempered, plain and uniform probabilities.

    >>> rng = np.random.default_rng(0)
    >>> y = np.where(rng.random(5000) < 0.2, rng.integers(0, 2, 5000), 1)  # a fifth of the labels is random
    >>> EnsembleTemperature().fit(np.tile([0.0, 9.0], (5000, 1)), y).predict_proba([[0.0, 9.0]]).round(1).tolist()
    [[0.1, 0.9]]
    """

    name = "ensemble-temperature"
    learned = ("temperature_", "weights_")

    @property
    def note(self) -> str:
        tempered, plain, uniform = self.weights_
        return f"{tempered:.2f} at T = {self.temperature_:.4g}, {plain:.2f} plain, {uniform:.2f} uniform"

    def min_rows(self, n_classes: int) -> int:
        return 200

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        self.temperature_, _ = fit_temperature(logits, y)
        rows = np.arange(len(y))
        weights = fit_mixture_weights(np.stack([p[rows, y] for p in self._members(logits)]))
        self.weights_ = (1 - MIN_WEIGHT) * weights + MIN_WEIGHT * np.array([1.0, 0.0, 0.0])

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        tempered, plain, uniform = self._members(logits)
        probs = self.weights_[0] * tempered + self.weights_[1] * plain + self.weights_[2] * uniform
        return probs / probs.sum(axis=1, keepdims=True)

    def _members(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        uniform = np.full(logits.shape, 1.0 / logits.shape[1])
        return softmax(logits / self.temperature_), softmax(logits), uniform


def fit_mixture_weights(likelihoods: np.ndarray) -> np.ndarray:
    """The weights `[m]`, summing to one, of the mixture that maximises the likelihood of rows `[m, n]`.

    >>> fit_mixture_weights(np.array([[0.9, 0.9, 0.9], [0.5, 0.5, 0.5]])).round(3).tolist()
    [1.0, 0.0]
    """
    from scipy.optimize import minimize

    likely = np.maximum(likelihoods, 1e-300)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        # The sum of the weights is added, which makes that sum one at the minimum: no constraint needed.
        mixed = np.maximum(w @ likely, 1e-300)
        return float(w.sum() - np.log(mixed).mean()), 1.0 - (likely / mixed).mean(axis=1)

    start = np.full(len(likely), 1.0 / len(likely))
    options: Any = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9}
    bounds = [(0.0, None)] * len(start)
    found = minimize(loss, start, (), "L-BFGS-B", jac=True, bounds=bounds, options=options)
    return found.x / found.x.sum()


def fit_temperature(logits: np.ndarray, y: np.ndarray) -> tuple[float, bool]:
    """T that minimises the mean NLL, and whether it lies inside the bounds."""
    z = class_lines(logits)
    target = z[y, np.arange(len(y))]
    if not z.any():
        return 1.0, True  # every row is flat: all T are equally good
    if not target.any():
        return 1.0 / MAX_SCALE, False  # every row is predicted correctly: the lower T, the better
    b, stride = 1.0, len(y) // SAMPLE_ROWS
    if stride > 1 and target[::stride].any():  # a sample first: its passes are nearly free and leave two or three
        b, _ = _solve(np.ascontiguousarray(z[:, ::stride]), target[::stride].mean(), b, 1e-4)
    b, converged = _solve(z, target.mean(), b, 1e-6)
    return float(1.0 / b), converged


def _solve(z: np.ndarray, target: float, b: float, tolerance: float) -> tuple[float, bool]:
    """The root b of the increasing E_p[z] - target: Newton, or the middle of the bracket where Newton leaves it."""
    low, high = 1.0 / MAX_SCALE, MAX_SCALE
    for _ in range(MAX_STEPS):
        mean, variance = _moments(z, b)
        if (b >= MAX_SCALE and mean <= target) or (b <= 1.0 / MAX_SCALE and mean >= target):
            return b, False
        low, high = (low, b) if mean > target else (b, high)
        new = middle = float(np.sqrt(low * high))
        if variance > 0 and mean < 0:  # on log(mean / target): where rows are nearly separable, mean ~ exp(-b·gap)
            new = b - mean / variance * np.log(mean / target)
        if new >= high == MAX_SCALE or new <= low == 1.0 / MAX_SCALE:
            new = min(max(new, low), high)  # a bound itself is tried before anything near it
        elif not low < new < high:
            new = middle
        if abs(new - b) <= tolerance * b:
            return new, True
        b = new
    return b, False


def _moments(z: np.ndarray, b: float) -> tuple[float, float]:
    """Mean over rows of E_p[z] and of Var_p[z] under p = softmax(b z) over classes; `z` is `[C, n]`, at most 0.

    Hand-written: softmax and both moments in one pass (benchmarks/calibrators.py, temperature fit).
    """
    mean = variance = 0.0
    for block in blocks(z):
        e = np.exp(b * block)
        total = e.sum(axis=0)
        e *= block
        first = e.sum(axis=0) / total
        e *= block
        mean += first.sum()
        variance += (e.sum(axis=0) / total - first * first).sum()
    return mean / z.shape[1], variance / z.shape[1]


def class_lines(logits: np.ndarray) -> np.ndarray:
    """`[n, C]` logits as contiguous `[C, n]`, each row shifted so that its largest is 0.

    >>> class_lines(np.array([[3.0, 1.0], [0.0, 5.0]])).tolist()
    [[0.0, -5.0], [-2.0, 0.0]]
    """
    z = np.array(logits.T, dtype=np.float64, order="C")
    with np.errstate(over="ignore"):  # 1e308 - -1e308: the limit below makes it finite again
        z -= z.max(axis=0)
    return np.maximum(z, -MAX_GAP, out=z)


def blocks(z: np.ndarray, n_values: int = 1 << 14) -> Iterator[np.ndarray]:
    """Views of `[C, n]` of some columns each, so that temporaries stay in the processor's cache."""
    width = max(1, n_values // len(z))
    for start in range(0, z.shape[1], width):
        yield z[:, start : start + width]


def log_odds(logits: np.ndarray) -> np.ndarray:
    """One-vs-rest log-odds log p/(1-p) of each class, `[C, n]`, finite however saturated the row is.

    >>> log_odds(np.array([[2.0, 0.0], [-900.0, 900.0]])).tolist()
    [[2.0, -1800.0], [-2.0, 1800.0]]
    """
    from scipy.special import logsumexp

    z = class_lines(logits)
    for block in blocks(z):
        top, rows = block.argmax(axis=0), np.arange(block.shape[1])
        e = np.exp(block)
        e[top, rows] = 0.0
        below = e.sum(axis=0)
        rest = np.log(1.0 + below - e)  # nothing cancels: the 1 is exp(0) of the largest, and e is a part of below
        rest[top, rows] = np.log(np.maximum(below, 1e-290))
        if len(lost := np.flatnonzero(below < 1e-290)):  # even exp of the second largest underflows
            others = block[:, lost]
            others[top[lost], np.arange(len(lost))] = -np.inf
            rest[top[lost], lost] = logsumexp(others, axis=0)
        block -= rest
    return z


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
    """A scale and a bias for the logit of each class (Guo et al. 2017). May change the predicted labels.

    softmax(scale ∘ f(x) + bias). Rows are centred first, which makes the method invariant to a shift of a row.
    Minimised: the NLL of all rows plus penalty/2 · (‖T·scale - 1‖² + ‖bias‖²), T being the temperature of
    `TemperatureScaling`. Learned: `scale_` `[C]`, `bias_` `[C]`, `converged_`.

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
    """A linear map of the logits, held close to temperature scaling (Berta et al. 2026). May change predicted labels.

    softmax((I + Δ) z + b) with z = log P after temperature scaling. As the authors do, P is mixed with 1/(n + 1) of the
    uniform distribution, which bounds z where a model is saturated. Minimised: the mean NLL plus penalty · C/n ·
    (‖b‖² + ‖diag Δ‖² + (C − 1) ‖off-diagonal Δ‖²). Learned: `matrix_` `[C, C]`, `bias_` `[C]`, `temperature_`,
    `converged_`.

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
