"""Proper scores of probabilities: negative log-likelihood and Brier, and what the Brier score is made of."""

from typing import Any

import numpy as np

from ebmcal.metrics.calibration import part_sums
from ebmcal.metrics.sums import Sums, mean_of_rows
from ebmcal.predictions.arrays import as_labels_and_probs

_TINY = np.finfo(np.float64).tiny


def nll(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Negative log-likelihood of the labels: the mean of −log P(label|x), in nats.

    A probability of exactly 0 under a label counts as the smallest float64, 2.2e-308 (708 nats), so that the mean
    stays a number: probabilities that were rounded before they were written hold such zeros.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(nll([1], probs=[[0.5, 0.5]]), 4)
    0.6931
    """
    return nll_sums(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def brier(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Brier score: the mean over rows of Σ_y (P(y|x) − [label is y])², from 0 to 2 for any number of classes.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> brier([1], probs=[[0.5, 0.5]])
    0.5
    """
    return brier_sums(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def brier_decomposition(labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20) -> dict[str, float]:
    """The Brier score of the class-wise binned forecast and the parts that it is made of (Murphy 1973).

    Each P(y|x) is replaced by the mean of its equal-width bin; for that forecast, summed over classes,

        binned_brier = calibration + refinement        refinement = uncertainty − resolution

    exactly, with calibration = Σ_b n_b/n (acc_b − conf_b)² and refinement = Σ_b n_b/n acc_b (1 − acc_b). `brier` is
    the score of the forecast as given; it is close to `binned_brier` when the bins are narrow.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> parts = brier_decomposition([0, 1], probs=[[0.9, 0.1], [0.9, 0.1]])
    >>> {name: round(value, 2) for name, value in parts.items()}
    {'brier': 0.82, 'binned_brier': 0.82, 'calibration': 0.32, 'refinement': 0.5, 'uncertainty': 0.5, 'resolution': 0.0}
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    sums = part_sums(labels, probs, kind="class", n_bins=n_bins, binning="width").totals()
    counts, forecast, hits = sums.reshape(3, probs.shape[1], n_bins)
    held, n = np.maximum(counts, 1.0), len(labels)
    calibration = float(((forecast - hits) ** 2 / held).sum() / n)
    refinement = float((hits * (1 - hits / held)).sum() / n)
    base = hits.sum(axis=1) / n
    uncertainty = float((base * (1 - base)).sum())
    return {
        "brier": brier_sums(labels, probs).value(),
        "binned_brier": calibration + refinement,
        "calibration": calibration,
        "refinement": refinement,
        "uncertainty": uncertainty,
        "resolution": uncertainty - refinement,
    }


def nll_sums(labels: np.ndarray, probs: np.ndarray) -> Sums:
    """NLL as the mean of one number a row."""
    return mean_of_rows(len(labels), probs.shape[1], lambda part: -np.log(_of_label(labels[part], probs[part])))


def brier_sums(labels: np.ndarray, probs: np.ndarray) -> Sums:
    """Brier as the mean of one number a row: Σ p² − 2 p_label + 1."""

    def scores(part: slice) -> np.ndarray:
        block = probs[part]
        return np.einsum("ij,ij->i", block, block) - 2.0 * _of_label(labels[part], block, 0.0) + 1.0

    return mean_of_rows(len(labels), probs.shape[1], scores)


def _of_label(labels: np.ndarray, probs: np.ndarray, floor: float = _TINY) -> np.ndarray:
    return np.maximum(np.take_along_axis(probs, labels[:, None], axis=1)[:, 0], floor)
