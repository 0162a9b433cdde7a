"""Structured matrix scaling (Berta et al. 2026): softmax((I + Δ) z + b) on z = log P, P that of temperature scaling.

As the authors do, P gets a share of 1/(n + 1) of the uniform distribution, which bounds z where a model is saturated.
Every label may borrow from every other, but pays for it. Minimised by L-BFGS: the mean NLL plus
penalty · C/n · (‖b‖² + ‖diag Δ‖² + (C − 1) ‖off-diagonal Δ‖²), T being the temperature of `TemperatureScaling`: with
few rows for its C² numbers it falls back to that instead of running away, as plain matrix scaling does.
"""

import numpy as np

from ebmcal.calibrators.base import by_label
from ebmcal.calibrators.penalised import Penalised, nll_and_gradient
from ebmcal.calibrators.temperature import least_nll
from ebmcal.predictions.arrays import softmax


class MatrixScaling(Penalised):
    """A matrix and a bias, held near temperature scaling. May change the predicted labels.

    Learned: `matrix_` `[C, C]`, `bias_` `[C]`, `temperature_`, `converged_`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 2000)
    >>> logits = rng.normal(size=(2000, 3)) + 2 * np.eye(3)[y]
    >>> (MatrixScaling().fit(logits + [0, 0, 2], y).bias_ < 0).tolist()
    [False, False, True]
    """

    name, title = "structured-matrix", "Matrix scaling"
    learned = ("matrix_", "bias_", "temperature_", "converged_")

    def __init__(self, penalty: float = 1.0):
        self.penalty = penalty

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        self.temperature_, _ = least_nll(logits, y)
        z = np.ascontiguousarray(self._log_probs(logits, len(y)).T)  # [C, n]
        c, n = z.shape
        prices = self.penalty * c / n * np.hstack([np.where(np.eye(c) > 0, 1.0, c - 1.0), np.ones((c, 1))])
        found = self._minimise(_objective, np.zeros(c * (c + 1)), (z, y, prices), maxiter=2000, maxfun=4000)
        delta = found.reshape(c, c + 1)
        self.matrix_, self.bias_ = np.eye(c) + delta[:, :c], delta[:, c].copy()

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        # Not `@`: a row's last bits would depend on how many rows come with it.
        return softmax(np.einsum("nj,kj->nk", self._log_probs(logits, self.n_rows_), self.matrix_) + self.bias_)

    def _log_probs(self, logits: np.ndarray, n_rows: int) -> np.ndarray:
        probs = softmax(by_label(logits).T / self.temperature_)
        return np.log((n_rows * probs + 1.0 / logits.shape[1]) / (n_rows + 1))


def _objective(theta: np.ndarray, z: np.ndarray, y: np.ndarray, prices: np.ndarray) -> tuple[float, np.ndarray]:
    """Penalised mean NLL and its gradient; theta is Δ and b side by side `[C, C + 1]`, `z` is `[C, n]`."""
    c, n = z.shape
    delta = theta.reshape(c, c + 1)
    loss, gradient = nll_and_gradient(
        z,
        y,
        lambda block: block + delta[:, :c] @ block + delta[:, c:],
        lambda block, error: np.hstack([error @ block.T, error.sum(axis=1, keepdims=True)]),
    )
    return loss / n + (prices * delta**2).sum(), (gradient / n + 2 * prices * delta).ravel()
