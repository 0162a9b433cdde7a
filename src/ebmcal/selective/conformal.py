"""Conformal prediction: sets that contain the true label, and p-values of OOD scores. Valid for any model.

With calibration rows and a new row from the same distribution, the rank of the new row among them is uniform. So the
label is in its set with probability at least `coverage`, and an in-distribution text is flagged as OOD with probability
at most `ood`, the false-positive rate.
"""

import math
from collections.abc import Callable

import numpy as np

from ebmcal.errors import EbmcalError

#: Calibration scores that a rule stores; of more, a random sample, which is as valid.
MAX_SCORES = 5000


def least_rows(coverage: float) -> int:
    """With fewer rows a set would have to contain every label.

    >>> least_rows(0.9), least_rows(0.95)
    (9, 19)
    """
    return math.ceil(coverage / (1.0 - coverage) - 1e-9)


def _limit(misfits: np.ndarray, coverage: float) -> float:
    """The ⌈(n + 1) · coverage⌉-th smallest of the misfits."""
    rank = math.ceil((len(misfits) + 1) * coverage - 1e-9)
    return float(np.sort(misfits)[rank - 1])


def split_limits(probs: np.ndarray, labels: np.ndarray, coverage: float) -> np.ndarray:
    """The largest 1 − P(y|x) with which y is in the set: the same for every class, [C]."""
    _check_rows(len(labels), coverage, "")
    misfits = 1.0 - probs[np.arange(len(labels)), labels]
    return np.full(probs.shape[1], _limit(misfits, coverage))


def class_limits(probs: np.ndarray, labels: np.ndarray, coverage: float) -> np.ndarray:
    """The same from the rows of each class [C]: the coverage then holds in every class, also in rare ones."""
    misfits = 1.0 - probs[np.arange(len(labels)), labels]
    by_class = [misfits[labels == c] for c in range(probs.shape[1])]
    rarest = int(np.argmin([len(m) for m in by_class]))
    _check_rows(len(by_class[rarest]), coverage, f" of every class; class number {rarest} has the fewest")
    return np.array([_limit(m, coverage) for m in by_class])


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


def stored_scores(scores: np.ndarray, ood: float, seed: int = 0) -> np.ndarray:
    """The calibration scores that p-values are computed from, ascending; an error if they are too few for this rate."""
    needed = math.ceil(1.0 / ood - 1e-9) - 1
    if len(scores) < needed:
        raise EbmcalError(
            f"{len(scores):,} rows are too few to flag OOD texts at a false-positive rate of {ood:g}: at least "
            f"{needed:,} are needed. Pass more rows or a larger rate (--ood)."
        )
    if len(scores) > MAX_SCORES:
        scores = np.random.default_rng(seed).choice(scores, MAX_SCORES, replace=False)
    return np.sort(scores.astype(np.float64))


def p_values(scores: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """p [n]: the share of calibration texts, and of the text itself, with a score at least as high.

    >>> p_values(np.array([0.5, 9.0]), np.array([0.0, 1.0, 2.0]))
    array([0.75, 0.25])
    """
    as_high = len(stored) - np.searchsorted(stored, scores, side="left")
    return (as_high + 1.0) / (len(stored) + 1.0)


def cut_off(stored: np.ndarray, ood: float) -> tuple[float, int]:
    """The stored score above which p ≤ `ood`, and its rank from the top: a text is OOD if its score is higher.

    >>> cut_off(np.arange(99.0), 0.05)
    (94.0, 5)
    """
    rank = math.floor((len(stored) + 1) * ood + 1e-9)
    return float(stored[-rank]), rank


def _check_rows(n_rows: int, coverage: float, of: str) -> None:
    if n_rows < least_rows(coverage):
        raise EbmcalError(
            f"{n_rows:,} rows do not support label sets with a coverage of {coverage:g}: at least "
            f"{least_rows(coverage):,} labelled rows are needed{of}. Pass more rows or a smaller coverage (--coverage)."
        )
