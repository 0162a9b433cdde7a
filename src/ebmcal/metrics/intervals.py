"""Confidence intervals of metrics over the rows they were computed on.

`estimate` is the one place that resamples rows (with replacement, as many as there are): it returns each metric's value
and its values on the resamples, the same resamples for every metric and every model of the same rows. Intervals here
and differences between models and means over seeds in `comparison` all derive from it, so they agree.

An interval is the middle 95% of the resampled values; for accuracy it is Wilson's, which has a width at 0 and 1. Noise
raises calibration errors, and resampling raises them again, so their intervals are those of `noise_floor`.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.calibration import N_BINS, wilson
from ebmcal.metrics.noise_floor import NoiseBias, binned_error, simulated_bias
from ebmcal.metrics.registry import DEFAULT_METRICS, METRICS, Metric, find_metric
from ebmcal.metrics.resampling import Units, draw_weights
from ebmcal.metrics.sufficient_statistics import finish_resamples
from ebmcal.predictions.arrays import as_labels_and_probs

if TYPE_CHECKING:
    from ebmcal.predictions import Predictions

#: Name → metric and the options of its function.
Requested = Mapping[str, tuple[Metric, dict[str, Any]]]


class FewRowsWarning(UserWarning):
    """There are too few rows for the number of bins: the number is mostly noise.

    For example, `warnings.simplefilter("error", FewRowsWarning)` rejects such numbers.
    """


@dataclass(frozen=True)
class Interval:
    """A value with a confidence interval and notes about it; NaN where something is not defined.

    A calibration error also has its `noise_floor`: the expected error of a perfectly calibrated model with these
    probabilities. Its interval is for the true error, which noise raises: the value may lie above the interval.

    >>> Interval(0.5, 0.4, 0.6).value
    0.5
    """

    value: float
    low: float
    high: float
    noise_floor: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """A metric on some rows: its value, its values on resamples of the rows [n_resamples], and its noise bias."""

    metric: Metric
    n_rows: int
    value: float
    resampled: np.ndarray
    bias: NoiseBias | None = None
    standard_error: float = math.nan  # of a calibration error
    notes: tuple[str, ...] = ()

    def interval(self, level: float = 0.95) -> Interval:
        low, high = self._bounds(checked_level(level))
        floor = self.bias.floor if self.bias and self.metric.is_raised_by_noise else None
        return Interval(self.value, low, high, floor, self.notes)

    def _bounds(self, level: float) -> tuple[float, float]:
        if not len(self.resampled) or not math.isfinite(self.value):
            return math.nan, math.nan
        if self.metric is METRICS["accuracy"]:
            hits, counts = np.array(self.value * self.n_rows), np.array(self.n_rows)
            low, high = map(float, wilson(hits, counts, normal_quantile(level)))
            return low, high
        if self.bias is None:
            return percentile_interval(self.metric, self.value, self.resampled, level)
        low, high = self.bias.interval(normal_quantile(level) * self.standard_error)
        return (low, high) if self.metric.is_raised_by_noise else (min(low, self.value), max(high, self.value))


def normal_quantile(level: float) -> float:
    """The number of standard errors around the mean that contain `level` of a normal distribution."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def checked_level(level: float) -> float:
    """`level`, or an error if it is not between 0 and 1."""
    if not 0 < level < 1:
        raise EbmcalError(f"level is {level}; expected a share between 0 and 1, such as 0.95.")
    return level


