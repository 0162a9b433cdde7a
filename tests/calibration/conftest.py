"""Rows with a known calibration: labels are drawn from the softmax of the logits."""

import numpy as np
import pytest


def draw(n: int, n_classes: int, seed: int = 0, spread: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Logits `[n, C]` and labels drawn from their softmax: perfectly calibrated."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * spread
    gumbel = rng.gumbel(size=(n, n_classes))
    return logits, (logits + gumbel).argmax(axis=1)


@pytest.fixture(scope="session")
def calibrated_rows():
    return draw
