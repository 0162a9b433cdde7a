"""How sure a figure is: intervals of metrics over the rows they were measured on.

`measure` is the one place where rows are drawn again (with replacement, as many as there are): it gives each metric's
value and its values on the resamples, the same resamples for every metric and every model of the same rows. Everything
else is read off that: intervals here, differences between models and means over seeds in `comparing`, so that they
agree.

An interval is the middle 95% of the resampled values; of accuracy it is Wilson's, which has a width at 0 and 1. Noise
pushes calibration errors upwards, and resampling pushes them up once more, so their intervals come from `chance`.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.bins import wilson
from ebmcal.metrics.chance import BinnedError, Chance, binned_error, drawn_chance
from ebmcal.metrics.registry import DEFAULT_METRICS, METRICS, N_BINS, Metric, metric
from ebmcal.metrics.resampling import Units, draws
from ebmcal.metrics.sums import Sums, finish_many
from ebmcal.predictions.arrays import as_labels_and_probs

if TYPE_CHECKING:
    from ebmcal.predictions import Predictions

#: Metrics with the options of their functions, by the name they are wanted under.
Wanted = Mapping[str, tuple[Metric, dict[str, Any]]]


class FewRowsWarning(UserWarning):
    """There are too few rows for the number of bins: the figure is mostly noise.

    For example:

        warnings.simplefilter("error", FewRowsWarning)  # refuse such figures
    """


@dataclass(frozen=True)
class Interval:
    """A value with a confidence interval and notes about it; NaN where something is not defined.

    A calibration error also has its `noise_floor`: what a perfectly calibrated model would show on these probabilities.
    Its interval is of the true error, which noise pushes the value above: the value may lie above the interval.

    >>> Interval(0.5, 0.4, 0.6).value
    0.5
    """

    value: float
    low: float
    high: float
    noise_floor: float | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: NaN and infinity are null.

        >>> Interval(0.5, 0.4, float("nan")).to_json()
        {'value': 0.5, 'low': 0.4, 'high': None}
        """
        return json_of(self)


def json_of(figure: Any) -> dict[str, Any]:
    """A dataclass of numbers as JSON has it: NaN is null; what is None or has no notes is left out."""
    *numbers, (_, notes) = ((name, part) for name, part in vars(figure).items() if part is not None)
    out: dict[str, Any] = {name: part if math.isfinite(part) else None for name, part in numbers}
    return out | ({"notes": list(notes)} if notes else {})


@dataclass(frozen=True)
class Measured:
    """A metric on some rows: its value, its values on resamples of them [n_resamples], what chance adds to it."""

    metric: Metric
    n_rows: int
    value: float
    resampled: np.ndarray
    chance: Chance | None = None
    standard_error: float = math.nan  # of a calibration error
    notes: tuple[str, ...] = ()

    def interval(self, level: float = 0.95) -> Interval:
        low, high = self._ends(checked_level(level))
        floor = self.chance.floor if self.chance and self.metric.noisy_upwards else None
        return Interval(self.value, low, high, floor, self.notes)

    def _ends(self, level: float) -> tuple[float, float]:
        if not len(self.resampled) or not math.isfinite(self.value):
            return math.nan, math.nan
        if self.metric is METRICS["accuracy"]:
            z, hits = normal_quantile(level), np.array([self.value * self.n_rows])
            return tuple(float(end[0]) for end in wilson(hits, np.array([self.n_rows]), z))  # type: ignore[return-value]
        if self.chance is None:
            return interval_of(self.metric, self.value, self.resampled, level)
        low, high = self.chance.ends(normal_quantile(level) * self.standard_error)
        return (low, high) if self.metric.noisy_upwards else (min(low, self.value), max(high, self.value))


