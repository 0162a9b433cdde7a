"""Calibration errors: expected (ECE) and maximum (MCE), class-wise and top-label, plain and debiased; smooth ECE.

Every function takes `labels` [n] and `probs` or `logits` [n, C]. With B bins and, in bin b, n_b events with mean
forecast conf_b and the share acc_b of events that occurred:

    ECE = Σ_b n_b/n · |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|  over bins that are not empty

`top_label` bins one event per row, "the predicted class is correct", with the confidence as its forecast. `class` bins
C events per row, "the label is y", with the forecast P(y|x), and takes the mean (ECE) or maximum (MCE) over classes.

Equal-width bins are [i/B, (i+1)/B), the last one closed, as comparison with the float64 numbers i/B gives them.
Equal-mass bins hold equal shares of the rows; equal values stay in one bin (see `bin_edges`).

Label noise raises calibration errors; by how much, and intervals that account for it, is at the end (`NoiseBias`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.metrics.classification import Finish, SufficientStatistics, confidence_and_correct, from_statistics
from ebmcal.predictions import as_labels_and_probs, chunks

Binning = Literal["width", "mass"]
Kind = Literal["top_label", "class"]

N_BINS = 20
#: So many standard errors around the mean contain 95% of a normal distribution.
Z_95 = 1.959963984540054
#: More bins than this would hold a row or two each, and their tables would not fit in memory.
MAX_BINS = 10_000
CHUNK_ROWS = 1 << 14  # binned at a time, so that temporaries stay in the processor's cache
#: Draws of labels for a noise floor without a closed form, and the maximum number of rows times classes drawn.
N_FLOOR_DRAWS = 30
MAX_FLOOR_ENTRIES = 1 << 22


def ece_classwise(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """Expected calibration error (ECE): |mean P(y|x) − share of y|, averaged over bins, then over classes y.

    >>> round(ece_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]]), 4)
    0.15
    """
    return _ece(*as_labels_and_probs(labels, logits=logits, probs=probs), "class", n_bins, binning)


def ece_top_label(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """ECE of the predicted class: |mean confidence − accuracy|, averaged over bins.

    >>> ece_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    return _ece(*as_labels_and_probs(labels, logits=logits, probs=probs), "top_label", n_bins, binning)


def _ece(labels: np.ndarray, probs: np.ndarray, kind: Kind, n_bins: int, binning: Binning) -> float:
    errors = []
    for forecast, outcome in events(labels, probs, kind):
        gaps = np.bincount(assign_bins(forecast, n_bins, binning), weights=forecast - outcome)  # n_b · (conf_b − acc_b)
        errors.append(np.abs(gaps).sum() / len(labels))
    return float(np.mean(errors))


def ece_classwise_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """`ece_classwise` minus its expected bias, which comes from bins with few rows.

    >>> ece_classwise_debiased([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.15
    """
    return _debiased(*as_labels_and_probs(labels, logits=logits, probs=probs), "class", n_bins, binning)


def ece_top_label_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """`ece_top_label` minus its expected bias, which comes from bins with few rows.

    >>> round(ece_top_label_debiased([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]]), 4)
    0.3544
    """
    return _debiased(*as_labels_and_probs(labels, logits=logits, probs=probs), "top_label", n_bins, binning)


@from_statistics
def mce_classwise(
    labels: np.ndarray, probs: np.ndarray, n_bins: int = N_BINS, binning: Binning = "width"
) -> SufficientStatistics:
    """Maximum calibration error (MCE): the largest |mean P(y|x) − share of y| of any bin of any class.

    >>> mce_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.2
    """
    return _largest_gap(labels, probs, "class", n_bins, binning)


@from_statistics
def mce_top_label(
    labels: np.ndarray, probs: np.ndarray, n_bins: int = N_BINS, binning: Binning = "width"
) -> SufficientStatistics:
    """MCE of the predicted class: the largest |mean confidence − accuracy| of any bin.

    >>> mce_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    return _largest_gap(labels, probs, "top_label", n_bins, binning)


@dataclass(frozen=True)
class Bins:
    """Reliability bins; every array has one entry per bin, `edges` one more. Empty bins hold NaN (and a count of 0).

    >>> reliability_bins([0, 0], probs=[[0.9, 0.1], [0.9, 0.1]], n_bins=2).counts
    array([0, 2])
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray  # mean forecast
    accuracy: np.ndarray  # share of events that occurred
    low: np.ndarray  # 95% Wilson interval of `accuracy`
    high: np.ndarray
    gap: np.ndarray  # accuracy - confidence: above zero is underconfident


