"""Binned calibration errors: expected (ECE) and maximum (MCE), class-wise and top-label, plain and debiased.

With B bins and, in bin b, n_b events forecast with mean probability conf_b of which the share acc_b came true:

    ECE = Σ_b n_b/n · |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|  over bins that are not empty

`top_label` bins one event a row, "the predicted class is right", forecast with the row's confidence. `class` bins C
events a row, "the label is y", forecast with P(y|x); the mean over classes (ECE) or the largest (MCE) is taken.

Equal-width bins are [i/B, (i+1)/B), the last one closed: what comparing with the float64 numbers i/B says, so 0.15
of 20 bins is in bin 3 and the float before it in bin 2. Equal-mass bins hold equal shares of the rows, except that
equal numbers are never parted.

Top to bottom: the metrics, the sums they are made of, reliability bins as data, events, and the bin of a number.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.metrics.sums import Sums, top_label
from ebmcal.predictions.arrays import CHUNK_ENTRIES, SUM_TOLERANCE, as_labels_and_probs, chunks

Binning = Literal["width", "mass"]
Kind = Literal["top_label", "class"]
FinishParts = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # parts [..., 3, events, bins], n, events


def ece_classwise(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Expected calibration error, class-wise: the mean over classes of the error of P(y|x).

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> ece_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.15
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return ece_sums(labels, probs, kind="class", n_bins=n_bins, binning=binning).value()


def ece_top_label(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Expected calibration error of the predicted class's probability.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> ece_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return ece_sums(labels, probs, kind="top_label", n_bins=n_bins, binning=binning).value()


def ece_classwise_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """`ece_classwise` less the part that comes from few rows in a bin; see `debiased_sums`.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> ece_classwise_debiased([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.15
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return debiased_sums(labels, probs, kind="class", n_bins=n_bins, binning=binning).value()


def ece_top_label_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """`ece_top_label` less the part that comes from few rows in a bin; see `debiased_sums`.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(ece_top_label_debiased([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]]), 4)
    0.3544
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return debiased_sums(labels, probs, kind="top_label", n_bins=n_bins, binning=binning).value()


def mce_classwise(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Maximum calibration error, class-wise: the largest gap of any bin of any class.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> mce_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.2
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return mce_sums(labels, probs, kind="class", n_bins=n_bins, binning=binning).value()


def mce_top_label(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Maximum calibration error of the predicted class's probability.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> mce_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return mce_sums(labels, probs, kind="top_label", n_bins=n_bins, binning=binning).value()


def ece_sums(labels: np.ndarray, probs: np.ndarray, *, kind: Kind, n_bins: int, binning: Binning) -> Sums:
    """ECE from one sum a bin, of (forecast − outcome): dividing by n_b and weighing by n_b/n cancel."""
    n_events, codes = _binned(probs, labels, kind, n_bins, binning)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        forecast, outcome = forecasts(labels, probs, part, kind)
        return codes(forecast), forecast - outcome

    def finish(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.abs(sums).sum(axis=-1) / (n * n_events)

    finer = safe_refinement(n_bins) if kind == "class" and binning == "width" else None
    add_up = None
    if finer is not None and _quick_pays(n_events, n_bins * finer):
        add_up = _quick_classwise_sums(labels, probs, n_bins, finer)
    return Sums(len(labels), n_events, n_events * n_bins, entries, finish, add_up)


def _quick_pays(n_classes: int, n_fine: int) -> bool:
    """Few enough fine bins: a probability that rounding left a little above 1 is in the slot after the last one."""
    return n_fine * (1 + SUM_TOLERANCE) < n_fine + 1 and n_classes * n_fine <= CHUNK_ENTRIES


def _quick_classwise_sums(
    labels: np.ndarray, probs: np.ndarray, n_bins: int, finer: int
) -> Callable[[slice], np.ndarray]:
    """The same class-wise sums with fewer passes over the rows, for "class-wise ECE" in benchmarks/metrics.json.

    Rows stay row-major, outcomes are counted instead of subtracted, and the refinement of `width_codes` and the closed
    last bin are undone on the sums instead of on the codes.
    """
    n_classes, n_fine = probs.shape[1], n_bins * finer
    n_slots = n_fine + 1  # a probability of 1 has a slot of its own for now
    size = n_classes * n_slots
    most = next(chunks(len(labels), n_classes)).stop  # rows in a chunk
    offsets = np.tile(np.arange(n_classes, dtype=np.int32) * n_slots, most)
    starts = np.arange(most) * n_classes

    def add_up(part: slice) -> np.ndarray:
        forecast = probs[part].ravel()
        codes = (forecast * n_fine).astype(np.int32)
        codes += offsets[: len(codes)]
        hits = codes.take(starts[: part.stop - part.start] + labels[part])
        fine = np.bincount(codes, weights=forecast, minlength=size) - np.bincount(hits, minlength=size)
        by_class = fine.reshape(n_classes, n_slots)
        by_class[:, -2] += by_class[:, -1]
        return by_class[:, :-1].reshape(n_classes * n_bins, finer).sum(axis=1)

    return add_up


def debiased_sums(labels: np.ndarray, probs: np.ndarray, *, kind: Kind, n_bins: int, binning: Binning) -> Sums:
    """ECE with the expected effect of label noise taken off, as Kumar et al. (2019) do for its square.

    Given its confidences, bin b's gap d_b wavers about the truth with s_b² = acc_b(1 − acc_b)/n_b. Plugging d_b in
    for the truth, |gap| would come out as E|N(d_b, s_b²)| (a folded normal), so twice |d_b| less that is the estimate.
    Below zero it is zero. The `uncertainty-calibration` package draws that expectation; here it is in closed form.
    """

    def finish(parts: np.ndarray, n: np.ndarray, n_events: int) -> np.ndarray:
        from scipy.special import erf

        counts, gaps, hits = _per_bin(parts)
        shares = hits / counts
        spread = np.sqrt(np.maximum(shares * (1 - shares), 0.0) / counts)
        ratio = np.divide(gaps, spread, out=np.full_like(gaps, np.inf), where=spread > 0)
        folded = spread * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gaps * erf(ratio / np.sqrt(2))
        errors = (counts * (2 * gaps - folded)).sum(axis=(-1, -2)) / (n * n_events)
        return np.maximum(errors, 0.0)

    return part_sums(labels, probs, kind=kind, n_bins=n_bins, binning=binning, finish=finish)


def mce_sums(labels: np.ndarray, probs: np.ndarray, *, kind: Kind, n_bins: int, binning: Binning) -> Sums:
    """MCE from the counts and gaps of the bins."""

    def finish(parts: np.ndarray, n: np.ndarray, n_events: int) -> np.ndarray:
        return _per_bin(parts)[1].max(axis=(-1, -2))

    return part_sums(labels, probs, kind=kind, n_bins=n_bins, binning=binning, finish=finish)


def _per_bin(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (at least 1), absolute gaps and hits [..., events, bins] of parts [..., 3, events, bins]."""
    counts, forecast, hits = parts[..., 0, :, :], parts[..., 1, :, :], parts[..., 2, :, :]
    held = np.maximum(counts, 1.0)  # an empty bin has no gap and no weight: 0/1 instead of 0/0
    return held, np.abs(hits - forecast) / held, hits


def part_sums(
    labels: np.ndarray,
    probs: np.ndarray,
    *,
    kind: Kind,
    n_bins: int,
    binning: Binning,
    finish: FinishParts = lambda parts, n, n_events: parts,
) -> Sums:
    """Sums of counts, forecast probabilities and outcomes of every bin: [3, events, bins] once reshaped."""
    n_events, codes = _binned(probs, labels, kind, n_bins, binning)
    size = n_events * n_bins

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        forecast, outcome = forecasts(labels, probs, part, kind)
        columns = codes(forecast)
        return np.concatenate([columns, columns + size, columns + 2 * size]), np.concatenate(
            [np.ones_like(forecast), forecast, outcome.astype(np.float64)]
        )

    def finish_sums(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return finish(sums.reshape(*sums.shape[:-1], 3, n_events, n_bins), n, n_events)

    return Sums(len(labels), 3 * n_events, 3 * size, entries, finish_sums)


def _binned(
    probs: np.ndarray, labels: np.ndarray, kind: Kind, n_bins: int, binning: Binning
) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    """The number of events a row, and a function from forecast probabilities [k, rows] to event · n_bins + bin."""
    checked_bins(n_bins, binning)
    n_events = probs.shape[1] if kind == "class" else 1
    offsets = np.arange(n_events)[:, None] * n_bins
    if binning == "width":
        return n_events, lambda forecast: width_codes(forecast, n_bins) + offsets
    edges = _mass_edges(labels, probs, kind, n_bins)
    return n_events, lambda forecast: np.stack(list(map(edge_codes, forecast, edges))) + offsets


def _mass_edges(labels: np.ndarray, probs: np.ndarray, kind: Kind, n_bins: int) -> list[np.ndarray]:
    if kind == "class":
        return [bin_edges(probs[:, index], n_bins, "mass") for index in range(probs.shape[1])]
    return [bin_edges(forecasts(labels, probs, slice(None), kind)[0][0], n_bins, "mass")]


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
