"""What chance adds to a calibration error, and intervals that know it.

A binned error T = Σ_b |gap of bin b| is meant to estimate θ = Σ_b |true gap of bin b|: the error that the same model
has in the same bins on endlessly many rows. Noise in a bin is added before the absolute value is taken, so T lies
above θ on average. How far is bounded, whatever the true gaps are (X hits among the m rows of a bin, a their summed
forecasts):

    θ ≤ E T ≤ θ + floor,        floor = Σ_b E|X − a|  with X binomial(m, a/m)

The floor is what a perfectly calibrated model shows on these very probabilities. The bound is exact: for a true share
q above the forecast E|X − a| − |mq − a| = 2 E max(a − X, 0), which falls as q rises, and forecasts that vary within
the bin lower it too (Hoeffding 1956). The interval uses both sides of it, with `se` the standard error of T over rows:

    low  = T − z·se − floor of the bins that are not surely off      (a bin far off is not pushed by chance)
    high = the largest θ that could show T + z·se: gaps of an even size in standard errors hide best behind noise

So the interval is of θ and may lie wholly below T, which chance has pushed up. `python benchmarks/coverage.py`
measures how often it holds θ; the table is in docs/intervals.md. Errors without such bins (smooth, maximum) have their
floor drawn: labels from the probabilities, and the plain bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.metrics.bins import Binning, Kind
from ebmcal.metrics.calibration import ece_sums, part_sums
from ebmcal.metrics.sums import Sums, mean_of_rows
from ebmcal.predictions.arrays import chunks

#: Draws of labels for a floor that has no closed form, and the entries (rows times classes) that are drawn at most.
N_FLOOR_DRAWS = 30
MAX_FLOOR_ENTRIES = 1 << 22

_FLAT = np.sqrt(2 / np.pi)  # E|N(0, 1)|


@dataclass(frozen=True)
class Chance:
    """What chance adds to a calibration error on average: `floor` if it is calibrated, at `most`, and `likely`."""

    value: float  # the plain error, which chance has raised
    floor: float
    most: float
    likely: float
    even: bool = False  # whether gaps that hide evenly behind the noise bound the error from above

    def ends(self, reach: float) -> tuple[float, float]:
        """The interval of the true error, `reach` being z standard errors of the value.

        >>> low, high = Chance(0.055, floor=0.06, most=0.06, likely=0.05, even=True).ends(0.02)
        >>> low, round(high, 3)
        (0.0, 0.054)
        """
        high = min(self.value + reach, 1.0)
        return max(self.value - reach - self.most, 0.0), max(_hidden(high, self.floor), reach) if self.even else high


def mean_chance(several: list[Chance]) -> Chance:
    """The chance of a mean of errors."""
    parts = np.mean([(c.value, c.floor, c.most, c.likely) for c in several], axis=0)
    value, floor, most, likely = map(float, parts)
    return Chance(value, floor, most, likely, several[0].even)


@dataclass(frozen=True)
class BinnedError:
    """A binned error with its chance, its standard error, and the sums whose mean over rows it is near itself."""

    chance: Chance
    standard_error: float
    sums: Sums


def binned_error(
    labels: np.ndarray, probs: np.ndarray, *, kind: Kind, n_bins: int, binning: Binning = "width"
) -> BinnedError:
    """How sure the binned error of checked labels [n] and probabilities [n, C] is.

    Near the rows at hand T is the mean over rows of ψ_i = Σ_b sign(gap_b) · (forecast − outcome) in bin b.
    """
    n = len(labels)
    parts = part_sums(labels, probs, kind=kind, n_bins=n_bins, binning=binning).totals().reshape(3, -1)
    signed = ece_sums(labels, probs, kind=kind, n_bins=n_bins, binning=binning)
    n_events = signed.width
    signs = np.sign(parts[1] - parts[2]) / n_events

    def influence(part: slice) -> np.ndarray:
        columns, gaps = signed.entries(part)
        return (signs[columns] * gaps).sum(axis=0)

    value = float(np.abs(parts[1] - parts[2]).sum()) / (n * n_events)
    squares = sum(float((influence(part) ** 2).sum()) for part in chunks(n, n_events))
    error = np.sqrt(max(squares / n - value * value, 0.0) / max(n - 1, 1))
    return BinnedError(_chance_of_bins(value, parts, n * n_events), float(error), mean_of_rows(n, n_events, influence))


def _chance_of_bins(value: float, parts: np.ndarray, total: int) -> Chance:
    """Counts, summed forecasts and hits [3, bins] → floor and biases; `total` events."""
    counts, forecast, hits = parts[:, parts[0] > 0]
    pushes = binomial_deviation(counts, forecast / counts) / total
    spread = np.sqrt(np.maximum(*(share * (1 - share / counts) for share in (np.minimum(forecast, counts), hits))))
    far = np.divide(np.abs(hits - forecast), spread, out=np.zeros(len(counts)), where=spread > 0)
    surely = np.sqrt(2 * np.log(1 + len(counts)))  # no bin of a calibrated model is likely to be as far off as this
    most = float((pushes * _share_left(np.maximum(far - surely, 0.0))).sum())
    return Chance(value, float(pushes.sum()), most, _likely(value, pushes, far), even=True)


def _likely(value: float, pushes: np.ndarray, far: np.ndarray) -> float:
    """The push of chance if the true gaps are those seen, all shrunk alike until they would show as the value does."""
    floor = float(pushes.sum())
    if value <= floor:
        return floor
    from scipy.optimize import brentq

    share = brentq(lambda s: s * value + float((pushes * _share_left(s * far)).sum()) - value, 0.0, 1.0, xtol=1e-6)
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
    found = 2 * k * np.exp(log_ways + xlogy(k, shares) + xlog1py(counts - k + 1, -shares))
    return np.where((shares > 0) & (shares < 1), found, 0.0)


def _folded(size: np.ndarray) -> np.ndarray:
    """E|N(size, 1)|."""
    from scipy.special import erf

    return size * erf(size / np.sqrt(2)) + _FLAT * np.exp(-size * size / 2)


def _share_left(size: np.ndarray) -> np.ndarray:
    """What is left of the push of chance where the true gap is `size` standard errors: 1 at 0, nothing far off."""
    return np.maximum(_folded(size) - size, 0.0) / _FLAT  # rounding must not take it below nothing


def _hidden(seen: float, floor: float) -> float:
    """The error of gaps that are all λ standard errors and show as `seen`: floor · E|N(λ, 1)| / E|N(0, 1)|."""
    if seen <= floor or floor <= 0:
        return 0.0 if floor > 0 else seen
    from scipy.optimize import brentq

    unit = floor / _FLAT
    return float(unit * brentq(lambda size: _folded(size) - seen / unit, 0.0, seen / unit + 1))


def drawn_chance(value: float, function: Callable[..., float], probs: np.ndarray, **options: Any) -> Chance:
    """The floor of any calibration error: the mean of its `function` over labels drawn from the probabilities.

    Of very many rows some are taken, and the floor is brought to all of them as noise goes, with 1/√n.
    """
    n, n_classes = probs.shape
    rng = np.random.default_rng(5)
    size = max(1, min(n, 1 << 15, MAX_FLOOR_ENTRIES // n_classes))
    some = probs if size == n else probs[rng.choice(n, size, replace=False)]
    steps = np.cumsum(some, axis=1)
    steps[:, -1] = np.inf  # rounding must not leave a draw beyond the last class
    draws = ((steps > rng.random((size, 1))).argmax(axis=1) for _ in range(N_FLOOR_DRAWS))
    floor = float(np.mean([function(drawn, probs=some, **options) for drawn in draws]) * np.sqrt(size / n))
    return Chance(value, floor, floor, floor)
