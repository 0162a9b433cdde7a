"""Binned calibration errors: expected (ECE) and maximum (MCE), class-wise and top-label, plain and debiased.

With B bins and, in bin b, n_b events with mean forecast conf_b and the share acc_b of events that occurred:

    ECE = Σ_b n_b/n · |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|  over bins that are not empty

`top_label` bins one event per row, "the predicted class is correct", with the confidence as its forecast. `class` bins
C events per row, "the label is y", with the forecast P(y|x), and takes the mean (ECE) or maximum (MCE) over classes.

Equal-width bins are [i/B, (i+1)/B), the last one closed, as comparison with the float64 numbers i/B gives them.
Equal-mass bins hold equal shares of the rows; equal values stay in one bin (see `bin_edges`).
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.metrics.classification import confidence_and_correct
from ebmcal.metrics.sufficient_statistics import SufficientStatistics
from ebmcal.predictions.arrays import as_labels_and_probs

Binning = Literal["width", "mass"]
Kind = Literal["top_label", "class"]

N_BINS = 20
#: More bins than this would hold a row or two each, and their tables would not fit in memory.
MAX_BINS = 10_000


def ece_classwise(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """Expected calibration error, class-wise: the mean over classes of the error of P(y|x).

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(ece_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]]), 4)
    0.15
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    total = 0.0
    for y in range(probs.shape[1]):
        forecast = np.ascontiguousarray(probs[:, y])
        bins = assign_bins(forecast, n_bins, binning)
        gaps = np.bincount(bins, weights=forecast - (labels == y))  # n_b · (conf_b − acc_b)
        total += np.abs(gaps).sum()
    return float(total / probs.size)


