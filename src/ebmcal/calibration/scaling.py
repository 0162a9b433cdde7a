"""Vector and matrix scaling: affine maps of the logits, held near temperature scaling by a penalty, fitted by L-BFGS.

With few rows, or a class that never occurs, the penalty makes them fall back to temperature scaling.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ebmcal.calibration.base import Calibrator, require_positive
from ebmcal.calibration.layout import blocks, class_lines
from ebmcal.calibration.temperature import fit_temperature
from ebmcal.predictions.arrays import softmax


class PenalisedScaling(Calibrator):
    """A calibrator with a `penalty` that learns by `_minimise`, which sets `converged_`."""

    title: ClassVar[str]
    penalty: float
    converged_: bool

    @property
    def note(self) -> str:
        return "" if self.converged_ else "not converged"

    def min_rows(self, n_classes: int) -> int:
        return 100 * n_classes

    def _check_settings(self) -> None:
        require_positive("penalty", self.penalty, inspect.signature(type(self)).parameters["penalty"].default)

    def _minimise(self, objective: Callable[..., Any], start: np.ndarray, arguments: Any, **limits: int) -> np.ndarray:
        from scipy.optimize import minimize

        options: Any = {"ftol": 1e-15, "gtol": 1e-8, **limits}
        found = minimize(objective, start, arguments, jac=True, method="L-BFGS-B", options=options)
        self.converged_ = bool(found.success)
        if not self.converged_:
            warnings.warn(f"{self.title} did not converge: {found.message}. Try a larger penalty.", stacklevel=5)
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

    name, title = "vector", "Vector scaling"
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

    name, title = "matrix", "Matrix scaling"
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
    scale, bias = theta[:n_classes, None], theta[n_classes:, None]
    loss, gradient = _nll_and_gradient(
        z,
        y,
        lambda block: scale * block + bias,
        lambda block, error: np.concatenate([(error * block).sum(axis=1), error.sum(axis=1)]),
    )
    away = theta - np.repeat([1.0, 0.0], n_classes)
    return (loss + penalty / 2 * away @ away) / n, (gradient + penalty * away) / n


def matrix_objective(theta: np.ndarray, z: np.ndarray, y: np.ndarray, prices: np.ndarray) -> tuple[float, np.ndarray]:
    """Penalised mean NLL and its gradient; theta is Δ and b side by side `[C, C + 1]`, `z` is `[C, n]`."""
    c, n = z.shape
    delta = theta.reshape(c, c + 1)
    loss, gradient = _nll_and_gradient(
        z,
        y,
        lambda block: block + delta[:, :c] @ block + delta[:, c:],
        lambda block, error: np.hstack([error @ block.T, error.sum(axis=1, keepdims=True)]),
    )
    return loss / n + (prices * delta**2).sum(), (gradient / n + 2 * prices * delta).ravel()


def _nll_and_gradient(
    z: np.ndarray,
    y: np.ndarray,
    scores: Callable[[np.ndarray], np.ndarray],
    by_parameter: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[float, np.ndarray]:
    """NLL of softmax(scores(z)), summed over the columns of `z` `[C, n]`, and its gradient in the parameters.

    `by_parameter` maps a block of `z` and dNLL/dscores there, both `[C, m]`, to the gradient of that block.
    """
    loss, gradient, start = 0.0, np.zeros(()), 0
    for block in blocks(z):
        columns = np.arange(block.shape[1])
        labels = y[start : start + len(columns)]
        start += len(columns)
        p = scores(block)
        p -= p.max(axis=0)
        target = p[labels, columns]
        np.exp(p, out=p)
        total = p.sum(axis=0)
        loss += (np.log(total) - target).sum()
        p /= total
        p[labels, columns] -= 1.0  # dNLL/dscore = p - onehot
        gradient = gradient + by_parameter(block, p)
    return float(loss), gradient