def normal_quantile(level: float) -> float:
    """How many standard errors hold the middle `level` of a normal distribution."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def checked_level(level: float) -> float:
    """Refuse what is no share."""
    if not 0 < level < 1:
        raise EbmcalError(f"level is {level}; a share between 0 and 1 is needed, such as 0.95.")
    return level


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
    """A metric, by name or as a function `(labels, *, probs, **options) -> float`, with its interval over rows.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> interval = bootstrap("accuracy", [0, 1, 1, 0], probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    >>> interval.low <= interval.value <= interval.high, interval.value
    (True, 0.75)
    """
    checked_level(level)
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    measured = measure({"it": (metric(metric_name), options)}, labels, probs, n_resamples=n_resamples, seed=seed)
    if warn:
        warn_of(measured.values())
    return measured["it"].interval(level)


def summarize(
    predictions: "Predictions",
    metrics: Sequence[str] = DEFAULT_METRICS,
    n_resamples: int = 1000,
    seed: int = 0,
    *,
    level: float = 0.95,
    warn: bool = True,
) -> dict[str, Interval]:
    """Each metric of the rows whose label is known, with its interval, over the same resamples.

    >>> from ebmcal.predictions import Predictions
    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> summarize(p, ["accuracy", "brier"], n_resamples=10, warn=False)["accuracy"].value
    1.0
    """
    checked_level(level)
    known = predictions.labelled()
    labels, probs = as_labels_and_probs(known.labels, probs=known.probs)
    wanted: Wanted = {name: (metric(name), {}) for name in metrics}
    measured = measure(wanted, labels, probs, n_resamples=n_resamples, seed=seed)
    if warn:
        warn_of(measured.values())
    return {name: figure.interval(level) for name, figure in measured.items()}


def measure(
    wanted: Wanted, labels: np.ndarray, probs: np.ndarray, *, n_resamples: int, seed: int
) -> dict[str, Measured]:
    """Several metrics on checked labels [n] and probabilities [n, C], over the same resamples of the rows."""
    errors = {name: _binned(which, options, labels, probs) for name, (which, options) in wanted.items()}
    linear = {name: error.sums for name, error in errors.items() if error is not None}
    resampled = resample(wanted, labels, probs, n_resamples, seed, linear)
    out = {}
    for name, (which, options) in wanted.items():
        value = which.function(labels, probs=probs, **options)
        base, values = resampled[name]
        values = values + (value - base)
        chance, spread = _chance(which, options, probs, value, errors[name], values)
        notes = few_rows_notes(which, len(labels), options)
        out[name] = Measured(which, len(labels), value, values, chance, spread, notes)
    return out


def _binned(which: Metric, options: dict[str, Any], labels: np.ndarray, probs: np.ndarray) -> BinnedError | None:
    if which.events is None:
        return None
    return binned_error(labels, probs, kind=which.events, **{"n_bins": N_BINS, **options})


def _chance(
    which: Metric,
    options: dict[str, Any],
    probs: np.ndarray,
    value: float,
    error: BinnedError | None,
    resampled: np.ndarray,
) -> tuple[Chance | None, float]:
    """What chance adds to a metric, and its standard error; None for those that it does not push upwards."""
    if error is not None:
        return error.chance, error.standard_error
    if not which.noisy_upwards:
        return None, math.nan
    spread = float(resampled.std(ddof=1)) if len(resampled) > 1 else math.nan
    return drawn_chance(value, which.function, probs, **options), spread


def resample(
    wanted: Wanted,
    labels: np.ndarray,
    probs: np.ndarray,
    n_resamples: int,
    seed: int,
    linear: Mapping[str, Sums] | None = None,
) -> dict[str, tuple[float, np.ndarray]]:
    """For each metric: its value on the rows as resampling sees them, and its values on the resamples [n_resamples].

    `linear` has sums to take in place of a metric's own.
    """
    units = Units.of(len(labels), seed, probs.shape[1])
    readers = {
        name: _reader(which, options, labels, probs, units, (linear or {}).get(name))
        for name, (which, options) in wanted.items()
    }
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
    which: Metric,
    options: dict[str, Any],
    labels: np.ndarray,
    probs: np.ndarray,
    units: Units,
    sums: Sums | None,
) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """A function from weights [n_units, r] to values [r], and how many sums it makes of each resample."""
    if sums is None and which.sums is not None:
        merged = units.options if which.ranks else {}  # scores are merged into levels where blocks are drawn
        sums = which.sums(labels, probs, **options, **merged)
    if sums is None:
        return lambda weights: _one_by_one(which, options, labels, probs, units, weights), 0
    table, sizes, finish = units.table(sums), units.sizes(), sums.finish  # without `sums`, which holds on to the rows
    return lambda weights: finish_many(finish, table @ weights, sizes @ weights), sums.n_sums


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
    """The middle of the resampled values, `value` included; NaN if there are none."""
    resampled = resampled[np.isfinite(resampled)]
    if not len(resampled) or not math.isfinite(value):
        return math.nan, math.nan
    low, high = np.clip(np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2]), *which.bounds)
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


def warn_of(figures: Any) -> None:
    """Say the notes of figures as warnings, each once."""
    for note in sorted({note for figure in figures for note in figure.notes}):
        warnings.warn(note, FewRowsWarning, stacklevel=4)