def ece_top_label(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """Expected calibration error of the confidence, the probability of the predicted class.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> ece_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    confidence, correct = confidence_and_correct(labels, probs)
    bins = assign_bins(confidence, n_bins, binning)
    gaps = np.bincount(bins, weights=confidence - correct)
    return float(np.abs(gaps).sum() / len(labels))


def ece_classwise_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """`ece_classwise` minus the expected effect of label noise in bins with few rows; see `_debiased`.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> ece_classwise_debiased([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.15
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return _debiased(bin_sums(labels, probs, "class", n_bins, binning))


def ece_top_label_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """`ece_top_label` minus the expected effect of label noise in bins with few rows; see `_debiased`.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(ece_top_label_debiased([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]]), 4)
    0.3544
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return _debiased(bin_sums(labels, probs, "top_label", n_bins, binning))


def mce_classwise(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """Maximum calibration error, class-wise: the largest gap of any bin of any class.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> mce_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.2
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return float(_largest_gap(bin_sums(labels, probs, "class", n_bins, binning)))


def mce_top_label(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = N_BINS, binning: Binning = "width"
) -> float:
    """Maximum calibration error of the confidence.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> mce_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return float(_largest_gap(bin_sums(labels, probs, "top_label", n_bins, binning)))


def _debiased(sums: np.ndarray) -> float:
    """ECE minus the expected effect of label noise, as Kumar et al. (2019) do for its square, from [3, events, bins].

    Given its forecasts, the gap d_b of bin b has a standard error of s_b² = acc_b(1 − acc_b)/n_b around the true gap.
    If d_b were the true gap, |gap| would be E|N(d_b, s_b²)| on average (a folded normal), so 2|d_b| minus that is the
    estimate, at least 0. The `uncertainty-calibration` package draws that expectation; this is its closed form.
    """
    from scipy.special import erf

    counts, gaps, hits = _per_bin(sums)
    shares = hits / counts
    spread = np.sqrt(np.maximum(shares * (1 - shares), 0.0) / counts)
    ratio = np.divide(gaps, spread, out=np.full_like(gaps, np.inf), where=spread > 0)
    folded = spread * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gaps * erf(ratio / np.sqrt(2))
    return max(float((counts * (2 * gaps - folded)).sum() / sums[0].sum()), 0.0)


def _largest_gap(sums: np.ndarray) -> np.ndarray:
    """The largest gap [...] of bin sums [..., 3, events, bins]."""
    return _per_bin(sums)[1].max(axis=(-1, -2))


def _per_bin(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (at least 1), absolute gaps and hits [..., events, bins] of bin sums [..., 3, events, bins]."""
    counts, forecast, hits = sums[..., 0, :, :], sums[..., 1, :, :], sums[..., 2, :, :]
    counts = np.maximum(counts, 1.0)  # an empty bin has no gap and no weight: 0/1 instead of 0/0
    return counts, np.abs(hits - forecast) / counts, hits


def events(labels: np.ndarray, probs: np.ndarray, kind: Kind) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Forecasts [n] and outcomes [n] (bool) of each event: one for `top_label`, C for `class`."""
    if kind == "top_label":
        yield confidence_and_correct(labels, probs)
    else:
        for y in range(probs.shape[1]):
            yield np.ascontiguousarray(probs[:, y]), labels == y


def bin_sums(labels: np.ndarray, probs: np.ndarray, kind: Kind, n_bins: int, binning: Binning) -> np.ndarray:
    """Counts, summed forecasts and hits of every bin of every event [3, events, bins]."""
    sums = np.zeros((3, probs.shape[1] if kind == "class" else 1, _checked_bins(n_bins, binning)))
    for index, (forecast, outcome) in enumerate(events(labels, probs, kind)):
        bins = assign_bins(forecast, n_bins, binning)
        for row, weights in enumerate((None, forecast, outcome)):
            sums[row, index] = np.bincount(bins, weights=weights, minlength=n_bins)
    return sums


def mce_statistics(
    labels: np.ndarray, probs: np.ndarray, *, kind: Kind, n_bins: int = N_BINS, binning: Binning = "width"
) -> SufficientStatistics | None:
    """MCE from the bin sums; None for equal-mass bins, which move with the resample."""
    if binning != "width":
        return None
    n_events = probs.shape[1] if kind == "class" else 1
    shape = (3, n_events, n_bins)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        forecast, outcome = map(np.stack, zip(*events(labels[part], probs[part], kind), strict=True))
        index = width_bins(forecast, n_bins) + np.arange(n_events)[:, None] * n_bins
        size = n_events * n_bins
        return np.concatenate([index, index + size, index + 2 * size]), np.concatenate(
            [np.ones_like(forecast), forecast, outcome]
        )

    def finish(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return _largest_gap(sums.reshape(*sums.shape[:-1], *shape))

    return SufficientStatistics(len(labels), 3 * n_events * n_bins, entries, finish, width=3 * n_events)


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
    kind: Kind = "top_label",
    class_index: int | None = None,
) -> Bins:
    """The data of a reliability diagram, of the predicted class (`top_label`) or of one class (`class`).

    `class_index=None` with kind `class` pools the C events of every row.

    >>> bins = reliability_bins([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]], n_bins=2)
    >>> bins.counts, bins.confidence, bins.accuracy
    (array([0, 2]), array([ nan, 0.75]), array([nan, 0.5]))
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    if kind not in ("top_label", "class"):
        raise unknown_name("kind", kind, ["top_label", "class"])
    n_classes = probs.shape[1]
    if class_index is not None and not 0 <= class_index < n_classes:
        raise EbmcalError(f"class_index is {class_index}; expected 0..{n_classes - 1} with {n_classes} classes.")
    if kind == "top_label" or class_index is None:
        forecast, outcome = map(np.concatenate, zip(*events(labels, probs, kind), strict=True))
    else:
        forecast, outcome = np.ascontiguousarray(probs[:, class_index]), labels == class_index
    edges = bin_edges(forecast, n_bins, binning)
    codes = assign_bins(forecast, n_bins, binning)
    counts, *sums = (np.bincount(codes, w, minlength=len(edges) - 1) for w in (None, forecast, outcome))
    filled = np.where(counts > 0, counts, np.nan)
    confidence, share = (part / filled for part in sums)
    return Bins(edges, counts, confidence, share, *wilson(sums[1], filled), share - confidence)


def wilson(hits: np.ndarray, counts: np.ndarray, z: float = 1.959963984540054) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share (95% unless `z` is given); it has a width at 0 and 1, unlike the normal one.

    >>> low, high = wilson(np.array([10.0]), np.array([10.0]))
    >>> low.round(3), high
    (array([0.722]), array([1.]))
    """
    share, spread = hits / counts, z * z / counts
    middle = (share + spread / 2) / (1 + spread)
    margin = np.sqrt(spread * share * (1 - share) + spread * spread / 4) / (1 + spread)
    return np.clip(middle - margin, 0, 1), np.clip(middle + margin, 0, 1)


def assign_bins(values: np.ndarray, n_bins: int, binning: Binning) -> np.ndarray:
    """The bin of each value [n].

    >>> assign_bins(np.array([0.0, 0.3, 1.0]), 2, "mass")
    array([0, 1, 1])
    """
    _checked_bins(n_bins, binning)
    if binning == "width":
        return width_bins(values, n_bins)
    return np.searchsorted(bin_edges(values, n_bins, binning)[1:-1], values, side="right")


def bin_edges(values: np.ndarray, n_bins: int, binning: Binning) -> np.ndarray:
    """Edges from 0 to 1 of the bins of values [n].

    Equal-mass bin i starts at row ⌊i·n/B⌋ of the sorted values, so with uneven n the bins differ by at most one row.
    Equal values are never split, so there may be fewer bins than requested.

    >>> bin_edges(np.array([0.1, 0.2, 0.3, 0.4]), 2, "mass")
    array([0. , 0.3, 1. ])
    """
    _checked_bins(n_bins, binning)
    if binning == "width":
        return np.arange(n_bins + 1) / n_bins
    starts = np.linspace(0, len(values), n_bins + 1).astype(np.intp)[1:-1]
    inner = np.unique(np.partition(values, starts)[starts]) if len(starts) else values[:0]
    return np.concatenate([[0.0], inner[inner > values.min()], [1.0]])


def width_bins(values: np.ndarray, n_bins: int) -> np.ndarray:
    """The equal-width bin of each value, by multiplication instead of a search.

    >>> width_bins(np.array([0.0, 0.15, 1.0]), 20)
    array([ 0,  3, 19], dtype=int32)
    """
    factor = _safe_factor(n_bins)
    if factor is None:
        return np.searchsorted(np.arange(1, n_bins) / n_bins, values, side="right")
    bins = (values * (n_bins * factor)).astype(np.int32)
    if factor > 1:
        bins //= factor
    return np.minimum(bins, n_bins - 1, out=bins)


@functools.lru_cache(maxsize=64)
def _safe_factor(n_bins: int) -> int | None:
    """The smallest k for which ⌊value · (B·k)⌋ // k is the bin of every float64; None if there is no small one.

    Multiplication rounds: with 20 bins, the float before 9/20 times 20 is 9.0. Rounding is monotone, so only each edge
    and the float before it can fall into the wrong bin, and times 60 they do not.
    """
    bins = np.arange(1, n_bins)
    edges = bins / n_bins
    below = np.nextafter(edges, 0.0)
    for k in range(1, 200):
        if np.all(edges * (n_bins * k) >= bins * k) and np.all(below * (n_bins * k) < bins * k):
            return k
    return None


def _checked_bins(n_bins: int, binning: str) -> int:
    """`n_bins`, or an error for an invalid number or kind of bins."""
    if not isinstance(n_bins, int | np.integer) or isinstance(n_bins, bool) or not 1 <= n_bins <= MAX_BINS:
        raise EbmcalError(f"n_bins is {n_bins!r}; expected a whole number from 1 to {MAX_BINS:,}.")
    if binning not in ("width", "mass"):
        raise unknown_name("binning", str(binning), ["width", "mass"])
    return int(n_bins)
