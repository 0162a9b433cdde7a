"""Structured matrix scaling (Berta et al. 2026): softmax((I + Δ) z + b) on z = log P, P that of temperature scaling.

As the authors do, P gets a share of 1/(n + 1) of the uniform distribution, which bounds z where a model is saturated.
Every label may borrow from every other, but pays for it. Minimised by L-BFGS: the mean NLL plus
penalty · C/n · (‖b‖² + ‖diag Δ‖² + (C − 1) ‖off-diagonal Δ‖²), T being the temperature of `TemperatureScaling`: with
few rows for its C² numbers it falls back to that instead of running away, as plain matrix scaling does.
"""

import warnings

import numpy as np

from ebmcal.calibrators.base import Calibrator, blocks, by_label, require_positive
from ebmcal.calibrators.temperature import least_nll
from ebmcal.predictions.arrays import softmax


class MatrixScaling(Calibrator):
    """A matrix and a bias, held near temperature scaling. May change the predicted labels.

    Learned: `matrix_` `[C, C]`, `bias_` `[C]`, `temperature_`, `converged_`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 2000)
    >>> logits = rng.normal(size=(2000, 3)) + 2 * np.eye(3)[y]
    >>> (MatrixScaling().fit(logits + [0, 0, 2], y).bias_ < 0).tolist()
    [False, False, True]
    """

    name = "structured-matrix"
    learned = ("matrix_", "bias_", "temperature_", "converged_")

    def __init__(self, penalty: float = 1.0):
        self.penalty = penalty

    @property
    def note(self) -> str:
        return "" if self.converged_ else "not converged"

    def rows_wanted(self, n_classes: int) -> int:
        return 100 * n_classes

    def _check_settings(self) -> None:
        require_positive("penalty", self.penalty, 1.0)

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        from scipy.optimize import minimize

        self.temperature_, _ = least_nll(logits, y)
        z = np.ascontiguousarray(self._log_probs(logits, len(y)).T)  # [C, n]
        c, n = z.shape
        prices = self.penalty * c / n * np.hstack([np.where(np.eye(c) > 0, 1.0, c - 1.0), np.ones((c, 1))])
        found = minimize(
            _objective, np.zeros(c * (c + 1)), (z, y, prices), jac=True, method="L-BFGS-B",
            options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-8},
        )  # fmt: skip
        delta = found.x.reshape(c, c + 1)
        self.matrix_, self.bias_ = np.eye(c) + delta[:, :c], delta[:, c].copy()
        self.converged_ = bool(found.success)
        if not self.converged_:
            warnings.warn(f"Matrix scaling did not converge: {found.message}. Try a larger penalty.", stacklevel=4)

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
    loss, gradient, start = 0.0, np.zeros_like(delta), 0
    for block in blocks(z):
        columns = np.arange(block.shape[1])
        labels = y[start : start + len(columns)]
        start += len(columns)
        p = block + delta[:, :c] @ block + delta[:, c:]
        p -= p.max(axis=0)
        aim = p[labels, columns]
        np.exp(p, out=p)
        total = p.sum(axis=0)
        loss += (np.log(total) - aim).sum()
        p /= total
        p[labels, columns] -= 1.0  # dNLL/dlogit = p - onehot
        gradient += np.hstack([p @ block.T, p.sum(axis=1, keepdims=True)])
    return loss / n + (prices * delta**2).sum(), (gradient / n + 2 * prices * delta).ravel()
