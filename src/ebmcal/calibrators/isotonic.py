"""Isotonic regression (Zadrozny & Elkan 2002): the best non-decreasing curve per label, by pool-adjacent-violators.

The most flexible of the curves, and the first to overfit: it wants a thousand rows. Between fitting rows the
curve is linear in the log-odds; beyond them it is flat.
"""

from dataclasses import dataclass

import numpy as np

from ebmcal.calibrators.one_vs_rest import OneVsRest


@dataclass(frozen=True)
class StepCurve:
    """Linear between knots (`odds` increasing, `values` non-decreasing), constant outside."""

    odds: np.ndarray
    values: np.ndarray

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return np.interp(odds, self.odds, self.values)


class Isotonic(OneVsRest):
    """A non-decreasing curve per label.

    Values stay within 1/(n + 2) of 0 and 1: n rows cannot show that something never happens, and a probability of
    exactly 0 makes the NLL infinite at the first surprise.

    >>> y = np.array([0, 1] * 600)
    >>> logits = np.stack([np.zeros(1200), np.linspace(-3, 3, 1200)], axis=1)
    >>> Isotonic().fit(logits, y).predict_proba(logits)[:, 1].round(2)[::400].tolist()
    [0.0, 0.5, 0.5]
    """

    name = "isotonic"
    curve = StepCurve

    def rows_wanted(self, n_classes: int) -> int:
        return 500 * n_classes

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> StepCurve:
        from scipy.optimize import isotonic_regression

        knots, inverse, counts = np.unique(odds, return_inverse=True, return_counts=True)
        shares = np.bincount(inverse, hits) / counts
        values = isotonic_regression(shares, weights=counts).x
        margin = 1.0 / (len(odds) + 2)
        ends = _ends_of_flats(values)
        return StepCurve(knots[ends], np.clip(values[ends], margin, 1.0 - margin))


def _ends_of_flats(values: np.ndarray) -> np.ndarray:
    """Which points of a non-decreasing curve are needed: the first and last of every flat stretch."""
    rises = np.diff(values) > 0
    return np.append(True, rises) | np.append(rises, True)
