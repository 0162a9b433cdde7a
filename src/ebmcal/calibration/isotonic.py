"""Isotonic regression (Zadrozny & Elkan 2002) and Venn–Abers (Vovk et al. 2015): non-decreasing curves per class.

Isotonic regression is the most flexible curve and the first to overfit. Venn–Abers fits it twice for a new row: p₁ as
if the row had the class, p₀ as if it had not. One of the two is perfectly calibrated where rows are exchangeable;
p = p₁ / (1 − p₀ + p₁) minimises the regret in log loss. It is never 0 or 1, and few rows pull it to the middle.
"""

from dataclasses import dataclass

import numpy as np

from ebmcal.calibration.one_vs_rest import OneVsRest

Point = tuple[float, float]


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

    def min_rows(self, n_classes: int) -> int:
        return 500 * n_classes

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

    def min_rows(self, n_classes: int) -> int:
        return 300 * n_classes

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
