"""Calibrators that learn a curve per class, from its log-odds to its probability (`OneVsRest`).

**Platt** and **beta** curves are logistic regressions on one or two features, fitted by Newton's method: one step is
one pass over the rows. The first steps run on groups of almost equal rows, after which one or two passes over all rows
are enough: 5 to 30 times faster than scikit-learn's `LogisticRegression`. Targets are Platt's, (n+ + 1)/(n+ + 2) for
the class and 1/(n- + 2) for the rest, which keep the fit finite if rows are separable or the class never occurs.

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
from typing import Any, ClassVar

import numpy as np

from ebmcal.calibration.base import Calibrator, require_whole_number
from ebmcal.calibration.scaling import class_lines, fit_temperature, log_odds
from ebmcal.errors import EbmcalError, unknown_name

N_GROUPS = 4096
MAX_STEPS = 100
MAX_HALVINGS = 30
BINNINGS = ("mass", "width")
MAX_POINTS = 1024  # at which a spline stores the ranks of the scores; with up to this many fitting rows, all of them
Point = tuple[float, float]


class OneVsRest(Calibrator):
    """With two classes there is one curve, for class 1, and P(0) = 1 - P(1); with more, rows are divided by their sum.

    A curve (`curves_`) is a frozen dataclass of numbers and arrays that can be called.
    """

    curve: ClassVar[Any]
    learned: ClassVar[tuple[str, ...]] = ("curves_",)
    rows_per_class: ClassVar[int]

    def min_rows(self, n_classes: int) -> int:
        return self.rows_per_class * n_classes

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> Any:
        """The curve for log-odds `[n]` of one class and whether each row has that class `[n]`."""
        return self.curve.fit(odds, hits)

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        odds = log_odds(logits)
        labels = [1] if len(odds) == 2 else range(len(odds))
        self.curves_ = [self._fit_curve(odds[label], y == label) for label in labels]

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        odds = log_odds(logits)
        if len(odds) == 2:
            p = self.curves_[0](odds[1])
            return np.stack([1.0 - p, p], axis=1)
        scores = np.stack([curve(line) for curve, line in zip(self.curves_, odds, strict=True)])
        scores[:, scores.sum(axis=0) == 0] = 1.0  # a row of zeros becomes uniform
        return np.ascontiguousarray((scores / scores.sum(axis=0)).T)


@dataclass(frozen=True)
class PlattCurve:
    slope: float
    intercept: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return sigmoid(self.slope * odds + self.intercept)

    @classmethod
    def fit(cls, odds: np.ndarray, hits: np.ndarray) -> "PlattCurve":
        return cls(*fit_logistic(odds[None], smoothed_targets(hits)).tolist())


class Platt(OneVsRest):
    """A logistic curve per class, with a slope and an intercept (Platt 1999).

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> logits = rng.normal(size=(2000, 2)) + np.eye(2)[y]
    >>> Platt().fit(3 * logits, y).predict_proba([[0.0, 3.0]]).round(1).tolist()
    [[0.2, 0.8]]
    """

    name = "platt"
    curve = PlattCurve
    rows_per_class = 100


@dataclass(frozen=True)
class BetaCurve:
    """sigmoid(a · log p - b · log(1 - p) + c) with p = sigmoid(odds)."""

    a: float
    b: float
    c: float

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        a, b = _beta_features(odds)
        return sigmoid(self.a * a + self.b * b + self.c)

    @classmethod
    def fit(cls, odds: np.ndarray, hits: np.ndarray) -> "BetaCurve":
        """From log-odds `[n]` and booleans `[n]`; a negative weight is set to 0 and the rest fitted again."""
        features, targets = _beta_features(odds), smoothed_targets(hits)
        used, weights = [0, 1], fit_logistic(features, targets)
        while weights[:-1].min(initial=0.0) < 0:
            used.pop(int(weights[:-1].argmin()))
            weights = fit_logistic(features[used], targets)
        ab = np.zeros(2)
        ab[used] = weights[:-1]
        return cls(float(ab[0]), float(ab[1]), float(weights[-1]))


class Beta(OneVsRest):
    """A curve per class that stretches low and high probabilities separately (Kull et al. 2017).

    Correct when probabilities are beta-distributed in each class; a = b = 1, c = 0 is the identity.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> logits = rng.normal(size=(2000, 2)) + np.eye(2)[y]
    >>> Beta().fit(3 * logits, y).predict_proba([[0.0, 3.0]]).round(1).tolist()
    [[0.2, 0.8]]
    """

    name = "beta"
    curve = BetaCurve
    rows_per_class = 150


def _beta_features(odds: np.ndarray) -> np.ndarray:
    """log p and -log(1 - p) `[2, n]` with p = sigmoid(odds)."""
    from scipy.special import log_expit

    return np.stack([log_expit(odds), -log_expit(-odds)])


def smoothed_targets(hits: np.ndarray) -> np.ndarray:
    """Platt's targets `[n]` of booleans `[n]`."""
    n_hits = int(np.count_nonzero(hits))
    return np.where(hits, (n_hits + 1.0) / (n_hits + 2.0), 1.0 / (hits.size - n_hits + 2.0))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1/(1 + exp(-x)), with x clipped to ±700, where it is 0 or 1 to 1e-304."""
    return 1.0 / (1.0 + np.exp(-np.clip(x, -700.0, 700.0)))


def fit_logistic(features: np.ndarray, targets: np.ndarray, tolerance: float = 1e-4) -> np.ndarray:
    """Weights `[d + 1]`, intercept last, minimising the cross-entropy of sigmoid(w · x + b) with targets in (0, 1).

    `features` is `[d, n]`; they are scaled to unit range first, so that saturated log-odds cost no precision.
    Newton's error is squared at each step: stopping after a step of `tolerance` leaves an error of about its square.
    """
    scale, n = np.maximum(np.abs(features).max(axis=1), np.finfo(np.float64).tiny), len(targets)
    x = np.vstack([features / scale[:, None], np.ones(n)])
    weights = np.zeros(len(x))
    if n > 4 * N_GROUPS:  # first on means over rows with almost the same first feature
        group = ((x[0] + 1.0) * (N_GROUPS / 2)).astype(np.intp)
        counts = np.bincount(group)
        filled = np.flatnonzero(counts)
        means = np.stack([np.bincount(group, line)[filled] / counts[filled] for line in (*x, targets)])
        weights = _newton(means[:-1], means[-1], counts[filled] / n, weights, tolerance)
    return _newton(x, targets, np.full(n, 1.0 / n), weights, tolerance) / np.append(scale, 1.0)


def _newton(
    x: np.ndarray, targets: np.ndarray, shares: np.ndarray, weights: np.ndarray, tolerance: float
) -> np.ndarray:
    """Newton's method for features `[d + 1, n]` and weights of rows `[n]` that sum to one; the loss is convex."""
    gradient, hessian = _derivatives(x, targets, shares, weights)
    for _ in range(MAX_STEPS):
        # The ridge, far below rounding of a healthy Hessian, fixes directions that the rows do not determine.
        ridge = 1e-13 * np.trace(hessian) + np.finfo(np.float64).tiny
        step = np.linalg.solve(hessian + ridge * np.eye(len(hessian)), -gradient)
        if np.abs(step).max() <= tolerance * (1.0 + np.abs(weights).max()):
            return weights + step
        downhill = -gradient @ step
        for _ in range(MAX_HALVINGS):  # until the slope at its end is not steeper upwards than it was downwards
            gradient, hessian = _derivatives(x, targets, shares, weights + step)
            if gradient @ step <= 0.9 * downhill:
                break
            step, downhill = step / 2, downhill / 2
        weights = weights + step
    return weights


