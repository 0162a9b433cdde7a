"""Confidence intervals of metrics over the rows they were computed on, and the noise floor of calibration errors.

`estimate` is the one place that resamples rows (with replacement, as many as there are): it returns each metric's value
and its values on the resamples, the same resamples for every metric and every model of the same rows. Intervals here
and differences between models and means over seeds in `comparison` all derive from it, so they agree. An interval is
the middle 95% of the resampled values; for accuracy it is Wilson's, which has a width at 0 and 1.

Noise raises calibration errors, and resampling raises them again, so their intervals are those of `noise_floor`.
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
from ebmcal.metrics.resampling import MAX_ROWS, SufficientStatistics, Units, draw_weights, mean_statistics
from ebmcal.metrics.selective import DETECTION, ood_counts, ood_detection
from ebmcal.predictions.arrays import as_labels_and_probs, chunks

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


def ood_bootstrap(
    in_scores: Any, out_scores: Any, *, n_resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval]:
    """`ood_detection` with bootstrap intervals; in-distribution and OOD rows are resampled separately.

    Drawing rows is drawing how many fall on each level of score, which is multinomial. With very many distinct scores,
    neighbours are merged for the resamples.

    >>> ood_bootstrap([2.0, 3.0], [1.0], n_resamples=10)["auroc"].low
    1.0
    """
    checked_level(level)
    kept, passed = ood_counts(in_scores, out_scores, MAX_ROWS)
    rng = np.random.default_rng([seed, 4])
    drawn = []
    for part in chunks(n_resamples, len(kept)):
        n = part.stop - part.start
        a, b = (rng.multinomial(int(c.sum()), c / c.sum(), n).astype(np.float64) for c in (kept, passed))
        drawn.append([function(a, b) for function in DETECTION.values()])
    intervals = {}
    for i, (name, value) in enumerate(ood_detection(in_scores, out_scores).items()):
        shift = value - float(DETECTION[name](kept, passed))  # by merging scores
        resampled = np.concatenate([np.empty(0), *(part[i] for part in drawn)]) + shift
        intervals[name] = Interval(value, *percentile_interval((0.0, 1.0), value, resampled, level))
    return intervals


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
            return percentile_interval(self.metric.bounds, self.value, self.resampled, level)
        low, high = self.bias.interval(normal_quantile(level) * self.standard_error)
        return (low, high) if self.metric.is_raised_by_noise else (min(low, self.value), max(high, self.value))


def estimate(
    requested: Requested, labels: np.ndarray, probs: np.ndarray, *, n_resamples: int, seed: int
) -> dict[str, Estimate]:
    """Several metrics on validated labels [n] and probabilities [n, C], over the same resamples of the rows."""
    units = Units(len(labels), probs.shape[1], seed)
    readers: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    biases: dict[str, tuple[NoiseBias, float]] = {}  # with the standard error, of expected binned errors
    n_sums = 0
    # Binned errors first: with very many rows they need the most memory, and the tables of the others need some too.
    for name, (metric, options) in sorted(requested.items(), key=lambda item: item[1][0].events is None):
        statistics = metric.statistics and metric.statistics(labels, probs, **options)
        if metric.events is not None:
            error = binned_error(labels, probs, kind=metric.events, **{"n_bins": N_BINS, **options})
            biases[name], statistics = (error.bias, error.standard_error), mean_statistics(error.influence)
        readers[name] = _reader(metric, options, labels, probs, units, statistics)
        n_sums = max(n_sums, math.prod(statistics.shape) if statistics else 0)
    drawn: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in readers}
    for weights in draw_weights(len(units.sizes), n_resamples, seed, n_sums):
        for name, read in readers.items():
            drawn[name].append(read(weights))
    estimates = {}
    for name, (metric, options) in requested.items():
        value, base = metric.function(labels, probs=probs, **options), readers[name](np.ones((len(units.sizes), 1)))
        resampled = np.concatenate(drawn[name]) + (value - float(base[0]))  # a shift by merged scores or linearisation
        bias, standard_error = biases.get(name, (None, math.nan))
        if bias is None and metric.is_raised_by_noise:
            bias = simulated_bias(value, metric.function, probs, **options)
            standard_error = float(resampled.std(ddof=1)) if len(resampled) > 1 else math.nan
        notes = _few_rows_notes(metric, len(labels), options)
        estimates[name] = Estimate(metric, len(labels), value, resampled, bias, standard_error, notes)
    return estimates


def _reader(
    metric: Metric, options: dict[str, Any], labels: np.ndarray, probs: np.ndarray, units: Units,
    statistics: SufficientStatistics | None,
) -> Callable[[np.ndarray], np.ndarray]:  # fmt: skip
    """The function from weights [n_units, r] to the metric on these resamples [r]; one by one without statistics."""
    if statistics is not None:
        return units.reader(statistics)

    def read(weights: np.ndarray) -> np.ndarray:
        values = []
        for column in weights.T.astype(np.intp):
            rows = np.repeat(np.arange(len(labels)), column if units.block is None else column[units.block])
            drawn = {name: np.asarray(v)[rows] if np.ndim(v) == 1 else v for name, v in options.items()}
            values.append(metric.function(labels[rows], probs=probs[rows], **drawn))
        return np.array(values)

    return read


def normal_quantile(level: float) -> float:
    """The number of standard errors around the mean that contain `level` of a normal distribution."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def checked_level(level: float) -> float:
    """`level`, or an error if it is not between 0 and 1."""
    if not 0 < level < 1:
        raise EbmcalError(f"level is {level}; expected a share between 0 and 1, such as 0.95.")
    return level


def percentile_interval(
    bounds: tuple[float, float], value: float, resampled: np.ndarray, level: float
) -> tuple[float, float]:
    """The middle of the resampled values, extended to `value`; NaN if there are none."""
    resampled = resampled[np.isfinite(resampled)]
    if not len(resampled) or not math.isfinite(value):
        return math.nan, math.nan
    low, high = np.clip(np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2]), *bounds)
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
