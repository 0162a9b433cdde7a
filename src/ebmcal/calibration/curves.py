"""Calibrators that learn a free curve per class: histogram binning, scaling-binning, isotonic, Venn–Abers, spline.

**Binning** replaces the probability of a class by one of a few values, so expect ties between rows. Histogram binning
(Zadrozny & Elkan 2001) gives each bin the share of its rows that have the class. Scaling-binning (Kumar et al. 2019)
fits a Platt curve and gives each equal-mass bin the mean of that curve: labels determine only two numbers, so the bins
are far less noisy. Equal-mass bins of n sorted rows end after floor(k·n / B) rows, k = 1..B−1, so with uneven n sizes
differ by at most one and the larger bins are spread evenly; equal values stay in one bin, which moves an end up to the
last of them.

**Isotonic regression** (Zadrozny & Elkan 2002) is the most flexible increasing curve and the first to overfit.
**Venn–Abers** (Vovk et al. 2015) fits it twice for a new row: p₁ as if the row had the class, p₀ as if it had not. One
of the two is perfectly calibrated where rows are exchangeable; p = p₁ / (1 − p₀ + p₁) minimises the regret in log loss.
It is never 0 or 1, and few rows pull it to the middle.

**Spline** (Gupta et al. 2021): with rows sorted by the probability of a class and u their rank from 0 to 1, s(u) is the
natural cubic spline with few knots nearest (least squares) to Σ (hit − p) / n, and P = p + s′(u). Deviations from the
paper: probabilities are those after temperature scaling, so that a saturated model does not need a jump of the spline;
rows of equal score share their hits; results stay within 1/(n + 2) of 0 and 1.
"""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ebmcal.calibration.base import OneVsRest, require_whole_number
from ebmcal.calibration.layout import class_lines
from ebmcal.calibration.scaling import PlattCurve, sigmoid
from ebmcal.calibration.temperature import fit_temperature
from ebmcal.errors import EbmcalError, unknown_name

BINNINGS = ("mass", "width")
Point = tuple[float, float]


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
    rows_per_class = 100

    def __init__(self, n_bins: int = 10):
        self.n_bins = n_bins

    def _check_settings(self) -> None:
        require_whole_number("n_bins", self.n_bins)

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> BinCurve:
        platt, ordered = PlattCurve.fit(odds, hits), np.sort(odds)
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


@dataclass(frozen=True)
class StepCurve:
    """Linear between knots (`odds` increasing, `values` non-decreasing), constant outside."""

    odds: np.ndarray
    values: np.ndarray

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return np.interp(odds, self.odds, self.values)


class Isotonic(OneVsRest):
    """A non-decreasing curve per class, linear in the log-odds between fitting rows and flat beyond them.

    Values stay within 1/(n + 2) of 0 and 1: a probability of exactly 0 makes the NLL infinite at the first surprise.

    >>> y = np.array([0, 1] * 600)
    >>> logits = np.stack([np.zeros(1200), np.linspace(-3, 3, 1200)], axis=1)
    >>> Isotonic().fit(logits, y).predict_proba(logits)[:, 1].round(2)[::400].tolist()
    [0.0, 0.5, 0.5]
    """

    name = "isotonic"
    curve = StepCurve
    rows_per_class = 500

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> StepCurve:
        from scipy.optimize import isotonic_regression  # 2 to 5 times faster than scikit-learn's

        knots, inverse, counts = np.unique(odds, return_inverse=True, return_counts=True)
        values = isotonic_regression(np.bincount(inverse, hits) / counts, weights=counts).x
        rises = np.diff(values) > 0
        ends = np.append(True, rises) | np.append(rises, True)  # the first and last point of every flat stretch
        margin = 1.0 / (len(odds) + 2)
        return StepCurve(knots[ends], np.clip(values[ends], margin, 1.0 - margin))


@dataclass(frozen=True)
class VennAbersCurve:
    """Two increasing step functions: p₁ (with the class) jumps just above its edges, p₀ (without) at its edges."""

    with_edges: np.ndarray
    with_values: np.ndarray  # [edges + 1]
    without_edges: np.ndarray
    without_values: np.ndarray  # [edges + 1]

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        low, high = self.bounds(odds)
        return high / (1.0 - low + high)

    def bounds(self, odds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """p₀ and p₁ of each row."""
        low = self.without_values[np.searchsorted(self.without_edges, odds, side="right")]
        return low, self.with_values[np.searchsorted(self.with_edges, odds, side="left")]


class VennAbers(OneVsRest):
    """Isotonic regression that accounts for the number of fitting rows.

    Both curves take one walk along the greatest convex minorant of the cumulative hits (algorithms 1 and 2 of the
    paper); p₀ is one minus the p₁ of the mirrored rows.

    >>> y = np.array([0, 1] * 600)
    >>> logits = np.stack([np.zeros(1200), np.linspace(-3, 3, 1200)], axis=1)
    >>> VennAbers().fit(logits, y).predict_proba(logits)[:, 1].round(2)[::400].tolist()
    [0.33, 0.5, 0.5]
    """

    name = "venn-abers"
    curve = VennAbersCurve
    rows_per_class = 300

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> VennAbersCurve:
        scores, place, counts = np.unique(odds, return_inverse=True, return_counts=True)
        n_hits = np.bincount(place, hits)
        high = values_with_a_hit(counts, n_hits)
        low = 1.0 - values_with_a_hit(counts[::-1], (counts - n_hits)[::-1])[::-1]
        up, down = (np.flatnonzero(np.diff(values)) for values in (high, low))  # only where a curve rises
        return VennAbersCurve(
            scores[up], high[np.append(up, len(scores))], scores[down], low[np.append(down, len(scores))]
        )


def values_with_a_hit(counts: np.ndarray, n_hits: np.ndarray) -> np.ndarray:
    """The isotonic value of one additional row that is a hit, inserted before each group and after the last: `[k + 1]`.

    Groups `[k]` are in the order of their score, with so many rows and hits each.

    >>> values_with_a_hit(np.array([1, 1]), np.array([0, 1])).tolist()
    [0.5, 1.0, 1.0]
    """
    sums = zip(np.cumsum(counts).tolist(), np.cumsum(n_hits).tolist(), strict=True)
    points: list[Point] = [(-1.0, -1.0), (0.0, 0.0), *sums]  # the row itself is the step from (-1, -1) to (0, 0)
    corners = _convex_minorant(points)[::-1]  # its left end on top
    values = np.ones(len(counts) + 1)
    for i in range(len(counts)):
        left, right = corners[-1], corners[-2]
        values[i] = (right[1] - left[1]) / (right[0] - left[0])
        before, here, after = points[i : i + 3]
        moved = (before[0] + after[0] - here[0], before[1] + after[1] - here[1])  # the row moves behind group i
        points[i + 1] = moved
        if _turn(left, right, moved) >= 0:
            continue
        corners.pop()
        while len(corners) > 1 and _turn(moved, corners[-1], corners[-2]) <= 0:
            corners.pop()
        corners.append(moved)
    return values


def _convex_minorant(points: list[Point]) -> list[Point]:
    """Corners of the greatest convex minorant, from left to right."""
    stack = points[:2]
    for point in points[2:]:
        while len(stack) > 1 and _turn(stack[-2], stack[-1], point) <= 0:
            stack.pop()
        stack.append(point)
    return stack


def _turn(a: Point, b: Point, c: Point) -> float:
    """Positive if the path from a over b to c turns left, that is, if c lies above the line through a and b."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


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
    rows_per_class = 300
    learned = ("curves_", "temperature_")

    def __init__(self, n_knots: int = 6):
        self.n_knots = n_knots

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
