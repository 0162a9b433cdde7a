"""Which of two models is better, with an interval and a p-value, and how many rows or seeds would settle it.

The difference has a standard error, over rows drawn for both models at once and, with several seeds, over seeds;
interval and p-value both use Student's t, so p < 0.05 exactly when the 95% interval excludes 0.

    se² = variance over rows of the mean over seeds  +  variance between seeds / number of seeds

This is the limit of a hierarchical bootstrap over seeds and rows, which underestimates with few seeds. At 95% the
margin is √(t² of the rows · their variance + t² of the seeds · theirs), each t with its own degrees of freedom:
Satterthwaite's single ones cover 92% with three seeds (benchmarks/coverage.py). The variance includes two additional
rows, one in favour of each model (as the interval of Agresti and Min does), so that few rows on which models agree, or
few errors, prove nothing. Binned calibration errors are sums of absolute values, which are not normal near zero: their
margin also reaches the middle 95% of the resampled differences. Noise raises calibration errors, and not
equally for both models: the interval covers both the plain difference and the difference minus the likely noise bias
(away from zero: minus the largest), and zero must lie outside all of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.calibration import Z_95, NoiseBias
from ebmcal.metrics.intervals import Estimate, Interval, estimate, find_metric
from ebmcal.predictions import as_labels_and_probs

#: Power for the number of rows or seeds that would show a difference of the observed size, at 5%.
POWER = 0.8


@dataclass(frozen=True)
class PairedTest:
    """A difference, metric of a − metric of b, with its interval and the two-sided p-value of no difference.

    `rows_needed` and `seeds_needed`, if 0.05 ≤ p < 0.5: roughly how many would show a difference of this size. A larger
    p-value is no evidence of any difference.

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


