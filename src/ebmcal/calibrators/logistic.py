"""Logistic regression on one or two features, the inner fit of Platt scaling and of beta calibration.

Newton's method: the Hessian is 2 by 2 or 3 by 3 and one step is one pass over the rows. The first steps run on
groups of rows that are almost equal, after which one or two passes over all rows are enough.

Targets are Platt's (1999): (n+ + 1)/(n+ + 2) for the label and 1/(n- + 2) for the rest, not 1 and 0. They keep
the fit finite when the rows are separable or the label never occurs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

N_GROUPS = 4096
MAX_STEPS = 100
MAX_HALVINGS = 30


def smoothed_targets(hits: np.ndarray) -> np.ndarray:
    """Platt's targets `[n]` of booleans `[n]`.

    >>> smoothed_targets(np.array([True, False, False])).tolist()
    [0.6666666666666666, 0.25, 0.25]
    """
    n_hits = int(np.count_nonzero(hits))
    return np.where(hits, (n_hits + 1.0) / (n_hits + 2.0), 1.0 / (hits.size - n_hits + 2.0))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1/(1 + exp(-x)); arguments beyond ±700 count as ±700, where it is 0 or 1 to 1e-304.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).round(9).tolist()
    [0.0, 0.5, 1.0]
    """
    return 1.0 / (1.0 + np.exp(-np.clip(x, -700.0, 700.0)))


def fit_logistic(features: np.ndarray, targets: np.ndarray, tolerance: float = 1e-4) -> np.ndarray:
    """Weights `[d + 1]`, intercept last, minimising the cross-entropy of sigmoid(w · x + b) with targets in (0, 1).

    `features` is `[d, n]`; they are brought to unit scale first, so that saturated log-odds cost no precision.
    Newton's error is squared at each step: stopping after a step of `tolerance` leaves an error of about its square.

    >>> x = np.array([[-2.0, -1.0, 1.0, 2.0]])
    >>> fit_logistic(x, 1 / (1 + np.exp(-3 * x[0] - 1))).round(6).tolist()
    [3.0, 1.0]
    """
    scale = np.maximum(np.abs(features).max(axis=1), np.finfo(np.float64).tiny)
    n = len(targets)
    rows = _Rows(np.vstack([features / scale[:, None], np.ones(n)]), targets, np.full(n, 1.0 / n))
    weights = np.zeros(len(rows.x))
    if n > 4 * N_GROUPS:
        weights = _newton(rows.grouped(), weights, tolerance)
    return _newton(rows, weights, tolerance) / np.append(scale, 1.0)


class _Rows(NamedTuple):
    """Scaled features with a line of ones below `[d + 1, n]`, targets `[n]` and shares `[n]` that sum to one."""

    x: np.ndarray
    targets: np.ndarray
    shares: np.ndarray

    def blocks(self, width: int = 4096) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Parts small enough for their temporaries to stay in the processor's cache."""
        for start in range(0, len(self.targets), width):
            part = slice(start, start + width)
            yield self.x[:, part], self.targets[part], self.shares[part]

    def grouped(self) -> "_Rows":
        """Means over rows whose first feature is almost the same."""
        group = ((self.x[0] + 1.0) * (N_GROUPS / 2)).astype(np.intp)
        counts = np.bincount(group)
        filled = np.flatnonzero(counts)
        means = [np.bincount(group, line)[filled] / counts[filled] for line in (*self.x[:-1], self.targets)]
        return _Rows(np.stack([*means[:-1], np.ones(len(filled))]), means[-1], counts[filled] / len(group))


def _newton(rows: _Rows, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """Newton's method with steps halved while they overshoot; the loss is convex."""
    gradient, hessian = _derivatives(rows, weights)
    for _ in range(MAX_STEPS):
        # The ridge, far below rounding of a healthy Hessian, settles directions the rows say nothing about.
        ridge = 1e-13 * np.trace(hessian) + np.finfo(np.float64).tiny
        step = np.linalg.solve(hessian + ridge * np.eye(len(hessian)), -gradient)
        if np.abs(step).max() <= tolerance * (1.0 + np.abs(weights).max()):
            return weights + step
        weights, gradient, hessian = _advance(rows, weights, step, gradient)
    return weights


def _advance(rows: _Rows, weights: np.ndarray, step: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, ...]:
    """Take the step, or half of it until the slope at its end is not steeper upwards than it was downwards."""
    downhill = -gradient @ step
    for _ in range(MAX_HALVINGS):
        new_gradient, hessian = _derivatives(rows, weights + step)
        if new_gradient @ step <= 0.9 * downhill:
            break
        step, downhill = step / 2, downhill / 2
    return weights + step, new_gradient, hessian


def _derivatives(rows: _Rows, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient `[d + 1]` and Hessian `[d + 1, d + 1]` of the mean cross-entropy."""
    gradient, hessian = np.zeros(len(weights)), np.zeros((len(weights), len(weights)))
    for x, targets, shares in rows.blocks():
        p = sigmoid(weights @ x)
        gradient += x @ ((p - targets) * shares)
        hessian += (x * (p * (1.0 - p) * shares)) @ x.T
    return gradient, hessian
