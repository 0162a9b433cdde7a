"""How sure a figure is: bootstrap intervals of metrics, and paired comparisons of two methods on the same rows.

Rows are drawn with replacement, as many as there are; quantiles of the resampled values make the interval. Noise alone
pushes calibration errors upwards, and resampling pushes them up once more: their quantiles often miss the truth and
even the value. For these the interval reaches from the "basic" one, which takes that push off (quantiles mirrored at
the value), to the one that leaves it (quantiles moved to centre on the value). In trials with three classes, 20 bins
and 300 or 1,000 rows of a miscalibrated model it held the true top-label error in 84-97% of cases (plain quantiles:
0-85%) and the class-wise one, whose bins hold fewer rows, in 29-93% (0-42%). Where a model is calibrated, only the
debiased error's interval reaches down to 0. The maximum error's intervals held it in about half of the cases.

The interval of a difference is a bootstrap over rows, each drawn for both methods at once. The p-value comes from a
permutation test: were the methods alike, swapping their probabilities on any rows would change nothing, so the
difference is set beside those after swapping each row with chance one half. A bootstrap p-value would not do for
calibration errors: resampling adds noise to both, and more to the better one, so its differences are not centred.
Ranking metrics are the exception: scores of two methods need not share a scale and a mixture of both ranks nothing, so
their p-value is the share of bootstrap differences that lie as far from the difference as zero does.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.registry import DEFAULT_METRICS, N_BINS, Metric, metric
from ebmcal.metrics.resampling import Units, draws, swaps
from ebmcal.metrics.sums import Sums, finish_many, top_label
from ebmcal.predictions.arrays import as_labels_and_probs, as_scores

if TYPE_CHECKING:
    from ebmcal.predictions import Predictions

_SCORES = ("scores_a", "scores_b")


class FewRowsWarning(UserWarning):
    """There are too few rows for the number of bins: the figure is mostly noise.

    For example:

        warnings.simplefilter("error", FewRowsWarning)  # refuse such figures
    """


@dataclass(frozen=True)
class Interval:
    """A value with a confidence interval and notes about it; NaN where something is not defined.

    >>> Interval(0.5, 0.4, 0.6).value
    0.5
    """

    value: float
    low: float
    high: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: NaN and infinity are null.

        >>> Interval(0.5, 0.4, float("nan")).to_json()
        {'value': 0.5, 'low': 0.4, 'high': None}
        """
        return _json_of(self)


def _json_of(figure: "Interval | PairedTest") -> dict[str, Any]:
    *parts, (_, notes) = vars(figure).items()
    out: dict[str, Any] = {name: part if math.isfinite(part) else None for name, part in parts}
    return out | ({"notes": list(notes)} if notes else {})


