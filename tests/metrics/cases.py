"""Rows for the tests of metrics: made data with known miscalibration, and slow plain definitions to compare with."""

import numpy as np

from ebmcal.predictions.arrays import softmax


def made(n_rows=500, n_classes=3, noise=1.5, scale=2.0, seed=0):
    """Labels and probabilities; `noise` above 1 makes the probabilities overconfident."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n_rows, n_classes)) * scale
    labels = (logits + rng.gumbel(size=logits.shape) * noise).argmax(axis=1)
    return labels, softmax(logits)


def bin_of(value, n_bins):
    """The bin by its definition: the last i with i/B ≤ value, the last bin closed."""
    return max(i for i in range(n_bins) if i / n_bins <= value)


def ece_by_loops(said, came, n_bins):
    """One event list's ECE, written down as it is defined."""
    bins = [[] for _ in range(n_bins)]
    for s, c in zip(said, came, strict=True):
        bins[bin_of(s, n_bins)].append((s, c))
    return sum(len(b) / len(said) * abs(np.mean([c for _, c in b]) - np.mean([s for s, _ in b])) for b in bins if b)
