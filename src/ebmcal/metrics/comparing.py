"""Which of two models is better, how sure that is, and how many rows or seeds would settle it.

One procedure: the difference has a standard error, over rows drawn for both models at once and, where there are
several seeds, over seeds; interval and p-value are both Student's t of it, so p < 0.05 exactly where the 95% interval
leaves out 0.

    se² = variance over rows of the mean over seeds  +  variance between seeds / number of seeds

which is what drawing seeds and rows again tends to (a hierarchical bootstrap), but for few seeds, where drawing
understates. At 95% the reach is √(t² of the rows · their variance + t² of the seeds · theirs), each t with its own
degrees of freedom: Satterthwaite's single ones hold 92% with three seeds (benchmarks/coverage.py). It is as if two more
rows had been seen, one for each model, so that three rows that agree prove nothing. Chance raises a calibration error,
and not alike for both: the interval reaches from the plain difference to the one less what chance has likely added
(away from zero: at most), and zero must lie outside all of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.chance import mean_chance
from ebmcal.metrics.intervals import Interval, Measured, checked_level, json_of, measure, warn_of
from ebmcal.metrics.registry import metric
from ebmcal.predictions.arrays import as_labels_and_probs

#: Power asked of the number of rows or seeds that would settle a difference of the size seen, at 5%.
POWER = 0.8


@dataclass(frozen=True)
class PairedTest:
    """A difference, metric of a − metric of b, with its interval and the two-sided p-value of no difference.

    `rows_needed` and `seeds_needed`, where p is 0.05 or more: roughly how many would show a difference of this size.

    >>> PairedTest(difference=-0.1, low=-0.2, high=0.0, p_value=0.04).p_value
    0.04
    """

    difference: float
    low: float
    high: float
    p_value: float
    standard_error: float = math.nan
    df: float = math.nan
    rows_needed: int | None = None
    seeds_needed: int | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: NaN is null."""
        return json_of(self)


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

    Takes `labels` [n] and the probabilities of both, [n, C].

    Ranking metrics also take `scores_a` and `scores_b` (higher = more trusted), so that two scores can be compared.

    >>> good, bad = [[0.9, 0.1]] * 20, [[0.6, 0.4]] * 20
    >>> test = paired_test("nll", [0] * 20, good, bad)
    >>> round(test.difference, 3), test.p_value < 0.01
    (-0.405, True)
    """
    which = metric(metric_name)
    if "scores" in options:
        raise EbmcalError("Give scores_a= and scores_b=, one for each method, instead of scores=.")
    scores = [options.pop(name, None) for name in ("scores_a", "scores_b")]
    labels, probs_a = as_labels_and_probs(labels, probs=probs_a)
    labels, probs_b = as_labels_and_probs(labels, probs=probs_b)
    if probs_a.shape != probs_b.shape:
        raise EbmcalError(f"The methods must have the same classes; {probs_a.shape[1]} and {probs_b.shape[1]} came.")
    both = []
    for probs, own in zip((probs_a, probs_b), scores, strict=True):
        wanted = {"it": (which, options if own is None else options | {"scores": own})}
        both.append(measure(wanted, labels, probs, n_resamples=n_resamples, seed=seed)["it"])
    if warn:
        warn_of(both)
    return compare_measured(both[:1], both[1:], level)


def compare_measured(ours: Sequence[Measured], theirs: Sequence[Measured], level: float = 0.95) -> PairedTest:
    """The difference of two models' means over seeds; ours and theirs are of the same seeds and the same rows."""
    pairs = list(zip(ours, theirs, strict=True))
    plain = float(np.mean([a.value - b.value for a, b in pairs]))
    likely, largest, smallest = np.mean([_less_chance(a, b) for a, b in pairs], axis=0)
    over_rows = np.mean([a.resampled - b.resampled for a, b in pairs], axis=0)
    n_rows = min(a.n_rows for a, _ in pairs)
    spread = Spread.of(over_rows, [a.value - b.value for a, b in pairs], n_rows, plain)
    notes = tuple(dict.fromkeys(note for a, _ in pairs for note in a.notes))
    ends = (min(plain, likely), max(plain, likely))
    outer = (smallest if ends[0] < 0 else ends[0], largest if ends[1] > 0 else ends[1])  # away from 0 only
    ends = (float(min(*ends, outer[0])), float(max(*ends, outer[1])))
    return _test(plain, ends, spread, checked_level(level), notes)


def mean_over_seeds(several: Sequence[Measured], level: float = 0.95) -> Interval:
    """The mean of a metric over models that differ in their seed, its interval over seeds and rows together."""
    if len(several) == 1:
        return several[0].interval(level)
    value = float(np.mean([figure.value for figure in several]))
    over_rows = np.mean([figure.resampled for figure in several], axis=0)
    spread = Spread.of(over_rows, [figure.value for figure in several], several[0].n_rows, 0.0)
    reach = spread.reach(checked_level(level))
    notes = tuple(dict.fromkeys(note for figure in several for note in figure.notes))
    which, chances = several[0].metric, [figure.chance for figure in several if figure.chance is not None]
    if not math.isfinite(reach):
        return Interval(value, math.nan, math.nan, notes=notes)
    if len(chances) < len(several):
        low, high = np.clip([value - reach, value + reach], *which.bounds)
        return Interval(value, float(min(low, value)), float(max(high, value)), notes=notes)
    chance = mean_chance(chances)
    low, high = chance.ends(reach)
    if not which.noisy_upwards:
        return Interval(value, min(low, value), max(high, value), notes=notes)
    return Interval(value, low, high, chance.floor, notes)


