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

from ebmcal.metrics.calibration import Binning, Kind, assign_bins, events, folded_normal
from ebmcal.predictions.arrays import chunks

#: Draws of labels for a floor without a closed form, and the maximum number of entries (rows times classes) drawn.
N_FLOOR_DRAWS = 30
MAX_FLOOR_ENTRIES = 1 << 22


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


@dataclass(frozen=True)
class BinnedError:
    """A binned error's noise bias and standard error; the error is the mean of `influence` [n], signs held fixed."""

    bias: NoiseBias
    standard_error: float
    influence: np.ndarray


def binned_error(
    labels: np.ndarray, probs: np.ndarray, *, kind: Kind, n_bins: int, binning: Binning = "width"
) -> BinnedError:
    """The expected binned error of validated labels [n] and probabilities [n, C] with its uncertainty.

    With the signs of the gaps held fixed, the error is the mean over rows of Σ_b sign_b · (forecast − outcome).
    """
    n, n_events = len(labels), probs.shape[1] if kind == "class" else 1
    sums, influence = np.empty((3, n_events, n_bins)), np.zeros(n)
    for event, (forecast, outcome) in enumerate(events(labels, probs, kind)):
        bins = assign_bins(forecast, n_bins, binning)
        for row, weights in enumerate((None, forecast, outcome)):
            sums[row, event] = np.bincount(bins, weights=weights, minlength=n_bins)
        signs = np.sign(sums[1, event] - sums[2, event]) / n_events
        for part in chunks(n, 1):
            influence[part] += signs[bins[part]] * (forecast[part] - outcome[part])
    counts, forecasts, hits = sums.reshape(3, -1)[:, sums[0].ravel() > 0]
    value = float(np.abs(forecasts - hits).sum()) / (n * n_events)
    variance = max(float(influence @ influence) / n - value * value, 0.0)
    bias = _bias_of_bins(value, counts, forecasts, hits)
    return BinnedError(bias, float(np.sqrt(variance / max(n - 1, 1))), influence)


def _bias_of_bins(value: float, counts: np.ndarray, forecast: np.ndarray, hits: np.ndarray) -> NoiseBias:
    """Noise bias from counts, summed forecasts and hits [bins] of the non-empty bins."""
    added = binomial_deviation(counts, forecast / counts) / counts.sum()
    spread = np.sqrt(np.maximum(*(share * (1 - share / counts) for share in (np.minimum(forecast, counts), hits))))
    size = np.divide(np.abs(hits - forecast), spread, out=np.zeros(len(counts)), where=spread > 0)
    usual = np.sqrt(2 * np.log(1 + len(counts)))  # no bin of a calibrated model is likely to have a gap this large
    floor, most = float(added.sum()), float((added * _remaining_bias(np.maximum(size - usual, 0.0))).sum())
    likely = floor
    if value > floor:  # if the true gaps are the observed ones, all shrunk by the factor that reproduces the value
        from scipy.optimize import brentq

        def excess(share: float) -> float:
            return share * value + float((added * _remaining_bias(share * size)).sum()) - value

        likely = (1 - float(brentq(excess, 0.0, 1.0, xtol=1e-6))) * value
    return NoiseBias(value, floor, most, likely, has_bins=True)


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


def _remaining_bias(size: np.ndarray) -> np.ndarray:
    """The share of the noise bias left if the true gap is `size` standard errors: 1 at 0, 0 far away."""
    return np.maximum(folded_normal(size) - size, 0.0) / np.sqrt(2 / np.pi)  # rounding must not make it negative


def _hidden_error(seen: float, floor: float) -> float:
    """The error of gaps that are all λ standard errors and show as `seen`: floor · E|N(λ, 1)| / E|N(0, 1)|."""
    if seen <= floor or floor <= 0:
        return 0.0 if floor > 0 else seen
    from scipy.optimize import brentq

    unit = floor / np.sqrt(2 / np.pi)
    return float(unit * brentq(lambda size: folded_normal(size) - seen / unit, 0.0, seen / unit + 1))


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
