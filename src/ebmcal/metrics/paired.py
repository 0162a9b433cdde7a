"""Is one method better than another on the same rows? A paired interval and a paired test.

The interval of the difference is a bootstrap over rows, each drawn for both methods at once. The p-value comes from a
permutation test: were the methods alike, swapping their probabilities on any rows would change nothing, so the
difference is set beside those after swapping each row with chance one half. A bootstrap p-value would not do for
calibration errors: resampling adds noise to both, and more to the better one, so its differences are not centred.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.checks import as_labels_and_probs
from ebmcal.errors import EbmcalError
from ebmcal.metrics.bootstrap import few_rows_notes, interval_of, sums_of, warn_of
from ebmcal.metrics.events import top_label
from ebmcal.metrics.registry import Metric, metric
from ebmcal.metrics.resampling import Units, draws, swaps
from ebmcal.metrics.sums import Sums


@dataclass(frozen=True)
class PairedTest:
    """A difference, metric of a − metric of b, with its interval and the two-sided p-value of no difference."""

    difference: float
    low: float
    high: float
    p_value: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: NaN is null."""
        parts = {"difference": self.difference, "low": self.low, "high": self.high, "p_value": self.p_value}
        out: dict[str, Any] = {name: part if np.isfinite(part) else None for name, part in parts.items()}
        return out | ({"notes": list(self.notes)} if self.notes else {})


def paired_test(
    metric_name: str | Callable[..., float],
    labels: Any,
    probs_a: Any,
    probs_b: Any,
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    warn: bool = True,
    **options: Any,
) -> PairedTest:
    """Compare two methods' probabilities of the same rows by a metric.

    >>> good, bad = [[0.9, 0.1]] * 20, [[0.6, 0.4]] * 20
    >>> test = paired_test("nll", [0] * 20, good, bad)
    >>> round(test.difference, 3), test.p_value < 0.01
    (-0.405, True)
    """
    labels, probs_a = as_labels_and_probs(labels, probs=probs_a)
    labels, probs_b = as_labels_and_probs(labels, probs=probs_b)
    if probs_a.shape != probs_b.shape:
        raise EbmcalError(f"The methods must have the same classes; {probs_a.shape[1]} and {probs_b.shape[1]} came.")
    which = metric(metric_name)
    pair = _Pair.of(which, labels, probs_a, probs_b, options, seed)
    difference = which.function(labels, probs=probs_a, **options) - which.function(labels, probs=probs_b, **options)
    free = dataclasses.replace(which, bounds=(-np.inf, np.inf))
    low, high = interval_of(free, difference, pair.bootstrap(n_resamples, seed), level)
    notes = few_rows_notes(which, len(labels), options)
    if warn:
        warn_of(set(notes))
    return PairedTest(difference, low, high, pair.p_value(n_resamples, seed), notes)


@dataclass(frozen=True)
class _Pair:
    """Both methods' rows stacked [2n, C], row i of a and row n + i of b, so that every sum means the same for both."""

    units: Units
    sums: Sums
    table_a: Any  # [n_sums, n_units]
    table_b: Any

    @classmethod
    def of(
        cls,
        which: Metric,
        labels: np.ndarray,
        probs_a: np.ndarray,
        probs_b: np.ndarray,
        options: dict[str, Any],
        seed: int,
    ) -> "_Pair":
        units = Units.of(len(labels), seed)
        if which.ranks:
            options = {**options, "scores": np.concatenate([_shares_below(probs_a), _shares_below(probs_b)])}
        stacked = np.concatenate([labels, labels]), np.concatenate([probs_a, probs_b])
        sums = sums_of(which, *stacked, options, units)
        if sums is None:
            raise EbmcalError("Only metrics by name, with equal-width bins, can be compared; see METRICS.")
        return cls(units, sums, units.table(sums), units.table(sums, first=len(labels)))

    def bootstrap(self, n_resamples: int, seed: int) -> np.ndarray:
        """Differences over resamples of rows [n_resamples]."""
        sizes, parts = self.units.sizes(), []
        for weights in draws(self.units, n_resamples, seed, 2 * self.sums.n_sums):
            n = sizes @ weights
            value_a, value_b = (self.sums.values(t @ weights, n) for t in (self.table_a, self.table_b))
            parts.append(value_a - value_b)
        return np.concatenate([np.empty(0), *parts])

    def p_value(self, n_resamples: int, seed: int) -> float:
        """The share of random swaps that part the methods as far as they are, the swap of nothing included."""
        each = np.ones((self.units.n_units, 1))
        sums_a, sums_b = (self.table_a @ each), (self.table_b @ each)  # [n_sums, 1]
        moved = self.table_b - self.table_a
        seen = self._distance(sums_a, sums_b)[0]
        parts = []
        for weights in swaps(self.units, n_resamples, seed, 2 * self.sums.n_sums):
            change = moved @ weights
            parts.append(self._distance(sums_a + change, sums_b - change))
        distances = np.concatenate([np.empty(0), *parts])
        if not np.isfinite(seen):
            return float("nan")
        # Rounding must not make a swap that changes nothing look closer than what was seen.
        return float((1 + (distances >= seen * (1 - 1e-9) - 1e-15).sum()) / (1 + len(distances)))

    def _distance(self, sums_a: np.ndarray, sums_b: np.ndarray) -> np.ndarray:
        n = np.full(sums_a.shape[1], float(self.units.n_rows))
        return np.abs(self.sums.values(sums_a, n) - self.sums.values(sums_b, n))


def _shares_below(probs: np.ndarray) -> np.ndarray:
    """Ranks of the confidences: a ranking metric is the same, and one method's scores can be set beside another's."""
    from scipy.stats import rankdata

    return rankdata(top_label(probs)[0])
