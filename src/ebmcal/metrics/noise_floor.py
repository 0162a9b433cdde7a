"""How much label noise adds to a calibration error, and confidence intervals that account for it.

A binned error T = Σ_b |gap of bin b| estimates θ = Σ_b |true gap of bin b|: the error of the same model in the same
bins on infinitely many rows. Noise in a bin is added before the absolute value is taken, so T lies above θ on average.
The bias is bounded for any true gaps (X hits among the m rows of a bin, a the sum of their forecasts):

    θ ≤ E T ≤ θ + floor,        floor = Σ_b E|X − a|  with X binomial(m, a/m)

The noise floor is the expected error of a perfectly calibrated model with these probabilities. The bound is exact: for
a true share q above the forecast E|X − a| − |mq − a| = 2 E max(a − X, 0), which decreases in q, and forecasts that vary
within the bin lower it too (Hoeffding 1956). The interval uses both sides of it, with `se` the standard error of T:

    low  = T − z·se − floor of the bins that are not clearly miscalibrated   (noise does not raise a large gap)
    high = the largest θ compatible with T + z·se: gaps of equal size in standard errors are hidden best by noise

So the interval is for θ and may lie entirely below T. `python benchmarks/coverage.py` measures its coverage. Errors
without such bins (smooth, maximum) have a simulated floor, from labels drawn from the probabilities, and the plain
bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.metrics.calibration import Binning, Kind, assign_bins, events
from ebmcal.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from ebmcal.predictions.arrays import chunks

#: Draws of labels for a floor without a closed form, and the maximum number of entries (rows times classes) drawn.
N_FLOOR_DRAWS = 30
MAX_FLOOR_ENTRIES = 1 << 22

_FOLDED_AT_0 = np.sqrt(2 / np.pi)  # E|N(0, 1)|


@dataclass(frozen=True)
class NoiseBias:
    """How much noise adds to a calibration error on average: `floor` if it is calibrated, at `most`, and `likely`."""

    value: float  # the plain error, raised by noise
    floor: float
    most: float
    likely: float
    has_bins: bool = False  # whether the upper bound for gaps of equal size applies

    def interval(self, margin: float) -> tuple[float, float]:
        """The interval of the true error; `margin` is z standard errors of the value.

        >>> low, high = NoiseBias(0.055, floor=0.06, most=0.06, likely=0.05, has_bins=True).interval(0.02)
        >>> low, round(high, 3)
        (0.0, 0.054)
        """
        low, high = max(self.value - margin - self.most, 0.0), min(self.value + margin, 1.0)
        return low, max(_hidden_error(high, self.floor), margin) if self.has_bins else high


def mean_bias(several: list[NoiseBias]) -> NoiseBias:
    """The noise bias of a mean of errors."""
    parts = np.mean([(b.value, b.floor, b.most, b.likely) for b in several], axis=0)
    value, floor, most, likely = map(float, parts)
    return NoiseBias(value, floor, most, likely, several[0].has_bins)


@dataclass(frozen=True)
class BinnedError:
    """A binned error with its noise bias, its standard error, and its linearisation as a mean over rows."""

    bias: NoiseBias
    standard_error: float
    statistics: SufficientStatistics


def binned_error(
    labels: np.ndarray, probs: np.ndarray, *, kind: Kind, n_bins: int, binning: Binning = "width"
) -> BinnedError:
    """The expected binned error of validated labels [n] and probabilities [n, C] with its uncertainty.

    With the signs of the gaps held fixed, the error is the mean over rows of Σ_b sign_b · (forecast − outcome).
    """
    n, n_events = len(labels), probs.shape[1] if kind == "class" else 1
    sums, influence = np.empty((n_events, 3, n_bins)), np.zeros(n)
    for event, (forecast, outcome) in enumerate(events(labels, probs, kind)):
        bins = assign_bins(forecast, n_bins, binning)
        for row, weights in enumerate((None, forecast, outcome)):
            sums[event, row] = np.bincount(bins, weights=weights, minlength=n_bins)
        signs = np.sign(sums[event, 1] - sums[event, 2])
        for part in chunks(n, 1):
            influence[part] += signs[bins[part]] * (forecast[part] - outcome[part])
    influence /= n_events
    parts = np.moveaxis(sums, 1, 0).reshape(3, -1)
    value = float(np.abs(parts[1] - parts[2]).sum()) / (n * n_events)
    variance = max(float(influence @ influence) / n - value * value, 0.0)
    bias = _bias_of_bins(value, parts[:, parts[0] > 0], n * n_events)
    return BinnedError(bias, float(np.sqrt(variance / max(n - 1, 1))), mean_statistics(influence))


def _bias_of_bins(value: float, parts: np.ndarray, total: int) -> NoiseBias:
    """Noise bias from counts, summed forecasts and hits [3, bins] of the non-empty bins; `total` events."""
    counts, forecast, hits = parts
    added = binomial_deviation(counts, forecast / counts) / total
    spread = np.sqrt(np.maximum(*(share * (1 - share / counts) for share in (np.minimum(forecast, counts), hits))))
    size = np.divide(np.abs(hits - forecast), spread, out=np.zeros(len(counts)), where=spread > 0)
    usual = np.sqrt(2 * np.log(1 + len(counts)))  # no bin of a calibrated model is likely to have a gap this large
    most = float((added * _remaining_bias(np.maximum(size - usual, 0.0))).sum())
    return NoiseBias(value, float(added.sum()), most, _likely_bias(value, added, size), has_bins=True)


def _likely_bias(value: float, added: np.ndarray, size: np.ndarray) -> float:
    """The noise bias if the true gaps are the observed ones, all shrunk by the factor that reproduces the value."""
    floor = float(added.sum())
    if value <= floor:
        return floor
    from scipy.optimize import brentq

    share = brentq(lambda s: s * value + float((added * _remaining_bias(s * size)).sum()) - value, 0.0, 1.0, xtol=1e-6)
    return (1 - float(share)) * value


def binomial_deviation(counts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """E|X − E X| of binomial X, by de Moivre's formula.

    >>> binomial_deviation(np.array([1.0, 2.0]), np.array([0.5, 0.5]))
    array([0.5, 0.5])
    """
    from scipy.special import gammaln, xlog1py, xlogy

    shares = np.clip(shares, 0.0, 1.0)
    k = np.minimum(np.floor(counts * shares) + 1, counts)
    log_ways = gammaln(counts + 1) - gammaln(k + 1) - gammaln(counts - k + 1)
    deviation = 2 * k * np.exp(log_ways + xlogy(k, shares) + xlog1py(counts - k + 1, -shares))
    return np.where((shares > 0) & (shares < 1), deviation, 0.0)


def _folded(size: np.ndarray) -> np.ndarray:
    """E|N(size, 1)|."""
    from scipy.special import erf

    return size * erf(size / np.sqrt(2)) + _FOLDED_AT_0 * np.exp(-size * size / 2)


def _remaining_bias(size: np.ndarray) -> np.ndarray:
    """The share of the noise bias left if the true gap is `size` standard errors: 1 at 0, 0 far away."""
    return np.maximum(_folded(size) - size, 0.0) / _FOLDED_AT_0  # rounding must not make it negative


def _hidden_error(seen: float, floor: float) -> float:
    """The error of gaps that are all λ standard errors and show as `seen`: floor · E|N(λ, 1)| / E|N(0, 1)|."""
    if seen <= floor or floor <= 0:
        return 0.0 if floor > 0 else seen
    from scipy.optimize import brentq

    unit = floor / _FOLDED_AT_0
    return float(unit * brentq(lambda size: _folded(size) - seen / unit, 0.0, seen / unit + 1))


def simulated_bias(value: float, function: Callable[..., float], probs: np.ndarray, **options: Any) -> NoiseBias:
    """The floor of any calibration error: the mean of its `function` over labels drawn from the probabilities.

    With very many rows a sample of them is used, and the floor is scaled to all rows with 1/√n.
    """
    n, n_classes = probs.shape
    rng = np.random.default_rng(5)
    size = max(1, min(n, 1 << 15, MAX_FLOOR_ENTRIES // n_classes))
    sample = probs if size == n else probs[rng.choice(n, size, replace=False)]
    steps = np.cumsum(sample, axis=1)
    steps[:, -1] = np.inf  # rounding must not leave a draw beyond the last class
    draws = ((steps > rng.random((size, 1))).argmax(axis=1) for _ in range(N_FLOOR_DRAWS))
    floor = float(np.mean([function(drawn, probs=sample, **options) for drawn in draws]) * np.sqrt(size / n))
    return NoiseBias(value, floor, floor, floor)
