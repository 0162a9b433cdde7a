"""Accuracy estimation: the accuracy of unlabelled rows, from labelled rows of the same model (the reference).

    confidence   mean confidence, minus its bias on the reference; correct while P(y|x) keeps its meaning
                 (difference of confidences, Guillory et al. 2021)
    threshold    the share of rows above a threshold, chosen such that on the reference this share equals the accuracy
                 (average thresholded confidence, Garg et al. 2022)
    energy       the reference accuracy in each fifth of its energies, weighted by where the new rows lie

All three assume that a confidence means what it meant on the reference. Drift breaks this assumption, so
`monitoring.windows` withholds the estimate of a window with drift.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions

Z = 1.959963984540054  # of a 95% interval
N_ENERGY_BINS = 5


@dataclass(frozen=True)
class Estimate:
    """An estimated accuracy with a 95% interval for the share of correct rows in this window."""

    value: float
    low: float
    high: float

    @classmethod
    def from_variance(cls, value: float, variance: float) -> "Estimate":
        reach = Z * float(np.sqrt(variance))
        return cls(*(float(np.clip(x, 0, 1)) for x in (value, value - reach, value + reach)))


def by_confidence(reference: Predictions, window: Predictions) -> Estimate:
    """From the mean confidence, corrected by its bias on the reference.

    >>> known = Predictions([0] * 9 + [1], ("a", "b"), probs=[[0.8, 0.2]] * 10)
    >>> round(by_confidence(known, Predictions([-1] * 4, ("a", "b"), probs=[[0.6, 0.4]] * 4)).value, 2)
    0.7
    """
    gaps = _correct(reference) - reference.confidence  # [m]
    confidence = window.confidence.astype(np.float64)
    sampling = float((confidence * (1 - confidence)).sum()) / len(confidence) ** 2
    return Estimate.from_variance(confidence.mean() + gaps.mean(), gaps.var(ddof=1) / len(gaps) + sampling)


def by_threshold(reference: Predictions, window: Predictions) -> Estimate:
    """From the share of rows above the confidence threshold that matches the accuracy on the reference."""
    accuracy = float(_correct(reference).mean())
    threshold = np.quantile(reference.confidence, 1 - accuracy)
    share = float((window.confidence >= threshold).mean())
    variance = accuracy * (1 - accuracy) / reference.n_rows + share * (1 - share) / window.n_rows
    return Estimate.from_variance(share, variance)


def by_energy(reference: Predictions, window: Predictions) -> Estimate:
    """From the reference accuracy in each fifth of the reference energies, weighted by the window's energies."""
    energies = reference.require_energies()
    edges = np.quantile(energies, np.linspace(0, 1, N_ENERGY_BINS + 1)[1:-1])
    known, new = np.searchsorted(edges, energies), np.searchsorted(edges, window.require_energies())
    counts = np.maximum(np.bincount(known, minlength=N_ENERGY_BINS), 1)
    accuracy = np.bincount(known, _correct(reference), N_ENERGY_BINS) / counts
    weights = np.bincount(new, minlength=N_ENERGY_BINS) / len(new)
    spread = accuracy * (1 - accuracy)
    variance = float((weights**2 * spread / counts).sum() + (weights * spread).sum() / len(new))
    return Estimate.from_variance(float((weights * accuracy).sum()), variance)


ESTIMATORS: dict[str, Callable[[Predictions, Predictions], Estimate]] = {
    "confidence": by_confidence,
    "threshold": by_threshold,
    "energy": by_energy,
}


def estimate_accuracy(reference: Predictions, window: Predictions) -> dict[str, Estimate]:
    """Every estimate the data allow: without energies there is none by energy."""
    reference = reference.labelled()
    if reference.n_rows < 2:
        raise EbmcalError("Accuracy estimation needs at least 2 labelled reference rows, got 1.")
    has_energies = reference.energies is not None and window.energies is not None
    names = [name for name in ESTIMATORS if name != "energy" or has_energies]
    return {name: ESTIMATORS[name](reference, window) for name in names}


def _correct(reference: Predictions) -> np.ndarray:
    return np.asarray(reference.predicted == reference.labels, dtype=np.float64)