def bootstrap(
    metric_name: str | Callable[..., float],
    labels: Any,
    *,
    logits: Any = None,
    probs: Any = None,
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    warn: bool = True,
    **options: Any,
) -> Interval:
    """A metric, by name or as a function `(labels, *, probs, **options) -> float`, with its bootstrap interval.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> interval = bootstrap("accuracy", [0, 1, 1, 0], probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    >>> interval.low <= interval.value <= interval.high, interval.value
    (True, 0.75)
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    wanted = {"it": (metric(metric_name), options)}
    return intervals(wanted, labels, probs, n_resamples=n_resamples, seed=seed, level=level, warn=warn)["it"]


def intervals(
    wanted: dict[str, tuple[Metric, dict[str, Any]]],
    labels: np.ndarray,
    probs: np.ndarray,
    *,
    n_resamples: int,
    seed: int,
    level: float = 0.95,
    warn: bool = True,
) -> dict[str, Interval]:
    """Intervals of several metrics (with their options) over the same resamples of checked labels and probs."""
    resampled = resample(wanted, labels, probs, n_resamples, seed)
    out = {}
    for name, (which, options) in wanted.items():
        value = which.function(labels, probs=probs, **options)
        base, values = resampled[name]
        low, high = interval_of(which, value, values + (value - base), level)
        out[name] = Interval(value, low, high, few_rows_notes(which, len(labels), options))
    if warn:
        warn_of({note for interval in out.values() for note in interval.notes})
    return out


def resample(
    wanted: dict[str, tuple[Metric, dict[str, Any]]],
    labels: np.ndarray,
    probs: np.ndarray,
    n_resamples: int,
    seed: int,
) -> dict[str, tuple[float, np.ndarray]]:
    """For each metric: its value on the rows as resampling sees them, and its values on the resamples [n_resamples]."""
    units = Units.of(len(labels), seed, probs.shape[1])
    readers = {name: _reader(which, options, labels, probs, units) for name, (which, options) in wanted.items()}
    values: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    largest = max(size for _, size in readers.values())
    for weights in draws(units, n_resamples, seed, largest):
        for name, (read, _) in readers.items():
            values[name].append(read(weights))
    every_row_once = np.ones((units.n_units, 1))
    return {
        name: (float(read(every_row_once)[0]), np.concatenate([np.empty(0), *values[name]]))
        for name, (read, _) in readers.items()
    }


def _reader(
    which: Metric, options: dict[str, Any], labels: np.ndarray, probs: np.ndarray, units: Units
) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """A function from weights [n_units, r] to values [r], and how many sums it makes of each resample."""
    sums = sums_of(which, labels, probs, options, units)
    if sums is None:
        return lambda weights: _one_by_one(which, options, labels, probs, units, weights), 0
    table, sizes, finish = units.table(sums), units.sizes(), sums.finish  # without `sums`, which holds on to the rows
    return lambda weights: finish_many(finish, table @ weights, sizes @ weights), sums.n_sums


def sums_of(which: Metric, labels: np.ndarray, probs: np.ndarray, options: dict[str, Any], units: Units) -> Sums | None:
    """The sums of a metric, with scores merged into levels where blocks are drawn; None if it has no sums."""
    if which.sums is None:
        return None
    merged = units.options if which.ranks else {}
    return which.sums(labels, probs, **options, **merged)


def _one_by_one(
    which: Metric, options: dict[str, Any], labels: np.ndarray, probs: np.ndarray, units: Units, weights: np.ndarray
) -> np.ndarray:
    out = []
    for column in weights.T.astype(np.intp):
        times = column if units.of_row is None else column[units.of_row]
        rows = np.repeat(np.arange(len(labels)), times)
        picked = {name: np.asarray(v)[rows] if np.ndim(v) == 1 else v for name, v in options.items()}
        out.append(which.function(labels[rows], probs=probs[rows], **picked))
    return np.array(out)


def interval_of(which: Metric, value: float, resampled: np.ndarray, level: float) -> tuple[float, float]:
    """The interval of a value from resampled values; NaN if there are none."""
    if not 0 < level < 1:
        raise EbmcalError(f"level is {level}; a share between 0 and 1 is needed, such as 0.95.")
    resampled = resampled[np.isfinite(resampled)]
    if not len(resampled) or not math.isfinite(value):
        return math.nan, math.nan
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    if which.noisy_upwards:
        push = resampled.mean() - value
        low, high = value + min(value - high, low - value - push), value + max(value - low, high - value - push)
    low, high = np.clip([low, high], *which.bounds)
    return float(min(low, value)), float(max(high, value))


def few_rows_notes(which: Metric, n_rows: int, options: dict[str, Any]) -> tuple[str, ...]:
    """A note if bins hold fewer than ten rows each on average: chance alone then moves a bin's share by up to 0.16."""
    n_bins = options.get("n_bins", N_BINS)
    if not which.binned or n_rows >= 10 * n_bins:
        return ()
    advised = f"{n_rows // 10} bins or fewer, or " if n_rows >= 20 else ""
    return (
        f"{n_rows} rows are few for {n_bins} bins (ten rows a bin are advised): "
        f"binned calibration errors are mostly noise here. Use {advised}smooth_ece.",
    )


def warn_of(notes: set[str]) -> None:
    """Say notes as warnings."""
    for note in sorted(notes):
        warnings.warn(note, FewRowsWarning, stacklevel=4)


def summarize(
    predictions: "Predictions",
    metrics: Sequence[str] = DEFAULT_METRICS,
    n_resamples: int = 1000,
    seed: int = 0,
    *,
    level: float = 0.95,
    warn: bool = True,
) -> dict[str, Interval]:
    """Each metric of the rows whose label is known, with a bootstrap interval over the same resamples.

    >>> from ebmcal.predictions import Predictions
    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> summarize(p, ["accuracy", "brier"], n_resamples=10)["accuracy"].value
    1.0
    """
    known = predictions.labelled()
    labels, probs = as_labels_and_probs(known.labels, probs=known.probs)
    wanted: dict[str, tuple[Metric, dict[str, Any]]] = {name: (metric(name), {}) for name in metrics}
    return intervals(wanted, labels, probs, n_resamples=n_resamples, seed=seed, level=level, warn=warn)


@dataclass(frozen=True)
class PairedTest:
    """A difference, metric of a − metric of b, with its interval and the two-sided p-value of no difference.

    >>> PairedTest(difference=-0.1, low=-0.2, high=0.0, p_value=0.04).p_value
    0.04
    """

    difference: float
    low: float
    high: float
    p_value: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: NaN is null."""
        return _json_of(self)


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

    Takes `labels` [n] and the probabilities of both, [n, C].

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