def paired_test(
    metric: str | Callable[..., float],
    labels: Any,
    probs_a: Any,
    probs_b: Any,
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> PairedTest:
    """Compare the probabilities of two models for the same rows by a metric: `labels` [n], probabilities [n, C].

    >>> good, bad = [[0.9, 0.1]] * 20, [[0.6, 0.4]] * 20
    >>> test = paired_test("nll", [0] * 20, good, bad)
    >>> round(test.difference, 3), test.p_value < 0.01
    (-0.405, True)
    """
    labels, probs_a = as_labels_and_probs(labels, probs=probs_a)
    labels, probs_b = as_labels_and_probs(labels, probs=probs_b)
    if probs_a.shape != probs_b.shape:
        raise EbmcalError(f"Expected the same classes for both models, got {probs_a.shape[1]} and {probs_b.shape[1]}.")
    requested = {"it": (find_metric(metric), options)}
    a, b = (estimate(requested, labels, p, n_resamples=n_resamples, seed=seed)["it"] for p in (probs_a, probs_b))
    return compare_estimates([a], [b])


def compare_estimates(ours: Sequence[Estimate], theirs: Sequence[Estimate]) -> PairedTest:
    """The difference of two models' means over seeds; ours and theirs are for the same seeds and the same rows."""
    pairs = list(zip(ours, theirs, strict=True))
    differences = [a.value - b.value for a, b in pairs]
    plain = float(np.mean(differences))
    likely, largest, smallest = np.mean([_minus_bias(a, b) for a, b in pairs], axis=0)
    over_rows = np.mean([a.resampled - b.resampled for a, b in pairs], axis=0)
    effect = max(abs(plain), ours[0].row_effect)
    drawn = [a.signs_drawn - b.signs_drawn for a, b in pairs if a.signs_drawn is not None and b.signs_drawn is not None]
    reach = middle(np.mean(drawn, axis=0), plain) if drawn else 0.0
    error = StandardError.from_resamples(over_rows, differences, min(a.n_rows for a, _ in pairs), effect, reach)
    low, high = min(plain, likely), max(plain, likely)
    low, high = (smallest if low < 0 else low, largest if high > 0 else high)  # away from 0 only
    bounds = float(min(plain, likely, low)), float(max(plain, likely, high))
    return _test(plain, bounds, error)


def middle(values: np.ndarray, center: float) -> float:
    """How far the middle 95% of values reach from a center; 0 without values.

    >>> middle(np.linspace(0, 1, 1001), 0.5)
    0.475
    """
    return float(np.abs(np.quantile(values, [0.025, 0.975]) - center).max()) if len(values) else 0.0


def mean_over_seeds(several: Sequence[Estimate]) -> Interval:
    """The mean of a metric over models that differ in their seed, with an interval over seeds and rows together."""
    if len(several) == 1:
        return several[0].interval()
    metric, bias = several[0].metric, several[0].bias
    values = [found.value for found in several]
    value = float(np.mean(values))
    over_rows = np.mean([found.resampled for found in several], axis=0)
    margin = StandardError.from_resamples(over_rows, values, several[0].n_rows, 0.0).margin
    notes = tuple(dict.fromkeys(note for found in several for note in found.notes))
    if not math.isfinite(margin):
        return Interval(value, math.nan, math.nan, notes=notes)
    if bias is None:
        low, high = np.clip([value - margin, value + margin], *metric.bounds).tolist()
    else:
        parts = [(b.value, b.floor, b.most, b.likely) for b in (found.bias for found in several) if b is not None]
        value, floor, most, likely = np.mean(parts, axis=0).tolist()
        bias = NoiseBias(value, floor, most, likely, bias.has_bins)
        low, high = bias.interval(margin)
        if metric.is_raised_by_noise:
            return Interval(value, low, high, bias.floor, notes)
    return Interval(value, min(low, value), max(high, value), notes=notes)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment of p-values for multiple comparisons; None and NaN stay as they are.

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
class StandardError:
    """The standard error of a mean over seeds, in its two parts, and its degrees of freedom."""

    rows: float
    seeds: float
    df: float
    n_rows: int
    n_seeds: int

    @classmethod
    def from_resamples(
        cls, over_rows: np.ndarray, over_seeds: Sequence[float], n_rows: int, effect: float, reach: float = 0.0
    ) -> "StandardError":
        """From values on resamples of the rows [n_resamples], the values of the seeds, the effect of one row, and how
        far the margin must reach at least."""
        over_rows = over_rows[np.isfinite(over_rows)]
        if len(over_rows) < 2:
            return cls(math.nan, math.nan, math.nan, n_rows, len(over_seeds))
        variance = max(float(over_rows.var(ddof=1)), (reach / Z_95) ** 2)
        return cls.from_variances(variance + 2 * (effect / n_rows) ** 2, over_seeds, n_rows)  # one row for each model

    @classmethod
    def from_variances(cls, rows: float, over_seeds: Sequence[float], n_rows: int) -> "StandardError":
        """From the variance over rows of the mean over seeds, and the values of the seeds."""
        seeds = float(np.var(over_seeds, ddof=1)) / len(over_seeds) if len(over_seeds) > 1 else 0.0
        df = _degrees_of_freedom(rows, max(n_rows - 1, 1), seeds, len(over_seeds) - 1)
        return cls(math.sqrt(rows), math.sqrt(seeds), df, n_rows, len(over_seeds))

    @property
    def total(self) -> float:
        return math.hypot(self.rows, self.seeds)

    @property
    def margin(self) -> float:
        """Half the width of the 95% interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.df, 0.975)) * self.total if self.total else 0.0


def _minus_bias(a: Estimate, b: Estimate) -> tuple[float, float, float]:
    """The difference minus the likely noise bias of each, and the largest and the smallest it can then be."""
    plain = a.value - b.value
    if a.bias is None or b.bias is None or not a.metric.is_raised_by_noise:
        return plain, plain, plain
    likely = plain - a.bias.likely + b.bias.likely
    return likely, plain - a.bias.likely + b.bias.most, plain - a.bias.most + b.bias.likely


def _test(plain: float, bounds: tuple[float, float], error: StandardError) -> PairedTest:
    """Interval and p-value of a difference known up to its bounds, apart from the sampling of rows and seeds."""
    from scipy.special import stdtr

    margin = error.margin
    if not math.isfinite(plain) or not math.isfinite(margin):
        return PairedTest(plain, math.nan, math.nan, math.nan)
    nearest = max(bounds[0], -bounds[1], 0.0)  # from 0 to the nearer bound
    p_value = float(2 * stdtr(error.df, -nearest / error.total)) if nearest else 1.0
    needed = _needed(nearest, error) if 0.05 <= p_value < 0.5 else (None, None)
    return PairedTest(plain, bounds[0] - margin, bounds[1] + margin, p_value, error.total, error.df, *needed)


def _needed(size: float, error: StandardError) -> tuple[int | None, int | None]:
    """Rows, or seeds if these are the bottleneck, that would show a difference of this size with `POWER`."""
    from scipy.special import ndtri

    allowed = (size / float(ndtri(0.975) + ndtri(POWER))) ** 2  # variance
    if not allowed or not error.n_rows:
        return None, None
    if error.rows**2 < allowed and error.seeds:
        seeds = error.n_seeds * error.seeds**2 / (allowed - error.rows**2)
        return None, max(error.n_seeds + 1, math.ceil(seeds))
    return _two_digits(max(error.n_rows * error.rows**2 / allowed, error.n_rows + 1)), None


def _two_digits(count: float) -> int:
    """Rounded up to two significant digits.

    >>> _two_digits(1234.5)
    1300
    """
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step


def _degrees_of_freedom(rows: float, df_rows: float, seeds: float, df_seeds: float) -> float:
    """The degrees of freedom that give the margin at 95% of rows and seeds, each with its own.

    >>> round(_degrees_of_freedom(1.0, 299, 1.0, 2), 1), _degrees_of_freedom(1.0, 299, 0.0, 0)
    (2.8, 299)
    """
    from scipy.special import stdtridf, stdtrit

    if not seeds or not rows:
        return df_seeds if seeds else df_rows if rows else 1.0
    squares = rows * stdtrit(df_rows, 0.975) ** 2 + seeds * stdtrit(df_seeds, 0.975) ** 2
    found = float(stdtridf(0.975, math.sqrt(squares / (rows + seeds))))
    return min(max(found, min(df_rows, df_seeds)), max(df_rows, df_seeds))
