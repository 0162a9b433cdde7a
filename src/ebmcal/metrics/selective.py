"""Ranking rows by how far they are trusted: which rows are wrong, and how risk falls when fewer rows are answered.

Rows are ranked by `scores`, higher = more trusted; by default the confidence max_y P(y|x). To rank by energy give
`scores=-energies`. Rows of equal score cannot be told apart, so every figure is what a random order among them gives
on average.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.metrics.events import top_label
from ebmcal.metrics.ranking import (
    accuracy_at_coverage_of_counts,
    aurc_of_counts,
    coverage_at_risk_of_counts,
    error_auroc_of_counts,
    merged_levels,
)
from ebmcal.metrics.sums import Sums
from ebmcal.predictions.arrays import as_labels_and_probs, as_scores, chunks


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve: answering only rows with score ≥ threshold; one point a distinct score."""

    coverage: np.ndarray  # share of rows answered, ascending, ends at 1
    risk: np.ndarray  # share of those answered that are wrong
    thresholds: np.ndarray  # scores, descending


def risk_coverage(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> RiskCoverage:
    """The risk-coverage curve of the most probable class.

    >>> risk_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]]).risk
    array([0. , 0.5])
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    levels, right, wrong = _by_level(labels, probs, scores)
    answered = np.cumsum(right + wrong)
    return RiskCoverage(answered / answered[-1], np.cumsum(wrong) / answered, levels)


def aurc(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> float:
    """Area under the risk-coverage curve: the mean risk of answering the k most trusted rows, k = 1..n.

    >>> aurc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    0.25
    """
    return _value(aurc_of_counts, labels, logits, probs, scores)


def error_auroc(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> float:
    """The chance that a right row is trusted more than a wrong one (AUROC); NaN if all are right or all wrong.

    >>> error_auroc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    1.0
    """
    return _value(error_auroc_of_counts, labels, logits, probs, scores)


def accuracy_at_coverage(
    labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None, coverage: float = 0.8
) -> float:
    """Accuracy on the most trusted share of rows (at least one row).

    >>> accuracy_at_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]], coverage=0.5)
    1.0
    """
    return _value(functools.partial(accuracy_at_coverage_of_counts, coverage=coverage), labels, logits, probs, scores)


def coverage_at_risk(
    labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None, risk: float = 0.05
) -> float:
    """The largest share of rows that a threshold on the score can answer with at most this risk; 0 if there is none.

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


def aurc_sums(labels: np.ndarray, probs: np.ndarray, scores: Any = None, **options: Any) -> Sums:
    """`aurc` for resampling."""
    return ranking_sums(aurc_of_counts, labels, probs, scores, **options)


def error_auroc_sums(labels: np.ndarray, probs: np.ndarray, scores: Any = None, **options: Any) -> Sums:
    """`error_auroc` for resampling."""
    return ranking_sums(error_auroc_of_counts, labels, probs, scores, **options)


def accuracy_at_coverage_sums(labels: np.ndarray, probs: np.ndarray, scores: Any = None, **options: Any) -> Sums:
    """`accuracy_at_coverage` for resampling."""
    return ranking_sums(accuracy_at_coverage_of_counts, labels, probs, scores, **options)


def coverage_at_risk_sums(labels: np.ndarray, probs: np.ndarray, scores: Any = None, **options: Any) -> Sums:
    """`coverage_at_risk` for resampling."""
    return ranking_sums(coverage_at_risk_of_counts, labels, probs, scores, **options)


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
