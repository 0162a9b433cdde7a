"""Spline calibration (Gupta et al. 2021): the cumulative gap between hits and scores, in the order of the scores, is a
smooth curve; its slope is added to the score.

With rows sorted by the probability of a class and u their rank from 0 to 1, s(u) is the natural cubic spline with few
knots nearest (least squares) to Σ (hit − p) / n, and P = p + s′(u). No bins, no parametric shape.
Deviations from the paper: probabilities are those after temperature scaling, so that a saturated model does not need a
jump of the spline; rows of equal score share their hits; results stay within 1/(n + 2) of 0 and 1.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ebmcal.calibration.base import require_whole_number
from ebmcal.calibration.layout import class_lines
from ebmcal.calibration.one_vs_rest import OneVsRest, sigmoid
from ebmcal.calibration.temperature import MAX_SCALE, fit_temperature

#: Points at which the ranks of the scores are stored; with up to this many fitting rows, all of them.
MAX_POINTS = 1024


@dataclass(frozen=True)
class SplineCurve:
    """sigmoid(odds) + the slope of the spline at the rank of the odds."""

    odds: np.ndarray  # [k], increasing
    ranks: np.ndarray  # [k], 0..1
    heights: np.ndarray  # [knots] of the spline, evenly spaced
    margin: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        slope = _natural_spline(self.heights).derivative()(np.interp(odds, self.odds, self.ranks))
        return np.clip(sigmoid(odds) + slope, self.margin, 1.0 - self.margin)


class Spline(OneVsRest):
    """A smooth curve per class. May change the predicted labels. Learned: `curves_`, `temperature_`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> logits = rng.normal(size=(2000, 2)) + np.eye(2)[y]
    >>> Spline().fit(3 * logits, y).predict_proba([[0.0, 3.0]]).round(1).tolist()
    [[0.2, 0.8]]
    """

    name = "spline"
    curve = SplineCurve
    learned = ("curves_", "temperature_")
    ranges: ClassVar = {"temperature_": (1 / MAX_SCALE, MAX_SCALE)}

    def __init__(self, n_knots: int = 6):
        self.n_knots = n_knots

    def min_rows(self, n_classes: int) -> int:
        return 300 * n_classes

    def _check_settings(self) -> None:
        require_whole_number("n_knots", self.n_knots, least=3)

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        self.temperature_, _ = fit_temperature(logits, y)
        super()._fit(self._tempered(logits), y)

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        return super()._predict(self._tempered(logits))

    def _tempered(self, logits: np.ndarray) -> np.ndarray:
        return class_lines(logits).T / self.temperature_

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> SplineCurve:
        n = len(odds)
        scores, place, counts = np.unique(odds, return_inverse=True, return_counts=True)
        shares = np.bincount(place, hits) / counts
        gaps = np.cumsum((shares - sigmoid(scores)).repeat(counts)) / n  # [n], of the sorted rows
        u = np.linspace(0.0, 1.0, n)
        basis = _natural_spline(np.eye(self.n_knots))(u)  # [n, knots]
        heights = np.linalg.lstsq(basis, gaps, rcond=None)[0]
        ranks = np.add.reduceat(u, np.concatenate([[0], np.cumsum(counts)[:-1]])) / counts
        kept = np.unique(np.linspace(0, len(scores) - 1, MAX_POINTS).round().astype(int))
        return SplineCurve(scores[kept], ranks[kept], heights, 1.0 / (n + 2))


def _natural_spline(heights: np.ndarray) -> Any:
    """The natural cubic spline(s) on 0..1 through evenly spaced heights `[knots]` or `[knots, m]`."""
    from scipy.interpolate import CubicSpline

    return CubicSpline(np.linspace(0.0, 1.0, len(heights)), heights, bc_type="natural")
