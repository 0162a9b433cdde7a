"""Vector scaling (Guo et al. 2017): softmax(scale ∘ f(x) + bias), a scale and a bias per label.

Logits are centred in each row first, which changes nothing for softmax but makes the method blind to a shift of a
row, as the others are. Minimised by L-BFGS: the NLL of all rows plus
penalty/2 · (‖T·scale - 1‖² + ‖bias‖²), T being the temperature of `TemperatureScaling`: with few rows, or a label
that never occurs, it falls back to temperature scaling instead of running away.
"""

import warnings

import numpy as np

from ebmcal.calibrators.base import Calibrator, blocks, require_positive
from ebmcal.calibrators.temperature import least_nll
from ebmcal.predictions.arrays import softmax


class VectorScaling(Calibrator):
    """A scale and a bias per label, learned together. May change the predicted labels.

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

    @property
    def note(self) -> str:
        return "" if self.converged_ else "not converged"

    def rows_wanted(self, n_classes: int) -> int:
        return 100 * n_classes

    def _check_settings(self) -> None:
        require_positive("penalty", self.penalty, 0.1)

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        from scipy.optimize import minimize

        temperature, _ = least_nll(logits, y)
        z = _centred(logits).T / temperature  # [C, n]
        start = np.concatenate([np.ones(len(z)), np.zeros(len(z))])
        found = minimize(
            _objective, start, (z, y, self.penalty), jac=True, method="L-BFGS-B",
            options={"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-8},
        )  # fmt: skip
        self.scale_, self.bias_ = found.x[: len(z)] / temperature, found.x[len(z) :].copy()
        self.converged_ = bool(found.success)
        if not self.converged_:
            warnings.warn(f"Vector scaling did not converge: {found.message}. Try a larger penalty.", stacklevel=4)

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        return softmax(_centred(logits) * self.scale_ + self.bias_)


def _centred(logits: np.ndarray) -> np.ndarray:
    z = np.asarray(logits, dtype=np.float64)
    return z - z.mean(axis=1, keepdims=True)


def _objective(theta: np.ndarray, z: np.ndarray, y: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
    """Penalised NLL per row and its gradient; theta is the C scales, then the C biases, `z` is `[C, n]`."""
    n_classes, n = z.shape
    scale, bias = theta[:n_classes, None], theta[n_classes:, None]
    loss, gradient, start = 0.0, np.zeros_like(theta), 0
    for block in blocks(z):
        columns = np.arange(block.shape[1])
        labels = y[start : start + len(columns)]
        start += len(columns)
        p = scale * block + bias
        p -= p.max(axis=0)
        aim = p[labels, columns]
        np.exp(p, out=p)
        total = p.sum(axis=0)
        loss += (np.log(total) - aim).sum()
        p /= total
        p[labels, columns] -= 1.0  # dNLL/dlogit = p - onehot
        gradient += np.concatenate([(p * block).sum(axis=1), p.sum(axis=1)])
    away = theta - np.repeat([1.0, 0.0], n_classes)
    return (loss + penalty / 2 * away @ away) / n, (gradient + penalty * away) / n