def mean_of_tests(tests: Sequence[Mapping[str, Any]], level: float = 0.95) -> PairedTest:
    """The mean of differences on independent rows (the tasks of a benchmark, which are not a sample of tasks).

    `tests` are `PairedTest.to_json()`s with intervals of 95%.

    >>> one = {"difference": 0.1, "low": 0.0, "high": 0.2, "standard_error": 0.05, "df": 100}
    >>> mean_of_tests([one, one]).p_value < 0.01
    True
    """
    each = [Spread(test["standard_error"], 0.0, test["df"], 0, 1) for test in tests]
    variances = [(one.total / len(tests)) ** 2 for one in each]
    df = _satterthwaite([(v, one.df) for v, one in zip(variances, each, strict=True)])
    plain = float(np.mean([test["difference"] for test in tests]))
    ends = np.mean([(t["low"] + s.reach(0.95), t["high"] - s.reach(0.95)) for t, s in zip(tests, each, strict=True)], 0)
    spread = Spread(math.sqrt(sum(variances)), 0.0, df, 0, 1)
    return _test(plain, (float(ends[0]), float(ends[1])), spread, checked_level(level))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values that may be looked at together: Holm's step-down adjustment; None and NaN stay as they are.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None and math.isfinite(p))
    adjusted, largest = list(p_values), 0.0
    for place, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - place)))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class Spread:
    """The standard error of a mean over seeds, in its two parts, and its degrees of freedom."""

    rows: float
    seeds: float
    df: float
    n_rows: int
    n_seeds: int

    @classmethod
    def of(cls, over_rows: np.ndarray, over_seeds: Sequence[float], n_rows: int, difference: float) -> "Spread":
        """From values on resamples of the rows [n_resamples] and values of the seeds."""
        over_rows = over_rows[np.isfinite(over_rows)]
        if len(over_rows) < 2:
            return cls(math.nan, math.nan, math.nan, n_rows, len(over_seeds))
        rows = float(over_rows.var(ddof=1)) + 2 * (difference / n_rows) ** 2  # and two more rows, one for each
        return cls.of_variances(rows, over_seeds, n_rows)

    @classmethod
    def of_variances(cls, rows: float, over_seeds: Sequence[float], n_rows: int) -> "Spread":
        """From the variance of the mean over seeds that comes from rows, and values of the seeds."""
        seeds = float(np.var(over_seeds, ddof=1)) / len(over_seeds) if len(over_seeds) > 1 else 0.0
        df = _of_two(rows, max(n_rows - 1, 1), seeds, len(over_seeds) - 1)
        return cls(math.sqrt(rows), math.sqrt(seeds), df, n_rows, len(over_seeds))

    @property
    def total(self) -> float:
        return math.hypot(self.rows, self.seeds)

    def reach(self, level: float) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.df, (1 + level) / 2)) * self.total if self.total else 0.0


def _less_chance(a: Measured, b: Measured) -> tuple[float, float, float]:
    """The difference less what chance has likely added to each, and the most and the least it can then be."""
    plain = a.value - b.value
    if a.chance is None or b.chance is None or not a.metric.noisy_upwards:
        return plain, plain, plain
    likely = plain - a.chance.likely + b.chance.likely
    return likely, plain - a.chance.likely + b.chance.most, plain - a.chance.most + b.chance.likely


def _test(
    plain: float, ends: tuple[float, float], spread: Spread, level: float, notes: tuple[str, ...] = ()
) -> PairedTest:
    """Interval and p-value of a difference that lies between two ends, but for the rows and seeds that were drawn."""
    total, reach = spread.total, spread.reach(level)
    if not math.isfinite(plain) or not math.isfinite(reach):
        return PairedTest(plain, math.nan, math.nan, math.nan, notes=notes)
    near = max(ends[0], -ends[1], 0.0)  # from 0 to the nearer end
    p_value = _two_sided(near / total, spread.df) if near else 1.0
    needed = (None, None) if p_value < 0.05 else _needed(abs(plain), spread)
    return PairedTest(plain, ends[0] - reach, ends[1] + reach, p_value, total, spread.df, *needed, notes)


def _two_sided(t: float, df: float) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(df, -t))


def _needed(size: float, spread: Spread) -> tuple[int | None, int | None]:
    """Rows, or seeds where these are what is lacking, that would show a difference of this size with `POWER`."""
    from scipy.special import ndtri

    allowed = (size / float(ndtri(0.975) + ndtri(POWER))) ** 2  # variance
    if not allowed or not spread.n_rows:
        return None, None
    if spread.rows**2 < allowed and spread.seeds:
        return None, max(spread.n_seeds + 1, math.ceil(spread.n_seeds * spread.seeds**2 / (allowed - spread.rows**2)))
    return _rounded(max(spread.n_rows * spread.rows**2 / allowed, spread.n_rows + 1)), None


def _rounded(count: float) -> int:
    """Up to two digits that count.

    >>> _rounded(1234.5)
    1300
    """
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step


def _of_two(rows: float, df_rows: float, seeds: float, df_seeds: float) -> float:
    """The degrees of freedom that give the reach at 95% of rows and seeds, each with its own.

    >>> round(_of_two(1.0, 299, 1.0, 2), 1), _of_two(1.0, 299, 0.0, 0)
    (2.8, 299)
    """
    from scipy.special import stdtridf, stdtrit

    if not seeds or not rows:
        return df_seeds if seeds else df_rows if rows else 1.0
    squares = rows * stdtrit(df_rows, 0.975) ** 2 + seeds * stdtrit(df_seeds, 0.975) ** 2
    found = float(stdtridf(0.975, math.sqrt(squares / (rows + seeds))))
    return min(max(found, min(df_rows, df_seeds)), max(df_rows, df_seeds))


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances that were estimated with some each."""
    known = [(v, df) for v, df in parts if v > 0]
    return sum(v for v, _ in known) ** 2 / sum(v * v / df for v, df in known) if known else 1.0
