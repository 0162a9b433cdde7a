"""Events and the bins of their probabilities: what a row forecasts, the bin of a number, bins of a reliability plot.

`top_label` has one event a row, "the predicted class is right", forecast with the row's confidence. `class` has C
events a row, "the label is y", forecast with P(y|x).

Equal-width bins are [i/B, (i+1)/B), the last one closed: what comparing with the float64 numbers i/B says, so 0.15
of 20 bins is in bin 3 and the float before it in bin 2. Equal-mass bins hold equal shares of the rows, except that
equal numbers are never parted.

Below `calibration`, whose errors are made of these, and plots, which draw them.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.metrics.sums import top_label
from ebmcal.predictions.arrays import as_labels_and_probs

Binning = Literal["width", "mass"]
Kind = Literal["top_label", "class"]


@dataclass(frozen=True)
class Bins:
    """Reliability bins; every array has one entry a bin, `edges` one more. Empty bins hold NaN (and a count of 0).

    >>> reliability_bins([0, 0], probs=[[0.9, 0.1], [0.9, 0.1]], n_bins=2).counts
    array([0, 2])
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray  # mean forecast
    accuracy: np.ndarray  # share of events that came true
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
    """The data of a reliability plot, of the predicted class (`top_label`) or of one class (`class`).

    `class_index=None` with kind `class` pools the C events of every row.

    >>> bins = reliability_bins([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]], n_bins=2)
    >>> bins.counts, bins.confidence, bins.accuracy
    (array([0, 2]), array([ nan, 0.75]), array([nan, 0.5]))
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    if kind not in ("top_label", "class"):
        raise unknown_name("kind", kind, ["top_label", "class"])
    forecast, outcome = _events(labels, probs, kind, class_index)
    edges = bin_edges(forecast, n_bins, binning)
    codes = width_codes(forecast, n_bins) if binning == "width" else edge_codes(forecast, edges)
    sums = [np.bincount(codes, weights=weights, minlength=len(edges) - 1) for weights in (None, forecast, outcome)]
    return _bins(edges, *sums)


def _events(
    labels: np.ndarray, probs: np.ndarray, kind: Kind, class_index: int | None
) -> tuple[np.ndarray, np.ndarray]:
    if kind == "top_label" or class_index is None:
        forecast, outcome = forecasts(labels, probs, slice(None), kind)
        return forecast.ravel(), outcome.ravel()
    if not 0 <= class_index < probs.shape[1]:
        raise EbmcalError(
            f"class_index is {class_index}; with {probs.shape[1]} classes it must be 0..{probs.shape[1] - 1}."
        )
    return np.ascontiguousarray(probs[:, class_index]), labels == class_index


def _bins(edges: np.ndarray, counts: np.ndarray, forecast: np.ndarray, outcome: np.ndarray) -> Bins:
    held = np.where(counts > 0, counts, np.nan)
    low, high = wilson(outcome, held)
    return Bins(edges, counts, forecast / held, outcome / held, low, high, (outcome - forecast) / held)


def wilson(hits: np.ndarray, counts: np.ndarray, z: float = 1.959963984540054) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share: sane at 0 and at 1, where the usual one has no width (95% unless `z` is given).

    >>> low, high = wilson(np.array([10.0]), np.array([10.0]))
    >>> low.round(3), high
    (array([0.722]), array([1.]))
    """
    share, spread = hits / counts, z * z / counts
    middle = (share + spread / 2) / (1 + spread)
    reach = np.sqrt(spread * share * (1 - share) + spread * spread / 4) / (1 + spread)
    return np.clip(middle - reach, 0, 1), np.clip(middle + reach, 0, 1)


def forecasts(labels: np.ndarray, probs: np.ndarray, part: slice, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Forecast probabilities [k, rows] and outcomes [k, rows] (bool) of a slice of rows; k is 1 or C.

    Class-major, because reductions over classes are fast along axis 0 only.

    >>> forecasts(np.array([0]), np.array([[0.3, 0.7]]), slice(0, 1), "top_label")
    (array([[0.7]]), array([[False]]))
    """
    if kind == "top_label":
        confidence, predicted = top_label(probs[part])
        return confidence[None], (predicted == labels[part])[None]
    forecast = np.ascontiguousarray(probs[part].T)
    return forecast, labels[part] == np.arange(probs.shape[1])[:, None]


#: More bins than this would hold no more than a row or two each, and their tables would not fit in memory.
MAX_BINS = 10_000


def checked_bins(n_bins: int, binning: str = "width") -> None:
    """Refuse a number or kind of bins that is none."""
    if not isinstance(n_bins, int | np.integer) or isinstance(n_bins, bool) or not 1 <= n_bins <= MAX_BINS:
        raise EbmcalError(f"n_bins is {n_bins!r}; a whole number from 1 to {MAX_BINS:,} is needed.")
    if binning not in ("width", "mass"):
        raise unknown_name("binning", str(binning), ["width", "mass"])


def bin_edges(values: np.ndarray, n_bins: int, binning: Binning) -> np.ndarray:
    """Edges from 0 to 1 of the bins of values [n]; equal-mass bins may be fewer than asked where values repeat.

    >>> bin_edges(np.array([0.1, 0.2, 0.3, 0.4]), 2, "mass")
    array([0. , 0.3, 1. ])
    """
    checked_bins(n_bins, binning)
    if binning == "width":
        return np.arange(n_bins + 1) / n_bins
    starts = np.linspace(0, len(values), n_bins + 1).astype(np.intp)[1:-1]  # where each further bin begins, if sorted
    inner = np.unique(np.partition(values, starts)[starts]) if len(starts) else values[:0]
    return np.concatenate([[0.0], inner[inner > values.min()], [1.0]])


def edge_codes(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of each value by comparison with the inner edges.

    >>> edge_codes(np.array([0.0, 0.3, 1.0]), np.array([0.0, 0.3, 1.0]))
    array([0, 1, 1])
    """
    return np.searchsorted(edges[1:-1], values, side="right")


def width_codes(values: np.ndarray, n_bins: int) -> np.ndarray:
    """The equal-width bin of each value: `edge_codes`, at the price of a multiplication.

    >>> width_codes(np.array([0.0, 0.15, 1.0]), 20)
    array([ 0,  3, 19], dtype=int32)
    """
    finer = safe_refinement(n_bins)
    if finer is None:
        return edge_codes(values, bin_edges(values, n_bins, "width"))
    codes = (values * (n_bins * finer)).astype(np.int32)
    if finer > 1:
        codes //= finer
    if values.max() >= 1.0:
        np.minimum(codes, n_bins - 1, out=codes)
    return codes


@functools.lru_cache(maxsize=64)
def safe_refinement(n_bins: int) -> int | None:
    """The smallest k for which ⌊value · (B·k)⌋ // k is the bin of every float64; None if there is no small one.

    Multiplying rounds: of 20 bins, the float before 9/20 times 20 is 9.0. Rounding is monotone, so only each edge and
    the float before it can go wrong, and times 60 they do not.
    """
    bins = np.arange(1, n_bins)
    edges = bins / n_bins
    below = np.nextafter(edges, 0.0)
    for k in range(1, 200):
        if np.all(edges * (n_bins * k) >= bins * k) and np.all(below * (n_bins * k) < bins * k):
            return k
    return None
