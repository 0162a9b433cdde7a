"""Selective prediction: how well a score ranks wrong rows below correct ones, and the risk at each coverage.

Rows are ranked by `scores`, higher = more trusted; by default the confidence max_y P(y|x). To rank by energy pass
`scores=-energies`. Rows of equal score have no order, so every number is the mean over random orders among them.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.classification import confidence_and_correct
from ebmcal.metrics.resampling import MAX_LEVELS, is_drawn_in_blocks
from ebmcal.metrics.sufficient_statistics import SufficientStatistics
from ebmcal.predictions.arrays import as_labels_and_probs, as_scores, chunks


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve: answering only rows with score ≥ threshold; one point per distinct score.

    >>> risk_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]]).risk
    array([0. , 0.5])
    """

    coverage: np.ndarray  # share of rows answered, ascending, ends at 1
    risk: np.ndarray  # error rate among the answered rows
    thresholds: np.ndarray  # scores, descending


def risk_coverage(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> RiskCoverage:
    """The risk-coverage curve of the most probable class.

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] replace the confidence.

    >>> risk_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]]).risk
    array([0. , 0.5])
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    levels, correct, wrong = _counts_by_level(labels, probs, scores)
    answered = np.cumsum(correct + wrong)
    return RiskCoverage(answered / answered[-1], np.cumsum(wrong) / answered, levels)


def aurc(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> float:
    """Area under the risk-coverage curve: the mean risk of answering the k most trusted rows, k = 1..n.

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] replace the confidence.

    >>> aurc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    0.25
    """
    return _value(aurc_of_counts, labels, logits, probs, scores)


def error_auroc(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> float:
    """AUROC of the score for errors: the probability that a correct row scores above a wrong one.

    NaN if all rows are correct or all are wrong. Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] replace
    the confidence.

    >>> error_auroc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    1.0
    """
    return _value(auroc_of_counts, labels, logits, probs, scores)


def accuracy_at_coverage(
    labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None, coverage: float = 0.8
) -> float:
    """Accuracy on the most trusted share of rows (at least one row).

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] replace the confidence.

    >>> accuracy_at_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]], coverage=0.5)
    1.0
    """
    return _value(functools.partial(accuracy_at_coverage_of_counts, coverage=coverage), labels, logits, probs, scores)


def coverage_at_risk(
    labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None, risk: float = 0.05
) -> float:
    """The largest share of rows that a threshold on the score can answer with at most this risk; 0 if there is none.

    Takes `labels` [n], `probs` or `logits` [n, C]; `scores` [n] replace the confidence.

    >>> coverage_at_risk([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]], risk=0.1)
    0.5
    """
    return _value(functools.partial(coverage_at_risk_of_counts, risk=risk), labels, logits, probs, scores)


def ranking_statistics(
    finish: Callable[..., np.ndarray], labels: np.ndarray, probs: np.ndarray, scores: Any = None, **options: float
) -> SufficientStatistics:
    """A ranking metric from the numbers of correct and wrong rows at each level of score.

    Neighbouring scores are merged into `MAX_LEVELS` levels if there are too many rows to resample one by one.
    """
    scores, wrong = _scores_and_errors(labels, probs, scores)
    levels = score_levels(scores, MAX_LEVELS if is_drawn_in_blocks(*probs.shape) else None)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        place = np.searchsorted(levels, scores[part], side="right") - 1
        index = (len(levels) - 1 - place) + wrong[part] * len(levels)  # the most trusted level first
        return index[None], np.ones((1, len(index)))

    def finish_sums(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return finish(sums[..., : len(levels)], sums[..., len(levels) :], **options)

    return SufficientStatistics(len(labels), 2 * len(levels), entries, finish_sums)


def _value(finish: Callable[..., np.ndarray], labels: Any, logits: Any, probs: Any, scores: Any) -> float:
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return float(finish(*_counts_by_level(labels, probs, scores)[1:]))


def _scores_and_errors(labels: np.ndarray, probs: np.ndarray, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores [n], by default the confidences, and whether each row is wrong [n]."""
    confidence, correct = confidence_and_correct(labels, probs)
    return (confidence if scores is None else as_scores(scores, "scores", len(labels))), ~correct


