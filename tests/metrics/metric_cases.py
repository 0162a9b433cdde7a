"""Data with known miscalibration for the tests of metrics, and slow definitions to compare with."""

import numpy as np

from ebmcal.predictions import softmax


def make_rows(n_rows=500, n_classes=3, noise=1.5, scale=2.0, seed=0):
    """Labels and probabilities; `noise` above 1 makes the probabilities overconfident."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n_rows, n_classes)) * scale
    labels = (logits + rng.gumbel(size=logits.shape) * noise).argmax(axis=1)
    return labels, softmax(logits)


def bin_by_definition(value, n_bins):
    """The last i with i/B ≤ value, the last bin closed."""
    return max(i for i in range(n_bins) if i / n_bins <= value)


def ece_by_loops(forecasts, outcomes, n_bins):
    """The ECE of one event per row, as it is defined."""
    bins = [[] for _ in range(n_bins)]
    for forecast, outcome in zip(forecasts, outcomes, strict=True):
        bins[bin_by_definition(forecast, n_bins)].append((forecast, outcome))
    gaps = [abs(np.mean([o for _, o in b]) - np.mean([f for f, _ in b])) * len(b) for b in bins if b]
    return sum(gaps) / len(forecasts)
