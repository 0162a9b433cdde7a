"""Binned calibration errors: expected (ECE) and maximum (MCE), class-wise and top-label, plain and debiased.

With B bins and, in bin b, n_b events forecast with mean probability conf_b of which the share acc_b came true:

    ECE = Σ_b n_b/n · |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|  over bins that are not empty

`top_label` bins one event a row, "the predicted class is right", forecast with the row's confidence. `class` bins C
events a row, "the label is y", forecast with P(y|x); the mean over classes (ECE) or the largest (MCE) is taken.

Top to bottom: the metrics, and the sums they are made of. Events and bins are those of `bins`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ebmcal.metrics.bins import (
    Binning,
    Kind,
    bin_edges,
    checked_bins,
    edge_codes,
    forecasts,
    safe_refinement,
    width_codes,
)
from ebmcal.metrics.sums import Sums
from ebmcal.predictions.arrays import CHUNK_ENTRIES, SUM_TOLERANCE, as_labels_and_probs, chunks

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