def _counts_by_level(labels: np.ndarray, probs: np.ndarray, scores: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct scores, descending, and the numbers of correct and of wrong rows at each."""
    scores, wrong = _scores_and_errors(labels, probs, scores)
    order = np.argsort(scores)[::-1]
    scores, wrong = scores[order], wrong[order]
    del order  # with very many rows, each of these is large
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    errors = np.add.reduceat(wrong, starts, dtype=np.int32)
    sizes = np.diff(starts, append=len(wrong)).astype(np.int32)
    return scores[starts], sizes - errors, errors


def score_levels(scores: np.ndarray, max_levels: int | None) -> np.ndarray:
    """The distinct scores, ascending; if more than `max_levels`, the lowest of so many equal groups of rows."""
    ordered = np.sort(scores)
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    if max_levels is None or first.sum() <= max_levels:
        return ordered[first]
    return np.unique(ordered[np.linspace(0, len(ordered), max_levels, endpoint=False).astype(np.intp)])


# Below: formulas from counts [..., levels], the numbers of correct and wrong rows at each level of score, the most
# trusted level first; leading axes are resamples. Rows of a level have no order: the mean over their orders.


def auroc_of_counts(correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """AUROC [...]; NaN without correct or without wrong rows."""
    n_correct, n_wrong = correct.sum(axis=-1), wrong.sum(axis=-1)
    ordered = np.zeros(np.shape(n_correct))
    for c, w, _, errors in _runs(correct, wrong):
        ordered = ordered + (c * (n_wrong[..., None] - errors + w / 2)).sum(axis=-1)  # a tie counts half
    pairs = n_correct * n_wrong
    return np.divide(ordered, pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)


def aurc_of_counts(correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Mean over k of the risk of the first k rows [...].

    A level of m rows, e of them wrong, after N rows, E of them wrong, adds Σ_j (E + j·e/m)/(N + j) over j = 1..m,
    which is e + (E − N·e/m)(H(N+m) − H(N)) with H the harmonic numbers.
    """
    area, n_rows = 0.0, (correct + wrong).sum(axis=-1)
    for c, w, rows, errors in _runs(correct, wrong):
        size = c + w
        before = rows - size
        share = w / np.maximum(size, 1.0)
        steps = _harmonic(rows) - _harmonic(before)
        area = area + (w + (errors - w - before * share) * steps).sum(axis=-1)
    return area / n_rows


def accuracy_at_coverage_of_counts(correct: np.ndarray, wrong: np.ndarray, coverage: float = 0.8) -> np.ndarray:
    """Accuracy [...] on the most trusted share of rows, at least one row."""
    if not 0 < coverage <= 1:
        raise EbmcalError(f"coverage is {coverage}; expected a share above 0 and at most 1.")
    n = correct.sum(axis=-1) + wrong.sum(axis=-1)
    # 0.7 · 10 is slightly above 7 in floats, and 8 rows would be one too many.
    wanted = np.maximum(np.ceil(coverage * n * (1 - 1e-12)), 1.0)
    hits = 0.0
    for c, w, rows, _ in _runs(correct, wrong):
        size = c + w
        taken = np.clip(wanted[..., None] - (rows - size), 0.0, size)
        hits = hits + (c * taken / np.maximum(size, 1.0)).sum(axis=-1)
    return hits / wanted


def coverage_at_risk_of_counts(correct: np.ndarray, wrong: np.ndarray, risk: float = 0.05) -> np.ndarray:
    """The largest coverage [...] of a whole number of levels with at most this risk; 0 if there is none."""
    if not 0 <= risk <= 1:
        raise EbmcalError(f"risk is {risk}; expected a share from 0 to 1.")
    largest, n_rows = np.zeros(correct.shape[:-1]), (correct + wrong).sum(axis=-1)
    for _, _, rows, errors in _runs(correct, wrong):
        largest = np.maximum(largest, np.where(errors <= risk * rows, rows, 0.0).max(axis=-1))
    return largest / n_rows


def _runs(correct: np.ndarray, wrong: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Runs of levels that fit the cache: correct, wrong, and the numbers of rows and errors up to each level."""
    rows, errors = np.zeros(correct.shape[:-1]), np.zeros(correct.shape[:-1])
    for part in chunks(correct.shape[-1], rows.size):
        c, w = correct[..., part], wrong[..., part]
        rows_at = rows[..., None] + np.cumsum(c + w, axis=-1)
        errors_at = errors[..., None] + np.cumsum(w, axis=-1)
        yield c, w, rows_at, errors_at
        rows, errors = rows_at[..., -1], errors_at[..., -1]


_HARMONIC = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, 1 << 16))])


def _harmonic(n: np.ndarray) -> np.ndarray:
    """Harmonic numbers H(n): from a table, and from their series (to 1e-14) for large n."""
    n = np.rint(n)
    if n.max() < len(_HARMONIC):
        return _HARMONIC[n.astype(np.intp)]
    m = np.maximum(n, 1.0)
    series = np.log(m) + np.euler_gamma + 1 / (2 * m) - 1 / (12 * m * m)
    return np.where(n < 1024, _HARMONIC[np.minimum(n, 1024).astype(np.intp)], series)