def _derivatives(
    x: np.ndarray, targets: np.ndarray, shares: np.ndarray, weights: np.ndarray, width: int = 4096
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient `[d + 1]` and Hessian `[d + 1, d + 1]` of the mean cross-entropy, in parts that fit the cache."""
    gradient, hessian = np.zeros(len(weights)), np.zeros((len(weights), len(weights)))
    for start in range(0, len(targets), width):
        part = slice(start, start + width)
        p = sigmoid(weights @ x[:, part])
        gradient += x[:, part] @ ((p - targets[part]) * shares[part])
        hessian += (x[:, part] * (p * (1.0 - p) * shares[part])) @ x[:, part].T
    return gradient, hessian


@dataclass(frozen=True)
class BinCurve:
    """A value per bin of the log-odds; bin k holds (edges[k-1], edges[k]], the first and last are open."""

    edges: np.ndarray  # [B - 1], increasing
    values: np.ndarray  # [B]

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return self.values[np.searchsorted(self.edges, odds, side="left")]


def equal_mass_stops(ordered: np.ndarray, n_bins: int) -> np.ndarray:
    """Where bins of about equal counts end in sorted values, without the last end; equal values stay together."""
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
    """A Platt curve per class, replaced by its mean in each of 10 bins of equal counts (Kumar et al. 2019).

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
    """The observed share of the class in each of 10 bins (Zadrozny & Elkan 2001).

    Each bin also counts `pseudo_rows` rows that follow the model, which keeps bins of few rows from predicting exactly
    0 or 1; 0 is the textbook method. `binning` is "mass"
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
        p, ordered = np.arange(1, self.n_bins) / self.n_bins, np.sort(odds)
        is_mass = self.binning == "mass"
        edges = edges_at(ordered, equal_mass_stops(ordered, self.n_bins)) if is_mass else np.log(p / (1.0 - p))
        bins = np.searchsorted(edges, odds, side="left")
        counts, sums, n_hits = (np.bincount(bins, w, len(edges) + 1) for w in (None, sigmoid(odds), hits))
        middles = (sigmoid(np.append(-np.inf, edges)) + sigmoid(np.append(edges, np.inf))) / 2
        predicted = np.where(counts > 0, sums / np.maximum(counts, 1), middles)
        total = counts + self.pseudo_rows
        values = (n_hits + self.pseudo_rows * predicted) / np.where(total > 0, total, 1.0)
        return BinCurve(edges, np.where(total > 0, values, predicted))


@dataclass(frozen=True)
class StepCurve:
    """Linear between knots (`odds` increasing, `values` non-decreasing), constant outside."""

    odds: np.ndarray
    values: np.ndarray

    def __call__(self, odds: np.ndarray) -> np.ndarray:
        return np.interp(odds, self.odds, self.values)


class Isotonic(OneVsRest):
    """A non-decreasing curve per class (Zadrozny & Elkan 2002). Overfits with few rows.

    Linear in the log-odds between fitting rows and flat beyond them. Values stay within 1/(n + 2) of 0 and 1: a
    probability of exactly 0 makes the NLL infinite at the first surprise.

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
        low = self.without_values[np.searchsorted(self.without_edges, odds, side="right")]
        high = self.with_values[np.searchsorted(self.with_edges, odds, side="left")]
        return high / (1.0 - low + high)


class VennAbers(OneVsRest):
    """Isotonic regression that is less extreme with few fitting rows (Vovk et al. 2015).

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
    """The isotonic value of one more row that is a hit, inserted before each group and after the last: `[k + 1]`.

    Groups `[k]` are in the order of their score, with so many rows and hits each.
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
    """A smooth curve per class (Gupta et al. 2021). May change the predicted labels.

    Learned: `curves_`, `temperature_`.

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
