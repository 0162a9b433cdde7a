"""Ensemble temperature scaling (Zhang et al. 2020): P = w₁ softmax(f/T) + w₂ softmax(f) + w₃/C, the weights a mixture.

T first, as `TemperatureScaling` finds it, then the weights of least NLL, which is convex in them. Where one T is right
w₁ is 1; a share of the uniform distribution is what rows need that are wrong for no reason the logits know.
"""

from typing import ClassVar

import numpy as np

from ebmcal.calibrators.base import Calibrator
from ebmcal.calibrators.temperature import MAX_SCALE, least_nll
from ebmcal.predictions.arrays import softmax


class EnsembleTemperature(Calibrator):
    """A mixture of tempered, plain and uniform probabilities. Predicted labels stay the same.

    Learned: `temperature_`; `weights_` `[3]`, of tempered, plain and uniform.

    >>> rng = np.random.default_rng(0)
    >>> y = np.where(rng.random(5000) < 0.2, rng.integers(0, 2, 5000), 1)  # a fifth is drawn by lot
    >>> EnsembleTemperature().fit(np.tile([0.0, 9.0], (5000, 1)), y).predict_proba([[0.0, 9.0]]).round(1).tolist()
    [[0.1, 0.9]]
    """

    name = "ensemble-temperature"
    learned = ("temperature_", "weights_")
    ranges: ClassVar = {"temperature_": (1 / MAX_SCALE, MAX_SCALE), "weights_": (0.0, 1.0)}

    @property
    def note(self) -> str:
        tempered, plain, uniform = self.weights_
        return f"{tempered:.2f} at T = {self.temperature_:.4g}, {plain:.2f} plain, {uniform:.2f} uniform"

    def rows_wanted(self, n_classes: int) -> int:
        return 200

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        self.temperature_, _ = least_nll(logits, y)
        rows = np.arange(len(y))
        self.weights_ = mixture_weights(np.stack([p[rows, y] for p in self._members(logits)]))

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        tempered, plain, uniform = self._members(logits)
        probs = self.weights_[0] * tempered + self.weights_[1] * plain + self.weights_[2] * uniform
        return probs / probs.sum(axis=1, keepdims=True)

    def _members(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        uniform = np.full(logits.shape, 1.0 / logits.shape[1])
        return softmax(logits / self.temperature_), softmax(logits), uniform


def mixture_weights(likelihoods: np.ndarray) -> np.ndarray:
    """The weights `[m]` of the mixture under which rows of likelihood `[m, n]` are likeliest; they sum to one.

    >>> mixture_weights(np.array([[0.9, 0.9, 0.9], [0.5, 0.5, 0.5]])).round(3).tolist()
    [1.0, 0.0]
    """
    from scipy.optimize import minimize

    start, likely = np.full(len(likelihoods), 1.0 / len(likelihoods)), np.maximum(likelihoods, 1e-300)
    found = minimize(
        _loss, start, (likely,), jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(start),
        options={"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    return found.x / found.x.sum()


def _loss(w: np.ndarray, likely: np.ndarray) -> tuple[float, np.ndarray]:
    """NLL of the mixture plus the sum of the weights, which makes that sum one at the minimum: no constraint needed."""
    mixed = np.maximum(w @ likely, 1e-300)
    return float(w.sum() - np.log(mixed).mean()), 1.0 - (likely / mixed).mean(axis=1)