def reliability_bins(
    labels: Any,
    *,
    logits: Any = None,
    probs: Any = None,
    n_bins: int = 10,
    binning: Binning = "width",
    class_index: int | None = None,
) -> Bins:
    """The data of a reliability diagram, of the predicted class or of one class (`class_index`).

    >>> bins = reliability_bins([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]], n_bins=2)
    >>> bins.counts, bins.confidence, bins.accuracy
    (array([0, 2]), array([ nan, 0.75]), array([nan, 0.5]))
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    n_classes = probs.shape[1]
    if class_index is None:
        forecast, outcome = confidence_and_correct(labels, probs)
    elif 0 <= class_index < n_classes:
        forecast, outcome = probs[:, class_index], labels == class_index
    else:
        raise EbmcalError(f"class_index is {class_index}; expected 0..{n_classes - 1} with {n_classes} classes.")
    edges, codes = bin_edges(forecast, n_bins, binning), assign_bins(forecast, n_bins, binning)
    counts, *sums = (np.bincount(codes, w, minlength=len(edges) - 1) for w in (None, forecast, outcome))
    filled = np.where(counts > 0, counts, np.nan)
    confidence, share = (part / filled for part in sums)
    return Bins(edges, counts, confidence, share, *wilson(sums[1], filled), share - confidence)


def wilson(hits: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95% interval of a share; it has a width at 0 and 1, unlike the normal one.

    >>> low, high = wilson(np.array([10.0]), np.array([10.0]))
    >>> low.round(3), high
    (array([0.722]), array([1.]))
    """
    share, spread = hits / counts, Z_95 * Z_95 / counts
    middle = (share + spread / 2) / (1 + spread)
    margin = np.sqrt(spread * share * (1 - share) + spread * spread / 4) / (1 + spread)
    return np.clip(middle - margin, 0, 1), np.clip(middle + margin, 0, 1)


