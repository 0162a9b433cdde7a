"""How far a row is trusted: a number for each, higher = more trusted. A rule answers the rows above a threshold.

`confidence` is the largest probability (calibrated where the predictions are), `energy` is −E(x), and `both` weighs the
log-odds of the confidence and −E(x) as a logistic regression of "is right" does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import unknown_name
from ebmcal.metrics import ood_scores
from ebmcal.predictions import Predictions

RIDGE = 1.0  # pulls both weights towards 0, in units of one row: few rows shall not make a weight run away
STEPS = 25  # of Newton's method; it settles in fewer than ten


@dataclass(frozen=True)
class Score:
    """A score by name; `weights` and `centre` are what `both` has learned of (log-odds of the confidence, −energy)."""

    name: str
    weights: tuple[float, ...] = ()
    centre: tuple[float, ...] = ()

    def __call__(self, predictions: Predictions) -> np.ndarray:
        """Scores [n], higher = more trusted."""
        columns = SCORES[self.name](predictions)  # [n, 1 or 2]
        return (columns - self.centre) @ np.array(self.weights) if self.weights else columns[:, 0]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "weights": list(self.weights), "centre": list(self.centre)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Score":
        return cls(str(value["name"]), tuple(map(float, value["weights"])), tuple(map(float, value["centre"])))


def energies_of(predictions: Predictions) -> np.ndarray:
    """Energies [n]: those of the predictions, else −logsumexp of their logits."""
    return -ood_scores("energy", logits=predictions.logits, energies=predictions.energies)


def _both(predictions: Predictions) -> np.ndarray:
    p = predictions.confidences()
    odds = np.log(np.maximum(p, 1e-12)) - np.log(np.maximum(1.0 - p, 1e-12))
    return np.stack([odds, -energies_of(predictions)], axis=1)


#: What a score is made from: columns [n, 1], or [n, 2] where their weights are learned.
SCORES: dict[str, Callable[[Predictions], np.ndarray]] = {
    "confidence": lambda predictions: predictions.confidences()[:, None],
    "energy": lambda predictions: -energies_of(predictions)[:, None],
    "both": _both,
}


def fit_score(name: str, predictions: Predictions) -> Score:
    """A score ready for use; of labelled rows, `both` learns its weights.

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
    right = predictions.predicted() == predictions.labels
    # More sure and more data-like is never less trusted, whatever a few rows say.
    weights = np.maximum(_logistic((columns - centre) / spread, right), 0.0)
    weights = weights if weights.any() else np.ones(len(weights))
    return Score(name, tuple((weights / spread).tolist()), tuple(centre.tolist()))


def _logistic(columns: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Weights [d] of a logistic regression with intercept and a small ridge, by Newton's method."""
    x = np.column_stack([columns, np.ones(len(columns))])  # [n, d + 1]
    ridge = np.append(np.full(columns.shape[1], RIDGE), 1e-6)
    w = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -30, 30)))
        slope = x.T @ (p - right) + ridge * w
        bend = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        w = w - np.linalg.solve(bend, slope)
    return w[:-1]