def bootstrap(
    metric: str | Callable[..., float],
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
    """A metric, by name or as a function `(labels, *, probs, **options) -> float`, with its interval over rows.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> interval = bootstrap("accuracy", [0, 1, 1, 0], probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    >>> interval.low <= interval.value <= interval.high, interval.value
    (True, 0.75)
    """
    checked_level(level)
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    estimates = estimate({"it": (find_metric(metric), options)}, labels, probs, n_resamples=n_resamples, seed=seed)
    if warn:
        warn_of_notes(estimates.values())
    return estimates["it"].interval(level)


def summarize(
    predictions: "Predictions",
    metrics: Sequence[str] = DEFAULT_METRICS,
    n_resamples: int = 1000,
    seed: int = 0,
    *,
    level: float = 0.95,
    warn: bool = True,
) -> dict[str, Interval]:
    """Each metric of the rows with a known label, with its interval, over the same resamples.

    >>> from ebmcal.predictions import Predictions
    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> summarize(p, ["accuracy", "brier"], n_resamples=10, warn=False)["accuracy"].value
    1.0
    """
    checked_level(level)
    requested: Requested = {name: (find_metric(name), {}) for name in metrics}
    known = predictions.labelled()
    labels, probs = as_labels_and_probs(known.labels, probs=known.probs)
    estimates = estimate(requested, labels, probs, n_resamples=n_resamples, seed=seed)
    if warn:
        warn_of_notes(estimates.values())
    return {name: found.interval(level) for name, found in estimates.items()}


def estimate(
    requested: Requested, labels: np.ndarray, probs: np.ndarray, *, n_resamples: int, seed: int
) -> dict[str, Estimate]:
    """Several metrics on validated labels [n] and probabilities [n, C], over the same resamples of the rows."""
    values = {name: metric.function(labels, probs=probs, **options) for name, (metric, options) in requested.items()}
    resampled, biases = _resample(requested, labels, probs, n_resamples, seed)
    estimates = {}
    for name, (metric, options) in requested.items():
        value, (base, drawn), (bias, standard_error) = values[name], resampled[name], biases[name]
        drawn = drawn + (value - base)
        if bias is None and metric.is_raised_by_noise:
            bias = simulated_bias(value, metric.function, probs, **options)
            standard_error = float(drawn.std(ddof=1)) if len(drawn) > 1 else math.nan
        notes = _few_rows_notes(metric, len(labels), options)
        estimates[name] = Estimate(metric, len(labels), value, drawn, bias, standard_error, notes)
    return estimates


#: A function from weights [n_units, r] to values [r], and the number of sums per resample.
Reader = tuple[Callable[[np.ndarray], np.ndarray], int]


#: The noise bias and the standard error of an expected binned error; None and NaN for other metrics.
Bias = tuple[NoiseBias | None, float]


def _resample(
    requested: Requested, labels: np.ndarray, probs: np.ndarray, n_resamples: int, seed: int
) -> tuple[dict[str, tuple[float, np.ndarray]], dict[str, Bias]]:
    """For each metric: its value on the rows as resampling sees them and its values on the resamples; its bias."""
    units = Units.create(len(labels), seed, probs.shape[1])
    readers: dict[str, Reader] = {}
    biases: dict[str, Bias] = {}
    # Binned errors first: with very many rows they need the most memory, and the tables of the others need some too.
    for name, (metric, options) in sorted(requested.items(), key=lambda item: item[1][0].events is None):
        readers[name], biases[name] = _prepare(metric, options, labels, probs, units)
    values: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in readers}
    largest = max(n_sums for _, n_sums in readers.values())
    for weights in draw_weights(units.n_units, n_resamples, seed, largest):
        for name, (read, _) in readers.items():
            values[name].append(read(weights))
    every_row = np.ones((units.n_units, 1))
    resampled = {n: (float(read(every_row)[0]), np.concatenate(values[n])) for n, (read, _) in readers.items()}
    return resampled, biases


def _prepare(
    metric: Metric, options: dict[str, Any], labels: np.ndarray, probs: np.ndarray, units: Units
) -> tuple[Reader, Bias]:
    """How to compute a metric on resamples, and its bias.

    The reader keeps the table of sums only: the statistics themselves keep arrays as long as the rows alive.
    """
    bias, standard_error, statistics = None, math.nan, None
    if metric.events is not None:
        error = binned_error(labels, probs, kind=metric.events, **{"n_bins": N_BINS, **options})
        bias, standard_error, statistics = error.bias, error.standard_error, error.statistics
    elif metric.statistics is not None:
        statistics = metric.statistics(labels, probs, **options)
    if statistics is None:
        return (lambda weights: _one_by_one(metric, options, labels, probs, units, weights), 0), (bias, standard_error)
    table, sizes, finish = units.table(statistics), units.sizes(), statistics.finish
    reader = (lambda weights: finish_resamples(finish, table @ weights, sizes @ weights), statistics.n_sums)
    return reader, (bias, standard_error)


def _one_by_one(
    metric: Metric, options: dict[str, Any], labels: np.ndarray, probs: np.ndarray, units: Units, weights: np.ndarray
) -> np.ndarray:
    values = []
    for column in weights.T.astype(np.intp):
        times = column if units.of_row is None else column[units.of_row]
        rows = np.repeat(np.arange(len(labels)), times)
        drawn = {name: np.asarray(v)[rows] if np.ndim(v) == 1 else v for name, v in options.items()}
        values.append(metric.function(labels[rows], probs=probs[rows], **drawn))
    return np.array(values)


def percentile_interval(metric: Metric, value: float, resampled: np.ndarray, level: float) -> tuple[float, float]:
    """The middle of the resampled values, extended to `value`; NaN if there are none."""
    resampled = resampled[np.isfinite(resampled)]
    if not len(resampled) or not math.isfinite(value):
        return math.nan, math.nan
    low, high = np.clip(np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2]), *metric.bounds)
    return float(min(low, value)), float(max(high, value))


def _few_rows_notes(metric: Metric, n_rows: int, options: dict[str, Any]) -> tuple[str, ...]:
    """A note if bins hold fewer than ten rows each on average: noise alone then moves a bin's share by up to 0.16."""
    n_bins = options.get("n_bins", N_BINS)
    if not metric.is_binned or n_rows >= 10 * n_bins:
        return ()
    fewer = f"at most {n_rows // 10} bins or " if n_rows >= 20 else ""
    return (
        f"{n_rows} rows are few for {n_bins} bins (ten rows per bin are recommended): binned calibration errors are "
        f"mostly noise here. Use {fewer}smooth_ece.",
    )


def warn_of_notes(estimates: Iterable[Estimate]) -> None:
    """Emit the notes of estimates as warnings, each once."""
    for note in sorted({note for found in estimates for note in found.notes}):
        warnings.warn(note, FewRowsWarning, stacklevel=4)
