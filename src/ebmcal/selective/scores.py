"""Selection scores: one number per row, higher = more trustworthy. A rule answers rows above a threshold.

`confidence` is the largest probability (after calibration), `energy` is −E(x), and `both` combines the log-odds of the
confidence and −E(x) by a logistic regression of "the prediction is correct".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import unknown_name
from ebmcal.predictions import Predictions

RIDGE = 1.0  # pulls both weights towards 0, in units of one row
STEPS = 25  # of Newton's method; fewer than ten are needed


@dataclass(frozen=True)
class Score:
    """A score by name; `weights` and `centre` are what `both` has learned."""

    name: str
    weights: tuple[float, ...] = ()
    centre: tuple[float, ...] = ()

    def __call__(self, predictions: Predictions) -> np.ndarray:
        """Scores [n], higher = more trustworthy."""
        columns = SCORES[self.name](predictions)  # [n, 1 or 2]
        return (columns - self.centre) @ np.array(self.weights) if self.weights else columns[:, 0]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Score":
        return cls(str(value["name"]), tuple(map(float, value["weights"])), tuple(map(float, value["centre"])))


def energies_of(predictions: Predictions) -> np.ndarray:
    """Energies [n]: those of the predictions, else −logsumexp of their logits."""
    from ebmcal.metrics import ood_scores

    return -ood_scores("energy", logits=predictions.logits, energies=predictions.energies)


def _confidence_and_energy(predictions: Predictions) -> np.ndarray:
    p = predictions.confidence
    odds = np.log(np.maximum(p, 1e-12)) - np.log(np.maximum(1.0 - p, 1e-12))
    return np.stack([odds, -energies_of(predictions)], axis=1)


#: What a score is computed from: columns [n, 1], or [n, 2] if their weights are learned.
SCORES: dict[str, Callable[[Predictions], np.ndarray]] = {
    "confidence": lambda predictions: predictions.confidence[:, None],
    "energy": lambda predictions: -energies_of(predictions)[:, None],
    "both": _confidence_and_energy,
}


def fit_score(name: str, predictions: Predictions) -> Score:
    """A score; `both` learns its weights from the labelled rows.

    >>> rows = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> fit_score("confidence", rows)(rows)
    array([0.9, 0.6])
    """
    if name not in SCORES:
        raise unknown_name("score", name, SCORES)
    columns = SCORES[name](predictions)
    if columns.shape[1] == 1:
        return Score(name)
    centre, spread = columns.mean(axis=0), columns.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    correct = predictions.predicted == predictions.labels
    # Higher confidence and lower energy never reduce the score, whatever a few rows suggest.
    weights = np.maximum(fit_ridge_logistic((columns - centre) / spread, correct)[0][:-1], 0.0)
    weights = weights if weights.any() else np.ones(len(weights))
    return Score(name, tuple((weights / spread).tolist()), tuple(centre.tolist()))


def fit_ridge_logistic(
    columns: np.ndarray, targets: np.ndarray, intercept_ridge: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [d + 1], intercept last, and Hessian of a logistic regression with a small ridge, by Newton's method.

    >>> weights, hessian = fit_ridge_logistic(np.array([[-1.0], [1.0], [2.0]]), np.array([False, True, True]))
    >>> weights.shape, hessian.shape
    ((2,), (2, 2))
    """
    x = np.column_stack([columns, np.ones(len(columns))])  # [n, d + 1]
    ridge = np.append(np.full(columns.shape[1], RIDGE), intercept_ridge)
    w = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -30, 30)))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        w = w - np.linalg.solve(hessian, x.T @ (p - targets) + ridge * w)
    return w, hessian
