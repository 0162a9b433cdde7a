"""Formulas of rankings from counts: how many right and wrong rows there are at each level of score.

Arrays are [..., levels], the most trusted level first; the leading axes are resamples. Within a level rows cannot be
told apart, so each figure is its mean over their orders.
"""

from collections.abc import Iterator

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions.arrays import chunks


def merged_levels(scores: np.ndarray, max_levels: int | None) -> np.ndarray:
    """The distinct scores, ascending; of more than `max_levels`, the lowest one of so many equal groups of rows."""
    ordered = np.sort(scores)
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    if max_levels is None or first.sum() <= max_levels:
        return ordered[first]
    return np.unique(ordered[np.linspace(0, len(ordered), max_levels, endpoint=False).astype(np.intp)])


def error_auroc_of_counts(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """AUROC [...] from the numbers of right and wrong rows at each level [..., levels], the most trusted first."""
    n_right, n_wrong = right.sum(axis=-1), wrong.sum(axis=-1)
    ordered = 0.0
    for r, w, _, errors in _runs(right, wrong):
        less_trusted = n_wrong[..., None] - errors + w / 2  # a tie counts half
        ordered = ordered + (r * less_trusted).sum(axis=-1)
    pairs = n_right * n_wrong
    return np.divide(ordered, pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)


def _runs(right: np.ndarray, wrong: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Runs of levels that fit the cache: right, wrong, and how many rows and errors there are up to each level."""
    rows, errors = np.zeros(right.shape[:-1]), np.zeros(right.shape[:-1])
    for part in chunks(right.shape[-1], rows.size):
        r, w = right[..., part], wrong[..., part]
        rows_at = rows[..., None] + np.cumsum(r + w, axis=-1)
        errors_at = errors[..., None] + np.cumsum(w, axis=-1)
        yield r, w, rows_at, errors_at
        rows, errors = rows_at[..., -1], errors_at[..., -1]


def aurc_of_counts(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Mean over k of the risk of the first k rows, in expectation over the order within each level.

    A level of m rows, e of them wrong, after N rows, E of them wrong, adds Σ_j (E + j·e/m)/(N + j) over j = 1..m,
    which is e + (E − N·e/m)(H(N+m) − H(N)) with H the harmonic numbers.
    """
    area = 0.0
    for r, w, rows, errors in _runs(right, wrong):
        size = r + w
        before = rows - size
        share = w / np.maximum(size, 1.0)
        steps = _harmonic(rows) - _harmonic(before)
        area = area + (w + (errors - w - before * share) * steps).sum(axis=-1)
    return area / rows[..., -1]


_HARMONIC = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, 1 << 16))])


def _harmonic(n: np.ndarray) -> np.ndarray:
    """Harmonic numbers H(n): by table, and by their series (to 1e-14) of large n."""
    n = np.rint(n)
    if n.max() < len(_HARMONIC):
        return _HARMONIC[n.astype(np.intp)]
    m = np.maximum(n, 1.0)
    series = np.log(m) + np.euler_gamma + 1 / (2 * m) - 1 / (12 * m * m)
    return np.where(n < 1024, _HARMONIC[np.minimum(n, 1024).astype(np.intp)], series)


def accuracy_at_coverage_of_counts(right: np.ndarray, wrong: np.ndarray, coverage: float = 0.8) -> np.ndarray:
    """Accuracy [...] on the most trusted share of rows, at least one row."""
    if not 0 < coverage <= 1:
        raise EbmcalError(f"coverage is {coverage}; a share above 0 and at most 1 is needed.")
    n = right.sum(axis=-1) + wrong.sum(axis=-1)
    # 0.7 · 10 is a hair above 7 in floats, and 8 rows are not what was asked.
    wanted = np.maximum(np.ceil(coverage * n * (1 - 1e-12)), 1.0)
    hits = 0.0
    for r, w, rows, _ in _runs(right, wrong):
        size = r + w
        taken = np.clip(wanted[..., None] - (rows - size), 0.0, size)
        hits = hits + (r * taken / np.maximum(size, 1.0)).sum(axis=-1)
    return hits / wanted


def coverage_at_risk_of_counts(right: np.ndarray, wrong: np.ndarray, risk: float = 0.05) -> np.ndarray:
    """The largest coverage [...] of a whole number of levels with at most this risk; 0 if there is none."""
    if not 0 <= risk <= 1:
        raise EbmcalError(f"risk is {risk}; a share from 0 to 1 is needed.")
    most = 0.0
    for _, _, rows, errors in _runs(right, wrong):
        most = np.maximum(most, np.where(errors <= risk * rows, rows, 0.0).max(axis=-1))
    return most / rows[..., -1]
