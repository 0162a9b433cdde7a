"""`METRICS`, every metric by name, and confidence intervals over the rows that a metric was computed on.

Adding a metric is a function, an entry in `METRICS` and a test.

`estimate` is the one place that resamples rows (with replacement, as many as there are): it returns each metric's value
and its values on the resamples, the same resamples for every metric and every model of the same rows. Intervals here
and differences between models and means over seeds in `comparison` all derive from it, so they agree. An interval is
the middle 95% of the resampled values; for accuracy it is Wilson's, which has a width at 0 and 1. Noise raises
calibration errors, and resampling raises them again, so theirs is that of `calibration.NoiseBias`.

With very many rows, `N_BLOCKS` random blocks of rows are drawn instead: sums over random blocks vary as sums over rows
do (the spread is known to 1/√(2·N_BLOCKS) = 2% of itself), and the cost of a resample no longer grows with the rows.
With very many classes blocks start earlier and are fewer, to bound memory.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import unknown_name
from ebmcal.metrics import calibration, classification, selective
from ebmcal.metrics.calibration import (
    N_BINS,
    Z_95,
    Kind,
    NoiseBias,
    binned_error,
    simulated_bias,
    wilson,
)
from ebmcal.metrics.classification import MAX_ROWS, SufficientStatistics, is_drawn_in_blocks, mean_statistics
from ebmcal.metrics.selective import DETECTION, ood_counts, ood_detection
from ebmcal.predictions import as_labels_and_probs, chunks

if TYPE_CHECKING:
    from ebmcal.predictions import Predictions

N_BLOCKS = 2_048
MIN_BLOCKS = 128
MAX_TABLE = 1 << 24  # sums times blocks, 128 MB
SUMS_PER_CLASS = 60  # three in each of 20 bins
_CHUNK_NUMBERS = 1 << 21  # 16 MB of weights and sums at a time


@dataclass(frozen=True)
class Metric:
    """A function `(labels, *, logits= | probs=, **options) -> float` and its properties.

    >>> METRICS["ece_classwise"].title, METRICS["ece_classwise"].higher_is_better
    ('ECE class-wise', False)
    """

    function: Callable[..., float]
    title: str
    higher_is_better: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)
    is_binned: bool = False  # takes n_bins and binning
    is_raised_by_noise: bool = False  # has a noise floor
    events: Kind | None = None  # of an expected binned error: what it bins, for its interval in closed form

    def statistics(self, labels: np.ndarray, probs: np.ndarray, **options: Any) -> SufficientStatistics | None:
        """What is resampled; None: the metric itself is, one resample at a time."""
        make = getattr(self.function, "statistics", None)
        return None if make is None else make(labels, probs, **options)

    def row_effect(self, n_classes: int) -> float:
        """How much a right instead of a wrong answer to one of n texts changes n · metric, at most; 0: unknown.

        >>> METRICS["accuracy"].row_effect(10), METRICS["ece_classwise"].row_effect(10)
        (1.0, 0.2)
        """
        if self.events == "class":
            return 2 / n_classes  # two of the classes
        return float(self.events == "top_label" or self.function is classification.accuracy)


def find_metric(name_or_function: str | Callable[..., float]) -> Metric:
    """The metric of a name, or a metric made from a function `(labels, *, probs) -> float`.

    >>> find_metric("nll").higher_is_better
    False
    """
    if callable(name_or_function):
        known = (m for m in METRICS.values() if m.function is name_or_function)
        title = getattr(name_or_function, "__name__", "metric")
        return next(known, Metric(name_or_function, title, higher_is_better=True, bounds=(-np.inf, np.inf)))
    if name_or_function not in METRICS:
        raise unknown_name("metric", str(name_or_function), METRICS)
    return METRICS[name_or_function]


def _ece(function: Callable[..., float], title: str, kind: Kind, *, debiased: bool = False) -> Metric:
    return Metric(function, title, is_binned=True, is_raised_by_noise=not debiased, events=kind)


def _by_name(*metrics: Metric) -> dict[str, Metric]:
    return {metric.function.__name__: metric for metric in metrics}


METRICS: dict[str, Metric] = _by_name(
    Metric(classification.accuracy, "accuracy", True),
    Metric(classification.macro_f1, "macro F1", True),
    Metric(classification.matthews, "Matthews correlation", True, bounds=(-1.0, 1.0)),
    _ece(calibration.ece_classwise, "ECE class-wise", "class"),
    _ece(calibration.ece_top_label, "ECE top-label", "top_label"),
    _ece(calibration.ece_classwise_debiased, "ECE class-wise, debiased", "class", debiased=True),
    _ece(calibration.ece_top_label_debiased, "ECE top-label, debiased", "top_label", debiased=True),
    Metric(calibration.mce_classwise, "MCE class-wise", is_binned=True, is_raised_by_noise=True),
    Metric(calibration.mce_top_label, "MCE top-label", is_binned=True, is_raised_by_noise=True),
    Metric(calibration.smooth_ece, "smooth ECE top-label", is_raised_by_noise=True),
    Metric(classification.nll, "NLL", bounds=(0.0, np.inf)),
    Metric(classification.brier, "Brier", bounds=(0.0, 2.0)),
    Metric(classification.balanced_brier, "balanced Brier"),
    Metric(classification.confidence_on_errors, "confidence on errors"),
    Metric(selective.aurc, "AURC"),
    Metric(selective.error_auroc, "AUROC for errors", True),
    Metric(selective.accuracy_at_coverage, "accuracy at 80% coverage", True),
    Metric(selective.coverage_at_risk, "coverage at 5% risk", True),
)

#: Shown first in tables and compared in paired tests.
HEADLINE_METRICS: tuple[str, ...] = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")

#: Computed by default.
DEFAULT_METRICS: tuple[str, ...] = (
    *("accuracy", "macro_f1", "matthews", "ece_classwise", "ece_top_label", "ece_top_label_debiased", "smooth_ece"),
    *("nll", "brier", "balanced_brier", "confidence_on_errors", "aurc", "error_auroc", "accuracy_at_coverage"),
)


def compute_metrics(eval_prediction: Any) -> dict[str, float]:
    """The default metrics for `transformers.Trainer(compute_metrics=...)`: logits and label ids in, numbers out.

    >>> from types import SimpleNamespace
    >>> outcome = compute_metrics(SimpleNamespace(predictions=[[2.0, 0.0]], label_ids=[0]))
    >>> outcome["accuracy"]
    1.0
    """
    logits = eval_prediction.predictions
    if isinstance(logits, tuple):  # models that also return hidden states
        logits = logits[0]
    labels, probs = as_labels_and_probs(eval_prediction.label_ids, logits=logits)
    return {name: METRICS[name].function(labels, probs=probs) for name in DEFAULT_METRICS}


#: Name → metric and the options of its function.
Requested = Mapping[str, tuple[Metric, dict[str, Any]]]


@dataclass(frozen=True)
class Interval:
    """A value with its 95% confidence interval and notes about it; NaN where something is not defined.

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
    **options: Any,
) -> Interval:
    """A metric, by name or as a function `(labels, *, probs, **options) -> float`, with its interval over rows.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> interval = bootstrap("accuracy", [0, 1, 1, 0], probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    >>> interval.low <= interval.value <= interval.high, interval.value
    (True, 0.75)
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    requested: Requested = {"it": (find_metric(metric), options)}
    return estimate(requested, labels, probs, n_resamples=n_resamples, seed=seed)["it"].interval()


def summarize(
    predictions: "Predictions", metrics: Sequence[str] = DEFAULT_METRICS, n_resamples: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """Each metric of the rows with a known label, with its interval, over the same resamples.

    >>> from ebmcal.predictions import Predictions
    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> summarize(p, ["accuracy", "brier"], n_resamples=10)["accuracy"].value
    1.0
    """
    requested: Requested = {name: (find_metric(name), {}) for name in metrics}
    known = predictions.labelled()
    found = estimate(requested, known.labels, known.probs, n_resamples=n_resamples, seed=seed)
    return {name: one.interval() for name, one in found.items()}


def ood_bootstrap(in_scores: Any, out_scores: Any, *, n_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """`ood_detection` with bootstrap intervals; in-distribution and OOD rows are resampled separately.

    Drawing rows is drawing how many fall on each level of score, which is multinomial. With very many distinct scores,
    neighbours are merged for the resamples.

    >>> ood_bootstrap([2.0, 3.0], [1.0], n_resamples=10)["auroc"].low
    1.0
    """
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
        intervals[name] = Interval(value, *percentile_interval((0.0, 1.0), value, resampled))
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
    signs_drawn: np.ndarray | None = None  # [n_resamples] of a binned error; in `resampled` the signs of gaps are fixed
    row_effect: float = 0.0  # how much a right instead of a wrong answer changes n · value, at most; 0: unknown
    notes: tuple[str, ...] = ()

    def interval(self) -> Interval:
        low, high = self._bounds()
        floor = self.bias.floor if self.bias and self.metric.is_raised_by_noise else None
        return Interval(self.value, low, high, floor, self.notes)

    def _bounds(self) -> tuple[float, float]:
        if not len(self.resampled) or not math.isfinite(self.value):
            return math.nan, math.nan
        if self.metric is METRICS["accuracy"]:
            low, high = map(float, wilson(np.array(self.value * self.n_rows), np.array(self.n_rows)))
            return low, high
        if self.bias is None:
            return percentile_interval(self.metric.bounds, self.value, self.resampled)
        low, high = self.bias.interval(Z_95 * self.standard_error)
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
        statistics = metric.statistics(labels, probs, **options)
        if metric.events is not None:
            error = binned_error(labels, probs, kind=metric.events, **{"n_bins": N_BINS, **options})
            biases[name], statistics = (error.bias, error.standard_error), mean_statistics(error.influence)
            del error
            gaps = calibration.gap_statistics(labels, probs, metric.events, **options)
            readers[f"{name}, signs drawn"], n_sums = units.reader(gaps), max(n_sums, math.prod(gaps.shape))
        if statistics is None:
            readers[name] = units.slow_reader(metric.function, labels, probs, options)
        else:
            readers[name], n_sums = units.reader(statistics), max(n_sums, math.prod(statistics.shape))
        del statistics  # it keeps arrays as long as the rows alive
    drawn: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in readers}
    for weights in draw_weights(len(units.sizes), n_resamples, seed, n_sums):
        for name, read in readers.items():
            drawn[name].append(read(weights))
    estimates = {}
    for name, (metric, options) in requested.items():
        value, base = metric.function(labels, probs=probs, **options), readers[name](np.ones((len(units.sizes), 1)))
        resampled = np.concatenate(drawn[name]) + (value - float(base[0]))  # a shift by merged scores or linearisation
        signs_drawn = np.concatenate(drawn[f"{name}, signs drawn"]) if metric.events else None
        bias, standard_error = biases.get(name, (None, math.nan))
        if bias is None and metric.is_raised_by_noise:
            bias = simulated_bias(value, metric.function, probs, **options)
            standard_error = float(resampled.std(ddof=1)) if len(resampled) > 1 else math.nan
        notes = _few_rows_notes(metric, len(labels), options)
        effect = metric.row_effect(probs.shape[1])
        estimates[name] = Estimate(
            metric, len(labels), value, resampled, bias, standard_error, signs_drawn, effect, notes
        )
    return estimates


class Units:
    """What is drawn: single rows, or random blocks of equal size (up to one row); `block` [n] is that of each row."""

    def __init__(self, n_rows: int, n_classes: int, seed: int):
        self.block: np.ndarray | None = None
        self.sizes = np.ones(n_rows)
        if is_drawn_in_blocks(n_rows, n_classes):
            n_blocks = min(n_rows, N_BLOCKS, max(MIN_BLOCKS, MAX_TABLE // (SUMS_PER_CLASS * n_classes)))
            self.block = (np.arange(n_rows) % n_blocks).astype(np.uint16)
            np.random.default_rng([seed, 1]).shuffle(self.block)
            self.sizes = np.bincount(self.block).astype(np.float64)

    def reader(self, statistics: SufficientStatistics) -> Callable[[np.ndarray], np.ndarray]:
        """The function from weights [n_units, r] to the metric on these resamples [r]; it keeps only the table."""
        table, finish, shape = self._table(statistics), statistics.finish, statistics.shape

        def read(weights: np.ndarray) -> np.ndarray:
            sums, n = table @ weights, self.sizes @ weights
            # A few resamples at a time stay in the processor's cache.
            parts = chunks(len(n), len(sums))
            return np.concatenate([finish(sums[:, part].T.reshape(-1, *shape), n[part]) for part in parts])

        return read

    def _table(self, statistics: SufficientStatistics) -> Any:
        """What each unit adds to each sum [n_sums, n_units]: sparse for rows, dense for blocks."""
        n_sums, n_units = math.prod(statistics.shape), len(self.sizes)
        if self.block is None:
            from scipy.sparse import coo_array

            index, amount = statistics.entries(slice(0, n_units))
            rows = np.broadcast_to(np.arange(n_units), index.shape)
            return coo_array((amount.ravel(), (index.ravel(), rows.ravel())), shape=(n_sums, n_units)).tocsc()
        table = np.zeros(n_sums * n_units)
        for part in chunks(statistics.n_rows, statistics.width):
            index, amount = statistics.entries(part)
            np.add.at(table, (index.astype(np.intp) * n_units + self.block[part]).ravel(), amount.ravel())
        return table.reshape(n_sums, n_units)

    def slow_reader(
        self, function: Callable[..., float], labels: np.ndarray, probs: np.ndarray, options: dict[str, Any]
    ) -> Callable[[np.ndarray], np.ndarray]:
        """The same for a metric without statistics, one resample at a time; options with a value per row follow."""

        def read(weights: np.ndarray) -> np.ndarray:
            values = []
            for column in weights.T.astype(np.intp):
                rows = np.repeat(np.arange(len(labels)), column if self.block is None else column[self.block])
                drawn = {name: np.asarray(v)[rows] if np.ndim(v) == 1 else v for name, v in options.items()}
                values.append(function(labels[rows], probs=probs[rows], **drawn))
            return np.array(values)

        return read


def draw_weights(n_units: int, n_resamples: int, seed: int, n_sums: int) -> Iterator[np.ndarray]:
    """How often each unit was drawn [n_units, r] in r resamples at a time, few enough for their sums to fit memory."""
    bits = np.random.PCG64([seed, 2])
    step = int(np.clip(_CHUNK_NUMBERS // (n_units + n_sums), 1, 64))
    for start in range(0, n_resamples, step):
        counts = np.empty((min(step, n_resamples - start), n_units), dtype=np.uint8)  # no unit is drawn 256 times
        for row in counts:
            row[:] = _draw(bits, n_units)
        yield np.ascontiguousarray(counts.T, dtype=np.float64)  # a sparse table times this runs along resamples


def _draw(bits: np.random.PCG64, n: int) -> np.ndarray:
    """How often each of n units is drawn in n draws."""
    # The upper half of 32 random bits times n: uniform to n/2³², and faster than `Generator.integers`.
    words = bits.random_raw((n + 1) // 2).view(np.uint32)[:n]
    picked = (words * np.uint64(n)) >> np.uint64(32)
    return np.bincount(picked.view(np.int64), minlength=n)


def percentile_interval(bounds: tuple[float, float], value: float, resampled: np.ndarray) -> tuple[float, float]:
    """The middle 95% of the resampled values, extended to `value`; NaN if there are none."""
    resampled = resampled[np.isfinite(resampled)]
    if not len(resampled) or not math.isfinite(value):
        return math.nan, math.nan
    low, high = np.clip(np.quantile(resampled, [0.025, 0.975]), *bounds)
    return float(min(low, value)), float(max(high, value))


def _few_rows_notes(metric: Metric, n_rows: int, options: dict[str, Any]) -> tuple[str, ...]:
    """A note if bins hold fewer than ten rows each on average: noise alone then moves a bin's share by up to 0.16."""
    n_bins = options.get("n_bins", N_BINS)
    if not metric.is_binned or n_rows >= 10 * n_bins:
        return ()
    fewer = f"at most {n_rows // 10} bins or " if n_rows >= 20 else ""
    return (
        f"{n_rows} {'row is' if n_rows == 1 else 'rows are'} few for {n_bins} bins (ten rows per bin are recommended): "
        f"binned calibration errors are mostly noise here. Use {fewer}smooth_ece.",
    )
