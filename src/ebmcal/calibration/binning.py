"""Calibrators that replace the probability of a class by one of a few values: histogram binning and scaling-binning.

Histogram binning (Zadrozny & Elkan 2001) gives each bin the share of its rows that have the class. Scaling-binning
(Kumar et al. 2019) fits a Platt curve and gives each equal-mass bin the mean of that curve: labels determine only two
numbers, so the bins are far less noisy. Both are piecewise constant, so expect ties between rows.

Equal-mass bins of n sorted rows end after floor(k·n / B) rows, k = 1..B−1, so with uneven n sizes differ by at most one
and the larger bins are spread evenly; equal values stay in one bin, which moves an end up to the last of them.
"""

from dataclasses import dataclass
from numbers import Real

import numpy as np

from ebmcal.calibration.base import require_whole_number
from ebmcal.calibration.one_vs_rest import OneVsRest, fit_platt_curve, sigmoid
from ebmcal.errors import EbmcalError, unknown_name

BINNINGS = ("mass", "width")


@dataclass(frozen=True)
class BinCurve:
    """A value per bin of the log-odds; bin k holds (edges[k-1], edges[k]], the first and last are open."""

    edges: np.ndarray  # [B - 1], increasing
    values: np.ndarray  # [B]

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return self.values[self.bins(odds)]

    def bins(self, odds: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.edges, odds, side="left")


def equal_mass_stops(ordered: np.ndarray, n_bins: int) -> np.ndarray:
    """Where bins of about equal counts end in sorted values, without the last end; equal values stay together.

    >>> equal_mass_stops(np.array([1.0, 2.0, 2.0, 2.0, 5.0, 6.0]), 3).tolist()
    [4]
    """
    n = len(ordered)
    wanted = np.arange(1, n_bins) * n // n_bins
    last = ordered[wanted[wanted > 0] - 1]
    stops = np.unique(np.searchsorted(ordered, last, side="right"))
    return stops[stops < n]


def edges_at(ordered: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Edges half-way between the last value of a bin and the first of the next."""
    below, above = ordered[stops - 1], ordered[stops]
    middle = below + (above - below) / 2
    return np.where(middle < above, middle, below)  # neighbouring floats have no middle


class ScalingBinning(OneVsRest):
    """A Platt curve per class, cut into equal-mass bins that each take the curve's mean.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 3000)
    >>> logits = rng.normal(size=(3000, 3)) + np.eye(3)[y]
    >>> probs = ScalingBinning(n_bins=10).fit(logits, y).predict_proba(logits)
    >>> bool(np.allclose(probs.sum(axis=1), 1))
    True
    """

    name = "scaling-binning"
    curve = BinCurve

    def __init__(self, n_bins: int = 10):
        self.n_bins = n_bins

    def min_rows(self, n_classes: int) -> int:
        return 100 * n_classes

    def _check_settings(self) -> None:
        require_whole_number("n_bins", self.n_bins)

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> BinCurve:
        platt, ordered = fit_platt_curve(odds, hits), np.sort(odds)
        stops = equal_mass_stops(ordered, self.n_bins)
        starts = np.concatenate([[0], stops])
        counts = np.diff(np.append(starts, len(ordered)))
        return BinCurve(edges_at(ordered, stops), np.add.reduceat(platt(ordered), starts) / counts)


class HistogramBinning(OneVsRest):
    """The share of rows with the class in each bin, smoothed by `pseudo_rows` rows that follow the model.

    `pseudo_rows` keeps bins of few rows from predicting exactly 0 or 1; 0 is the textbook method. `binning` is "mass"
    (bins of equal counts) or "width" (of equal width in probability; an empty bin keeps the middle of its range).

    >>> y = np.array([0, 1] * 500)
    >>> logits = np.where(y[:, None] == [0, 1], 5.0, 0.0) * np.linspace(-0.2, 1, 1000)[:, None]
    >>> HistogramBinning(n_bins=5).fit(logits, y).predict_proba(logits).shape
    (1000, 2)
    """

    name = "histogram-binning"
    curve = BinCurve

    def __init__(self, n_bins: int = 10, binning: str = "mass", pseudo_rows: float = 1.0):
        self.n_bins = n_bins
        self.binning = binning
        self.pseudo_rows = pseudo_rows

    def min_rows(self, n_classes: int) -> int:
        return 25 * self.n_bins * n_classes

    def _check_settings(self) -> None:
        require_whole_number("n_bins", self.n_bins)
        if self.binning not in BINNINGS:
            raise unknown_name("binning", str(self.binning), BINNINGS)
        if not (isinstance(self.pseudo_rows, Real) and 0 <= self.pseudo_rows < np.inf):
            raise EbmcalError(f"pseudo_rows: expected a number of rows, 0 or more, got {self.pseudo_rows!r}.")

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> BinCurve:
        edges = self._edges(odds)
        bins = BinCurve(edges, np.empty(0)).bins(odds)
        counts, sums, n_hits = (np.bincount(bins, w, len(edges) + 1) for w in (None, sigmoid(odds), hits))
        middles = (sigmoid(np.append(-np.inf, edges)) + sigmoid(np.append(edges, np.inf))) / 2
        predicted = np.where(counts > 0, sums / np.maximum(counts, 1), middles)
        total = counts + self.pseudo_rows
        values = (n_hits + self.pseudo_rows * predicted) / np.where(total > 0, total, 1.0)
        return BinCurve(edges, np.where(total > 0, values, predicted))

    def _edges(self, odds: np.ndarray) -> np.ndarray:
        if self.binning == "mass":
            ordered = np.sort(odds)
            return edges_at(ordered, equal_mass_stops(ordered, self.n_bins))
        p = np.arange(1, self.n_bins) / self.n_bins
        return np.log(p / (1.0 - p))
