"""Platt scaling (Platt 1999): P(y|x) = sigmoid(slope · log-odds + intercept) for each label.

With two classes this is the classical method on the margin of the logits; with more, one-vs-rest.
"""

from dataclasses import dataclass

import numpy as np

from ebmcal.calibrators.logistic import fit_logistic, sigmoid, smoothed_targets
from ebmcal.calibrators.one_vs_rest import OneVsRest


@dataclass(frozen=True)
class PlattCurve:
    """sigmoid(slope · odds + intercept)."""

    slope: float
    intercept: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return sigmoid(self.slope * odds + self.intercept)


def fit_platt_curve(odds: np.ndarray, hits: np.ndarray) -> PlattCurve:
    """The Platt curve of log-odds `[n]` and booleans `[n]`.

    >>> fit_platt_curve(np.array([-1.0, 1.0]), np.array([False, True])).slope > 0
    True
    """
    slope, intercept = fit_logistic(odds[None], smoothed_targets(hits))
    return PlattCurve(float(slope), float(intercept))


class Platt(OneVsRest):
    """A slope and an intercept per label. Mends confidence that is off by a different factor for each label.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> logits = rng.normal(size=(2000, 2)) + np.eye(2)[y]
    >>> Platt().fit(3 * logits, y).predict_proba([[0.0, 3.0]]).round(1).tolist()
    [[0.2, 0.8]]
    """

    name = "platt"
    curve = PlattCurve

    def rows_wanted(self, n_classes: int) -> int:
        return 100 * n_classes

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> PlattCurve:
        return fit_platt_curve(odds, hits)