def events(labels: np.ndarray, probs: np.ndarray, kind: Kind) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Forecasts [n] and outcomes [n] (bool) of each event: one for `top_label`, C for `class`."""
    if kind == "top_label":
        yield confidence_and_correct(labels, probs)
    else:
        for y in range(probs.shape[1]):
            yield np.ascontiguousarray(probs[:, y]), labels == y


def assign_bins(values: np.ndarray, n_bins: int, binning: Binning) -> np.ndarray:
    """The bin of each value [n].

    >>> assign_bins(np.array([0.0, 0.3, 1.0]), 2, "mass"), assign_bins(np.array([0.0, 0.15, 1.0]), 20, "width")
    (array([0, 1, 1]), array([ 0,  3, 19]))
    """
    _check_bins(n_bins, binning)
    if binning == "mass":
        return np.searchsorted(bin_edges(values, n_bins, binning)[1:-1], values, side="right")
    bins = np.empty(values.shape, dtype=np.intp)
    for start in range(0, len(values), CHUNK_ROWS):
        part = values[start : start + CHUNK_ROWS]
        found = np.floor(part * n_bins)
        # Multiplication rounds: with 20 bins, the float before 9/20 times 20 is 9.0. Compare with the edges themselves.
        found -= found / n_bins > part
        found += (found + 1) / n_bins <= part
        bins[start : start + CHUNK_ROWS] = np.minimum(found, n_bins - 1)
    return bins


def bin_edges(values: np.ndarray, n_bins: int, binning: Binning) -> np.ndarray:
    """Edges from 0 to 1 of the bins of values [n].

    Equal-mass bin i starts at row ⌊i·n/B⌋ of the sorted values, so with uneven n the bins differ by at most one row.
    Equal values are never split, so there may be fewer bins than requested.

    >>> bin_edges(np.array([0.1, 0.2, 0.3, 0.4]), 2, "mass")
    array([0. , 0.3, 1. ])
    """
    _check_bins(n_bins, binning)
    if binning == "width":
        return np.arange(n_bins + 1) / n_bins
    starts = np.linspace(0, len(values), n_bins + 1).astype(np.intp)[1:-1]
    inner = np.unique(np.partition(values, starts)[starts]) if len(starts) else values[:0]
    return np.concatenate([[0.0], inner[inner > values.min()], [1.0]])


def _check_bins(n_bins: int, binning: str) -> None:
    if not isinstance(n_bins, int | np.integer) or isinstance(n_bins, bool) or not 1 <= n_bins <= MAX_BINS:
        raise EbmcalError(f"n_bins is {n_bins!r}; expected a whole number from 1 to {MAX_BINS:,}.")
    if binning not in ("width", "mass"):
        raise unknown_name("binning", str(binning), ["width", "mass"])


def folded_normal(mean: np.ndarray) -> np.ndarray:
    """E|N(mean, 1)|."""
    from scipy.special import erf

    return mean * erf(mean / np.sqrt(2)) + np.sqrt(2 / np.pi) * np.exp(-mean * mean / 2)


def _debiased(labels: np.ndarray, probs: np.ndarray, kind: Kind, n_bins: int, binning: Binning) -> float:
    """ECE minus the expected effect of label noise, as Kumar et al. (2019) do for its square.

    Given its forecasts, the gap d_b of bin b has a standard error of s_b² = acc_b(1 − acc_b)/n_b around the true gap.
    If d_b were the true gap, |gap| would be E|N(d_b, s_b²)| on average (a folded normal), so 2|d_b| minus that is the
    estimate, at least 0. The `uncertainty-calibration` package draws that expectation; this is its closed form.
    """
    sums = []
    for forecast, outcome in events(labels, probs, kind):
        bins = assign_bins(forecast, n_bins, binning)
        sums.append([np.bincount(bins, weights, minlength=n_bins) for weights in (None, forecast, outcome)])
    counts, gaps, hits = _per_bin(np.moveaxis(np.array(sums, dtype=np.float64), 1, 0))
    shares = hits / counts
    spread = np.sqrt(np.maximum(shares * (1 - shares), 0.0) / counts)
    ratio = np.divide(gaps, spread, out=np.zeros_like(gaps), where=spread > 0)
    folded = np.where(spread > 0, spread * folded_normal(ratio), gaps)
    return max(float((counts * (2 * gaps - folded)).sum() / (len(labels) * len(sums))), 0.0)


def _largest_gap(
    labels: np.ndarray, probs: np.ndarray, kind: Kind, n_bins: int, binning: Binning
) -> SufficientStatistics:
    """MCE from counts, summed forecasts and hits [3, events, bins]."""

    def amounts(forecast: np.ndarray, outcome: np.ndarray) -> list[np.ndarray]:
        return [np.ones_like(forecast), forecast, outcome]

    def finish(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return _per_bin(sums)[1].max(axis=(-1, -2))

    return _bin_sums(labels, probs, kind, n_bins, binning, 3, amounts, finish)


def gap_statistics(
    labels: np.ndarray, probs: np.ndarray, kind: Kind, n_bins: int = N_BINS, binning: Binning = "width"
) -> SufficientStatistics:
    """The expected binned error from the gaps [1, events, bins]."""

    def finish(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.abs(sums).sum(axis=(-1, -2, -3)) / (n * sums.shape[-2])

    return _bin_sums(labels, probs, kind, n_bins, binning, 1, lambda forecast, outcome: [forecast - outcome], finish)


def _bin_sums(
    labels: np.ndarray, probs: np.ndarray, kind: Kind, n_bins: int, binning: Binning, n_amounts: int,
    amounts: Callable[[np.ndarray, np.ndarray], list[np.ndarray]], finish: Finish,
) -> SufficientStatistics:  # fmt: skip
    """Statistics from sums of some amounts of each row over bins [n_amounts, events, bins]; the bins are those of all
    rows."""
    edges = [bin_edges(forecast, n_bins, binning)[1:-1] for forecast, _ in events(labels, probs, kind)]
    shape = (n_amounts, len(edges), n_bins)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        index, found = [], []
        for event, (forecast, outcome) in enumerate(events(labels[part], probs[part], kind)):
            bins = event * n_bins + np.searchsorted(edges[event], forecast, side="right")
            index += [bins + i * len(edges) * n_bins for i in range(n_amounts)]
            found += amounts(forecast, outcome)
        return np.stack(index), np.stack(found)

    return SufficientStatistics(len(labels), shape, entries, finish, width=n_amounts * len(edges))


def _per_bin(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (at least 1), absolute gaps and hits [..., events, bins] of bin sums [..., 3, events, bins]."""
    counts, forecast, hits = np.moveaxis(sums, -3, 0)
    counts = np.maximum(counts, 1.0)  # an empty bin has no gap and no weight: 0/1 instead of 0/0
    return counts, np.abs(hits - forecast) / counts, hits


_CELLS = 1024  # of the grid of the smooth error
_HALVINGS = 9  # then one step along the chord: the result to about 1e-5


