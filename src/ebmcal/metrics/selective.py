"""Ranking rows by how far they are trusted: which rows are wrong, and how risk falls when fewer rows are answered.

Rows are ranked by `scores`, higher = more trusted; by default the confidence max_y P(y|x). To rank by energy give
`scores=-energies`. Rows of equal score cannot be told apart, so every figure is what a random order among them gives
on average.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.sums import Sums, top_label
from ebmcal.predictions.arrays import as_labels_and_probs, as_scores, chunks


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve: answering only rows with score ≥ threshold; one point a distinct score.

    >>> risk_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]]).risk
    array([0. , 0.5])
    """

    coverage: np.ndarray  # share of rows answered, ascending, ends at 1
    risk: np.ndarray  # share of those answered that are wrong
    thresholds: np.ndarray  # scores, descending


def risk_coverage(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> RiskCoverage:
    """The risk-coverage curve of the most probable class.

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] in place of the confidence.

    >>> risk_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]]).risk
    array([0. , 0.5])
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    levels, right, wrong = _by_level(labels, probs, scores)
    answered = np.cumsum(right + wrong)
    return RiskCoverage(answered / answered[-1], np.cumsum(wrong) / answered, levels)


def aurc(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> float:
    """Area under the risk-coverage curve: the mean risk of answering the k most trusted rows, k = 1..n.

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] in place of the confidence.

    >>> aurc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    0.25
    """
    return _value(aurc_of_counts, labels, logits, probs, scores)


def error_auroc(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> float:
    """The chance that a right row is trusted more than a wrong one (AUROC); NaN if all are right or all wrong.

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] in place of the confidence.

    >>> error_auroc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    1.0
    """
    return _value(error_auroc_of_counts, labels, logits, probs, scores)


def accuracy_at_coverage(
    labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None, coverage: float = 0.8
) -> float:
    """Accuracy on the most trusted share of rows (at least one row).

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] in place of the confidence.

    >>> accuracy_at_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]], coverage=0.5)
    1.0
    """
    return _value(functools.partial(accuracy_at_coverage_of_counts, coverage=coverage), labels, logits, probs, scores)


def coverage_at_risk(
    labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None, risk: float = 0.05
) -> float:
    """The largest share of rows that a threshold on the score can answer with at most this risk; 0 if there is none.

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] in place of the confidence.

    >>> coverage_at_risk([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]], risk=0.1)
    0.5
    """
    return _value(functools.partial(coverage_at_risk_of_counts, risk=risk), labels, logits, probs, scores)


def ranking_sums(
    finish: Callable[..., np.ndarray],
    labels: np.ndarray,
    probs: np.ndarray,
    scores: Any = None,
    *,
    max_levels: int | None = None,
    **options: float,
) -> Sums:
    """A ranking metric from the numbers of right and wrong rows at each level of score.

    `max_levels` merges neighbouring scores into that many levels: for resampling of very many rows.
    """
    scores, wrong = _ranked(labels, probs, scores)
    levels = merged_levels(scores, max_levels)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        place = np.searchsorted(levels, scores[part], side="right") - 1
        columns = (len(levels) - 1 - place) + wrong[part] * len(levels)  # the most trusted level first
        return columns[None], np.ones((1, len(columns)))

    def finish_sums(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return finish(sums[..., : len(levels)], sums[..., len(levels) :], **options)

    return Sums(len(labels), 1, 2 * len(levels), entries, finish_sums)


def _value(finish: Callable[..., np.ndarray], labels: Any, logits: Any, probs: Any, scores: Any) -> float:
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return float(finish(*_by_level(labels, probs, scores)[1:]))


def _ranked(labels: np.ndarray, probs: np.ndarray, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores [n], the confidences unless given, and whether each row is wrong [n]."""
    confidences, wrong = np.empty(len(labels)), np.empty(len(labels), dtype=bool)
    for part in chunks(*probs.shape):
        confidences[part], predicted = top_label(probs[part])
        np.not_equal(predicted, labels[part], out=wrong[part])
    return (confidences if scores is None else as_scores(scores, "scores", len(labels))), wrong


def _by_level(labels: np.ndarray, probs: np.ndarray, scores: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct scores, descending, and the numbers of right and of wrong rows at each."""
    scores, wrong = _ranked(labels, probs, scores)
    order = np.argsort(scores)[::-1]
    scores, wrong = scores[order], wrong[order]
    del order  # with very many rows, each of these is large
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    scores = scores[starts]
    errors = np.add.reduceat(wrong, starts, dtype=np.int32)
    sizes = np.diff(starts, append=len(wrong)).astype(np.int32)
    return scores, sizes - errors, errors


# Below: formulas from counts [..., levels], how many right and wrong rows there are at each level of score, the most
# trusted level first; leading axes are resamples. Rows of a level cannot be told apart: the mean over their orders.


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
