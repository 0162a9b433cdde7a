"""Vector scaling (Guo et al. 2017): softmax(scale ∘ f(x) + bias), a scale and a bias per label.

Logits are centred in each row first, which changes nothing for softmax but makes the method blind to a shift of a
row, as the others are. Minimised by L-BFGS: the NLL of all rows plus
penalty/2 · (‖T·scale - 1‖² + ‖bias‖²), T being the temperature of `TemperatureScaling`: with few rows, or a label
that never occurs, it falls back to temperature scaling instead of running away.
"""

import numpy as np

from ebmcal.calibrators.penalised import Penalised, nll_and_gradient
from ebmcal.calibrators.temperature import least_nll
from ebmcal.predictions.arrays import softmax


class VectorScaling(Penalised):
    """A scale and a bias per label, learned together. May change the predicted labels.

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
        temperature, _ = least_nll(logits, y)
        z = _centred(logits).T / temperature  # [C, n]
        start = np.concatenate([np.ones(len(z)), np.zeros(len(z))])
        found = self._minimise(_objective, start, (z, y, self.penalty), maxiter=1000)
        self.scale_, self.bias_ = found[: len(z)] / temperature, found[len(z) :].copy()

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        return softmax(_centred(logits) * self.scale_ + self.bias_)


def _centred(logits: np.ndarray) -> np.ndarray:
    z = np.asarray(logits, dtype=np.float64)
    return z - z.mean(axis=1, keepdims=True)


def _objective(theta: np.ndarray, z: np.ndarray, y: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
    """Penalised NLL per row and its gradient; theta is the C scales, then the C biases, `z` is `[C, n]`."""
    n_classes, n = z.shape
    scale, bias = theta[:n_classes, None], theta[n_classes:, None]
    loss, gradient = nll_and_gradient(
        z,
        y,
        lambda block: scale * block + bias,
        lambda block, error: np.concatenate([(error * block).sum(axis=1), error.sum(axis=1)]),
    )
    away = theta - np.repeat([1.0, 0.0], n_classes)
    return (loss + penalty / 2 * away @ away) / n, (gradient + penalty * away) / n
