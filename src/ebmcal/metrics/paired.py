"""Is one method better than another on the same rows? A paired interval and a paired test.

The interval of the difference is a bootstrap over rows, each drawn for both methods at once. The p-value comes from a
permutation test: were the methods alike, swapping their probabilities on any rows would change nothing, so the
difference is set beside those after swapping each row with chance one half. A bootstrap p-value would not do for
calibration errors: resampling adds noise to both, and more to the better one, so its differences are not centred.
Ranking metrics are the exception: scores of two methods need not share a scale and a mixture of both ranks nothing, so
their p-value is the share of bootstrap differences that lie as far from the difference as zero does.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.bootstrap import few_rows_notes, interval_of, sums_of, warn_of
from ebmcal.metrics.events import top_label
from ebmcal.metrics.registry import Metric, metric
from ebmcal.metrics.resampling import Units, draws, swaps
from ebmcal.metrics.sums import Sums, finish_many
from ebmcal.predictions.arrays import as_labels_and_probs, as_scores

_SCORES = ("scores_a", "scores_b")


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

    Ranking metrics also take `scores_a` and `scores_b` (higher = more trusted), so that two scores can be compared.

    >>> good, bad = [[0.9, 0.1]] * 20, [[0.6, 0.4]] * 20
    >>> test = paired_test("nll", [0] * 20, good, bad)
    >>> round(test.difference, 3), test.p_value < 0.01
    (-0.405, True)
    """
    which = metric(metric_name)
    pair = _Pair.of(which, labels, probs_a, probs_b, options, seed)
    differences = pair.bootstrap(n_resamples, seed)
    p_value = pair.p_of_bootstrap(differences) if which.ranks else pair.p_of_swaps(n_resamples, seed)
    unbounded = dataclasses.replace(which, bounds=(-np.inf, np.inf))
    low, high = interval_of(unbounded, pair.difference, differences, level)
    notes = few_rows_notes(which, pair.units.n_rows, options)
    if warn:
        warn_of(set(notes))
    return PairedTest(pair.difference, low, high, p_value, notes)


@dataclass(frozen=True)
class _Pair:
    """Both methods' rows stacked [2n, C], row i of a and row n + i of b, so that every sum means the same for both."""

    difference: float
    units: Units
    sums: Sums
    table_a: Any  # [n_sums, n_units]
    table_b: Any

    @classmethod
    def of(cls, which: Metric, labels: Any, probs_a: Any, probs_b: Any, options: dict[str, Any], seed: int) -> "_Pair":
        labels, stacked = _stacked(labels, probs_a, probs_b)
        n, units = len(labels), Units.of(len(labels), seed, stacked.shape[1])
        scores = {"scores": _ranks(stacked, options)} if which.ranks else {}
        options = {name: value for name, value in options.items() if name not in _SCORES}
        sums = sums_of(which, np.concatenate([labels, labels]), stacked, options | scores, units)
        if sums is None:
            raise EbmcalError("Only metrics by name, with equal-width bins, can be compared; see METRICS.")
        values = []
        for half in (slice(0, n), slice(n, 2 * n)):
            own = {name: both[half] for name, both in scores.items()}
            values.append(which.function(labels, probs=stacked[half], **options, **own))
        return cls(values[0] - values[1], units, sums, units.table(sums), units.table(sums, first=n))

    def bootstrap(self, n_resamples: int, seed: int) -> np.ndarray:
        """Differences over resamples of rows [n_resamples]."""
        sizes, parts = self.units.sizes(), [np.empty(0)]
        for weights in draws(self.units, n_resamples, seed, 2 * self.sums.n_sums):
            n = sizes @ weights
            value_a, value_b = (finish_many(self.sums.finish, t @ weights, n) for t in (self.table_a, self.table_b))
            parts.append(value_a - value_b)
        return np.concatenate(parts)

    def p_of_swaps(self, n_resamples: int, seed: int) -> float:
        """The share of random swaps that part the methods as far as they are, the swap of nothing included."""
        each = np.ones((self.units.n_units, 1))
        sums_a, sums_b = (self.table_a @ each), (self.table_b @ each)  # [n_sums, 1]
        moved, parts = self.table_b - self.table_a, [np.empty(0)]
        for weights in swaps(self.units, n_resamples, seed, 2 * self.sums.n_sums):
            change = moved @ weights
            parts.append(self._distances(sums_a + change, sums_b - change))
        return _share_as_far(np.concatenate(parts), self._distances(sums_a, sums_b)[0])

    def p_of_bootstrap(self, differences: np.ndarray) -> float:
        """The share of bootstrap differences as far from the difference as zero is."""
        return _share_as_far(np.abs(differences - self.difference), abs(self.difference))

    def _distances(self, sums_a: np.ndarray, sums_b: np.ndarray) -> np.ndarray:
        n = np.full(sums_a.shape[1], float(self.units.n_rows))
        return np.abs(finish_many(self.sums.finish, sums_a, n) - finish_many(self.sums.finish, sums_b, n))


def _share_as_far(distances: np.ndarray, seen: float) -> float:
    distances = distances[np.isfinite(distances)]
    if not np.isfinite(seen):
        return float("nan")
    # Rounding must not make what is equally far look nearer.
    return float((1 + (distances >= seen * (1 - 1e-9) - 1e-15).sum()) / (1 + len(distances)))


def _stacked(labels: Any, probs_a: Any, probs_b: Any) -> tuple[np.ndarray, np.ndarray]:
    """Checked labels [n] and both methods' probabilities [2n, C]."""
    labels, probs_a = as_labels_and_probs(labels, probs=probs_a)
    labels, probs_b = as_labels_and_probs(labels, probs=probs_b)
    if probs_a.shape != probs_b.shape:
        raise EbmcalError(f"The methods must have the same classes; {probs_a.shape[1]} and {probs_b.shape[1]} came.")
    return labels, np.concatenate([probs_a, probs_b])


def _ranks(stacked: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Each method's scores, by default its confidences, as ranks among its own rows [2n]."""
    from scipy.stats import rankdata

    if "scores" in options:
        raise EbmcalError("Give scores_a= and scores_b=, one for each method, instead of scores=.")
    halves = zip(_SCORES, np.split(top_label(stacked)[0], 2), strict=True)
    scores = [as_scores(options.get(name, confidences), name, len(confidences)) for name, confidences in halves]
    return np.concatenate([rankdata(s) for s in scores])
