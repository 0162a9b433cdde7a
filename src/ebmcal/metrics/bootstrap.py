"""Bootstrap intervals: how far a metric would move with other rows of the same kind.

Rows are drawn with replacement, as many as there are; quantiles of the resampled values make the interval. Noise alone
pushes calibration errors upwards, and resampling pushes them up once more: their quantiles often miss the truth and
even the value. For these the interval reaches from the "basic" one, which takes that push off (quantiles mirrored at
the value), to the one that leaves it (quantiles moved to centre on the value). In trials with three classes, 20 bins
and 300 or 1,000 rows of a miscalibrated model it held the true top-label error in 84-97% of cases (plain quantiles:
0-85%) and the class-wise one, whose bins hold fewer rows, in 29-93% (0-42%). Where a model is calibrated, only the
debiased error's interval reaches down to 0. The maximum error's intervals held it in about half of the cases.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.registry import N_BINS, Metric, metric
from ebmcal.metrics.resampling import Units, draws
from ebmcal.metrics.sums import Sums, finish_many
from ebmcal.predictions.arrays import as_labels_and_probs


class FewRowsWarning(UserWarning):
    """There are too few rows for the number of bins: the figure is mostly noise."""


@dataclass(frozen=True)
class Interval:
    """A value with a confidence interval and notes about it; NaN where something is not defined."""

    value: float
    low: float
    high: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: NaN and infinity are null.

        >>> Interval(0.5, 0.4, float("nan")).to_json()
        {'value': 0.5, 'low': 0.4, 'high': None}
        """
        parts = {"value": self.value, "low": self.low, "high": self.high}
        out: dict[str, Any] = {name: part if math.isfinite(part) else None for name, part in parts.items()}
        return out | ({"notes": list(self.notes)} if self.notes else {})


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
