"""Smooth calibration error (Błasiok & Nakkiran 2023): the top-label error without bins.

With c_i the confidence of row i, a_i whether it is correct, and K_σ the Gaussian kernel reflected at 0 and 1,

    smECE_σ = ∫₀¹ |1/n Σ_i (c_i − a_i) K_σ(t, c_i)| dt

and the smooth ECE is smECE_σ at the σ where smECE_σ = σ. Reflection makes the kernel diagonal in cosines, where the
k-th is multiplied by exp(−(πkσ)²/2); residuals are put on a grid first.
"""

from typing import Any

import numpy as np

from ebmcal.metrics.classification import confidence_and_correct
from ebmcal.metrics.sufficient_statistics import SufficientStatistics
from ebmcal.predictions.arrays import as_labels_and_probs

_CELLS = 1024
_HALVINGS = 9  # then one step along the chord: the result to about 1e-5


def smooth_ece(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Smooth calibration error of the confidence.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(smooth_ece([0, 0], probs=[[0.75, 0.25], [0.25, 0.75]]), 2)
    0.25
    """
    return smooth_ece_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def smooth_ece_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Residuals c_i − a_i, each split between the two grid points around c_i in proportion to nearness."""
    confidence, correct = confidence_and_correct(labels, probs)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        place = np.minimum(confidence[part], 1.0) * _CELLS
        cell = np.minimum(place.astype(np.intp), _CELLS - 1)
        residual, share = confidence[part] - correct[part], place - cell
        return np.stack([cell, cell + 1]), np.stack([residual * (1 - share), residual * share])

    return SufficientStatistics(len(labels), _CELLS + 1, entries, _fixed_point, width=2)


def _fixed_point(residuals: np.ndarray, n: np.ndarray) -> np.ndarray:
    """smECE [...] of residuals on the grid [..., cells + 1]: bisection for σ = smECE_σ, which decreases in σ."""
    from scipy.fft import dct

    ends = residuals / np.asarray(n)[..., None]
    ends[..., [0, -1]] *= 2.0  # a point on the mirror coincides with its image
    cosines = dct(ends, type=1, axis=-1)
    low, high = np.zeros(ends.shape[:-1]), np.ones(ends.shape[:-1])
    over, under = _error(cosines, low) - low, _error(cosines, high) - high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        excess = _error(cosines, middle) - middle
        up = excess > 0
        low, over = np.where(up, middle, low), np.where(up, excess, over)
        high, under = np.where(up, high, middle), np.where(up, under, excess)
    return low + (high - low) * over / (over - under)  # where the chord crosses zero


def _error(cosines: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    from scipy.fft import idct

    waves = np.pi * np.arange(_CELLS + 1) * np.asarray(sigma)[..., None]
    smoothed = np.abs(idct(cosines * np.exp(-(waves**2) / 2), type=1, axis=-1))
    return smoothed.sum(axis=-1) - (smoothed[..., 0] + smoothed[..., -1]) / 2  # the trapezoid rule