@from_statistics
def smooth_ece(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Calibration error of the confidence with kernel smoothing instead of bins (Błasiok & Nakkiran 2023).

    With c_i the confidence of row i, a_i whether it is correct, and K_σ the Gaussian kernel reflected at 0 and 1,

        smECE_σ = ∫₀¹ |1/n Σ_i (c_i − a_i) K_σ(t, c_i)| dt        and the smooth ECE is smECE_σ where smECE_σ = σ.

    >>> round(smooth_ece([0, 0], probs=[[0.75, 0.25], [0.25, 0.75]]), 2)
    0.25
    """
    confidence, correct = confidence_and_correct(labels, probs)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        # Residuals c_i − a_i are split between the two grid points around c_i in proportion to nearness.
        place = np.minimum(confidence[part], 1.0) * _CELLS
        cell = np.minimum(place.astype(np.intp), _CELLS - 1)
        residual, share = confidence[part] - correct[part], place - cell
        return np.stack([cell, cell + 1]), np.stack([residual * (1 - share), residual * share])

    return SufficientStatistics(len(labels), (_CELLS + 1,), entries, _fixed_point, width=2)


def _fixed_point(residuals: np.ndarray, n: np.ndarray) -> np.ndarray:
    """smECE [...] of residuals on the grid [..., cells + 1]: bisection for σ = smECE_σ, which decreases in σ."""
    from scipy.fft import dct, idct

    ends = residuals / np.asarray(n)[..., None]
    ends[..., [0, -1]] *= 2.0  # a point on the mirror coincides with its image
    cosines = dct(ends, type=1, axis=-1)

    def excess(sigma: np.ndarray) -> np.ndarray:
        # Reflection makes the kernel diagonal in cosines, where the k-th is multiplied by exp(−(πkσ)²/2).
        waves = np.pi * np.arange(_CELLS + 1) * np.asarray(sigma)[..., None]
        smoothed = np.abs(idct(cosines * np.exp(-(waves**2) / 2), type=1, axis=-1))
        return smoothed.sum(axis=-1) - (smoothed[..., 0] + smoothed[..., -1]) / 2 - sigma  # the trapezoid rule

    low, high = np.zeros(ends.shape[:-1]), np.ones(ends.shape[:-1])
    over, under = excess(low), excess(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = excess(middle)
        up = found > 0
        low, over = np.where(up, middle, low), np.where(up, found, over)
        high, under = np.where(up, high, middle), np.where(up, under, found)
    return low + (high - low) * over / (over - under)  # where the chord crosses zero


@dataclass(frozen=True)
class NoiseBias:
    """How much label noise adds to a calibration error on average: `floor` if it is calibrated, at `most`, `likely`.

    A binned error T = Σ_b |gap of bin b| estimates θ = Σ_b |true gap of bin b|, the error of the same model in the same
    bins on infinitely many rows. Noise is added before the absolute value is taken, so T lies above θ on average, by a
    bias that is bounded for any true gaps (X hits among the m rows of a bin, a the sum of their forecasts):

        θ ≤ E T ≤ θ + floor,        floor = Σ_b E|X − a|  with X binomial(m, a/m)

    The noise floor is the expected error of a perfectly calibrated model with these probabilities. For a true share q
    above the forecast E|X − a| − |mq − a| = 2 E max(a − X, 0), which decreases in q, and forecasts that vary within the
    bin lower it too (Hoeffding 1956). The interval of θ, with `se` the standard error of T, is

        low  = T − z·se − floor of the bins that are not clearly miscalibrated   (noise does not raise a large gap)
        high = the largest θ compatible with T + z·se: gaps of equal size in standard errors are hidden best by noise

    and may lie entirely below T (coverage: benchmarks/coverage.py). Errors without such bins (smooth, maximum) have a
    simulated floor and the plain bounds.
    """

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
    """From the mean of an error over labels drawn for the rows, or for a sample of them and scaled with 1/√n."""
    n, n_classes = probs.shape
    rng = np.random.default_rng(5)
    size = max(1, min(n, 1 << 15, MAX_FLOOR_ENTRIES // n_classes))
    sample = probs if size == n else probs[rng.choice(n, size, replace=False)]
    steps = np.cumsum(sample, axis=1)
    steps[:, -1] = np.inf  # rounding must not leave a draw beyond the last class
    draws = ((steps > rng.random((size, 1))).argmax(axis=1) for _ in range(N_FLOOR_DRAWS))
    floor = float(np.mean([function(drawn, probs=sample, **options) for drawn in draws]) * np.sqrt(size / n))
    return NoiseBias(value, floor, floor, floor)
