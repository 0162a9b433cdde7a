"""Beta calibration (Kull et al. 2017): P(y|x) = sigmoid(a · log p - b · log(1 - p) + c) for each label, a and b ≥ 0.

Where Platt scaling is right when log-odds are normal in each class, this is right when probabilities are
beta-distributed; a = b = 1, c = 0 is the identity, which Platt on log-odds also contains, but a ≠ b it does not.
"""

from dataclasses import dataclass

import numpy as np

from ebmcal.calibrators.logistic import fit_logistic, sigmoid, smoothed_targets
from ebmcal.calibrators.one_vs_rest import OneVsRest


@dataclass(frozen=True)
class BetaCurve:
    """sigmoid(a · log p - b · log(1 - p) + c) with p = sigmoid(odds)."""

    a: float
    b: float
    c: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return sigmoid(self.a * _log_sigmoid(odds) - self.b * _log_sigmoid(-odds) + self.c)


def fit_beta_curve(odds: np.ndarray, hits: np.ndarray) -> BetaCurve:
    """The beta curve of log-odds `[n]` and booleans `[n]`; a negative weight is set to 0 and the rest fitted again."""
    features, targets = np.stack([_log_sigmoid(odds), -_log_sigmoid(-odds)]), smoothed_targets(hits)
    used, weights = [0, 1], fit_logistic(features, targets)
    while weights[:-1].min(initial=0.0) < 0:
        used.pop(int(weights[:-1].argmin()))
        weights = fit_logistic(features[used], targets)
    ab = np.zeros(2)
    ab[used] = weights[:-1]
    return BetaCurve(float(ab[0]), float(ab[1]), float(weights[-1]))


class Beta(OneVsRest):
    """Three numbers per label: the two ends of the probability scale are stretched on their own.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> logits = rng.normal(size=(2000, 2)) + np.eye(2)[y]
    >>> Beta().fit(3 * logits, y).predict_proba([[0.0, 3.0]]).round(1).tolist()
    [[0.2, 0.8]]
    """

    name = "beta"
    curve = BetaCurve

    def rows_wanted(self, n_classes: int) -> int:
        return 150 * n_classes

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> BetaCurve:
        return fit_beta_curve(odds, hits)


def _log_sigmoid(x: np.ndarray) -> np.ndarray:
    """log sigmoid(x) without overflow: -log(1 + exp(-x))."""
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))
