"""Conformal prediction: sets that hold the right label, and p-values of how unusual a text is. Exact for any model.

With calibration rows and a new row drawn alike, the rank of the new row among them is uniform. So the label is in its
set with probability `coverage` at least, and a usual text is called unusual with probability `false_alarms` at most.
"""

import math
from collections.abc import Callable

import numpy as np

from ebmcal.errors import EbmcalError

#: Scores that a rule keeps; of more, an even sample, which is as exact.
KEPT = 5000


def least_rows(coverage: float) -> int:
    """Rows below which a set would have to hold every label.

    >>> least_rows(0.9), least_rows(0.95)
    (9, 19)
    """
    return math.ceil(coverage / (1.0 - coverage) - 1e-9)


def _limit(misfits: np.ndarray, coverage: float) -> float:
    """The ⌈(n + 1) · coverage⌉-th smallest of the misfits."""
    rank = math.ceil((len(misfits) + 1) * coverage - 1e-9)
    return float(np.sort(misfits)[rank - 1])


def split_limits(probs: np.ndarray, labels: np.ndarray, coverage: float) -> np.ndarray:
    """How far 1 − P(y|x) may go for y to be in the set: the same for every class, [C]."""
    _require_rows(len(labels), coverage, "")
    misfits = 1.0 - probs[np.arange(len(labels)), labels]
    return np.full(probs.shape[1], _limit(misfits, coverage))


def class_limits(probs: np.ndarray, labels: np.ndarray, coverage: float) -> np.ndarray:
    """The same for each class by its own rows [C]: the coverage then holds in every class, also in rare ones."""
    misfits = 1.0 - probs[np.arange(len(labels)), labels]
    of_class = [misfits[labels == c] for c in range(probs.shape[1])]
    fewest = int(np.argmin([len(m) for m in of_class]))
    _require_rows(len(of_class[fewest]), coverage, f" of every class; class number {fewest} has the fewest")
    return np.array([_limit(m, coverage) for m in of_class])


SETS: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "split": split_limits,
    "class-conditional": class_limits,
}


def prediction_sets(probs: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Which labels are in each set [n, C]; the most probable one always is, which can only add coverage.

    >>> prediction_sets(np.array([[0.7, 0.2, 0.1]]), np.full(3, 0.85)).tolist()
    [[True, True, False]]
    """
    inside = 1.0 - probs <= limits
    inside[np.arange(len(probs)), probs.argmax(axis=1)] = True
    return inside


def kept_scores(scores: np.ndarray, false_alarms: float, seed: int = 0) -> np.ndarray:
    """The calibration scores that p-values are read from, ascending; enough of them for this false-alarm rate."""
    needed = math.ceil(1.0 / false_alarms - 1e-9) - 1
    if len(scores) < needed:
        raise EbmcalError(
            f"{len(scores):,} rows cannot tell unusual texts at a false-alarm rate of {false_alarms:g}: at least "
            f"{needed:,} are needed. Give more rows or a larger rate (--false-alarms)."
        )
    if len(scores) > KEPT:
        scores = np.random.default_rng(seed).choice(scores, KEPT, replace=False)
    return np.sort(scores.astype(np.float64))


def p_values(scores: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """p [n]: the share of calibration texts, and of the text itself, whose score is as high or higher.

    >>> p_values(np.array([0.5, 9.0]), np.array([0.0, 1.0, 2.0]))
    array([0.75, 0.25])
    """
    as_high = len(kept) - np.searchsorted(kept, scores, side="left")
    return (as_high + 1.0) / (len(kept) + 1.0)


def _require_rows(n_rows: int, coverage: float, of: str) -> None:
    if n_rows < least_rows(coverage):
        raise EbmcalError(
            f"{n_rows:,} rows cannot promise sets with a coverage of {coverage:g}: at least {least_rows(coverage):,} "
            f"labelled rows are needed{of}. Give more rows or a smaller coverage (--coverage)."
        )
