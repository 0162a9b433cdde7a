"""Ranking rows by a score: selective prediction (wrong rows last) and OOD detection (other texts last).

Selective prediction takes `labels` [n], `probs` or `logits` [n, C], and ranks by `scores` [n], higher = more trusted;
by default the confidence max_y P(y|x). To rank by energy pass `scores=-energies`. A metric is a formula from the
numbers of correct and wrong rows at each level of score [..., levels], the most trusted level first; leading axes are
resamples. Rows of equal score have no order, so every number is the mean over random orders among them.

Out-of-distribution (OOD) detection: a score is **higher for in-distribution rows**; these are the positives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.metrics.classification import (
    MetricFunction,
    SufficientStatistics,
    as_metric,
    confidence_and_correct,
    is_drawn_in_blocks,
)  # fmt: skip
from ebmcal.predictions import as_labels_and_probs, as_logits, as_probs, as_scores, chunks

MAX_LEVELS = 1_024  # distinct scores kept when blocks are drawn


def _from_counts(formula: Callable[..., np.ndarray]) -> MetricFunction:
    """Decorator: the metric `(labels, *, logits= | probs=, scores=None, **options) -> float` of this formula."""

    @wraps(formula)
    def function(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None, **options: Any) -> float:
        labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
        return float(formula(*_counts_by_level(labels, probs, scores)[1:], **options))

    def statistics(labels: np.ndarray, probs: np.ndarray, scores: Any = None, **options: float) -> SufficientStatistics:
        scores, wrong = _scores_and_errors(labels, probs, scores)
        levels = score_levels(scores, MAX_LEVELS if is_drawn_in_blocks(*probs.shape) else None)

        def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
            place = np.searchsorted(levels, scores[part], side="right") - 1
            index = (len(levels) - 1 - place) + wrong[part] * len(levels)
            return index[None], np.ones((1, len(index)))

        def finish(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
            return formula(sums[..., 0, :], sums[..., 1, :], **options)

        return SufficientStatistics(len(labels), (2, len(levels)), entries, finish)

    return as_metric(function, statistics)


def _auroc(correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    n_correct, n_wrong = correct.sum(axis=-1), wrong.sum(axis=-1)
    below = n_wrong[..., None] - np.cumsum(wrong, axis=-1) + wrong / 2  # a tie counts half
    pairs = n_correct * n_wrong
    return np.divide((correct * below).sum(axis=-1), pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)


@_from_counts
def error_auroc(correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """AUROC of the confidence: the probability that a correct row has a higher one than a wrong row.

    NaN if all rows are correct or all are wrong.

    >>> error_auroc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    1.0
    """
    return _auroc(correct, wrong)


@_from_counts
def aurc(correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Area under the risk-coverage curve: the mean risk over all coverages.

    That is, the mean over k = 1..n of the risk of answering the k most trusted rows.
    A level of m rows, e of them wrong, after N rows, E of them wrong, adds Σ_j (E + j·e/m)/(N + j) over j = 1..m,
    which is e + (E − N·e/m)(H(N+m) − H(N)) with H the harmonic numbers.

    >>> aurc([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]])
    0.25
    """
    rows, errors = np.cumsum(correct + wrong, axis=-1), np.cumsum(wrong, axis=-1)
    area: Any = 0.0
    for part in chunks(rows.shape[-1], rows[..., 0].size):  # with very many levels, temporaries would be large
        e, m = wrong[..., part], correct[..., part] + wrong[..., part]
        before = rows[..., part] - m
        steps = _harmonic(rows[..., part]) - _harmonic(before)
        area = area + (e + (errors[..., part] - e - before * e / np.maximum(m, 1.0)) * steps).sum(axis=-1)
    return np.asarray(area / rows[..., -1])


@_from_counts
def accuracy_at_coverage(correct: np.ndarray, wrong: np.ndarray, coverage: float = 0.8) -> np.ndarray:
    """Accuracy on the most confident rows, by default 80% of all (`coverage`).

    >>> accuracy_at_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]], coverage=0.5)
    1.0
    """
    if not 0 < coverage <= 1:
        raise EbmcalError(f"coverage is {coverage}; expected a share above 0 and at most 1.")
    size = correct + wrong
    rows = np.cumsum(size, axis=-1)
    # 0.7 · 10 is slightly above 7 in floats, and 8 rows would be one too many.
    wanted = np.maximum(np.ceil(coverage * rows[..., -1:] * (1 - 1e-12)), 1.0)
    taken = np.clip(wanted - (rows - size), 0.0, size)
    return (correct * taken / np.maximum(size, 1.0)).sum(axis=-1) / wanted[..., 0]


@_from_counts
def coverage_at_risk(correct: np.ndarray, wrong: np.ndarray, risk: float = 0.05) -> np.ndarray:
    """The largest coverage with at most 5% risk (`risk`); 0 if there is none.

    >>> coverage_at_risk([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]], risk=0.1)
    0.5
    """
    if not 0 <= risk <= 1:
        raise EbmcalError(f"risk is {risk}; expected a share from 0 to 1.")
    rows, errors = np.cumsum(correct + wrong, axis=-1), np.cumsum(wrong, axis=-1)
    return np.where(errors <= risk * rows, rows, 0.0).max(axis=-1) / rows[..., -1]


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve: answering only rows with score ≥ threshold; one point per distinct score."""

    coverage: np.ndarray  # share of rows answered, ascending, ends at 1
    risk: np.ndarray  # error rate among the answered rows
    thresholds: np.ndarray  # scores, descending


def risk_coverage(labels: Any, *, logits: Any = None, probs: Any = None, scores: Any = None) -> RiskCoverage:
    """The risk-coverage curve of the most probable class.

    >>> risk_coverage([0, 1], probs=[[0.9, 0.1], [0.6, 0.4]]).risk
    array([0. , 0.5])
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    levels, correct, wrong = _counts_by_level(labels, probs, scores)
    answered = np.cumsum(correct + wrong)
    return RiskCoverage(answered / answered[-1], np.cumsum(wrong) / answered, levels)


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
    levels = np.unique(scores)
    if max_levels is None or len(levels) <= max_levels:
        return levels
    return np.unique(np.sort(scores)[np.linspace(0, len(scores), max_levels, endpoint=False).astype(np.intp)])


_HARMONIC = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, 1 << 16))])


def _harmonic(n: np.ndarray) -> np.ndarray:
    """Harmonic numbers H(n); from a table, which is faster, if they are in it."""
    n = np.rint(n)
    if n.max() < len(_HARMONIC):
        return _HARMONIC[n.astype(np.intp)]
    from scipy.special import digamma

    return digamma(n + 1) + np.euler_gamma


def ood_scores(kind: str, *, logits: Any = None, probs: Any = None, energies: Any = None) -> np.ndarray:
    """Scores [n], higher = more in-distribution, of kind "energy", "max_prob" or "entropy".

    "energy" is −energies; without `energies`, logsumexp of the logits (the `hidden` energy of any classifier).

    >>> ood_scores("energy", energies=[-3.0, 2.0]), ood_scores("max_prob", probs=[[0.25, 0.75]])
    (array([ 3., -2.]), array([0.75]))
    """
    from scipy.special import logsumexp, xlogy

    if kind not in OOD_SCORES:
        raise unknown_name("OOD score", kind, OOD_SCORES)
    if kind == "energy":
        if energies is not None:
            return -as_scores(energies, "energies")
        if logits is None:
            raise EbmcalError(
                "Probabilities do not determine the energy. Pass energies or logits (in a file: columns energy or "
                "logit_<class>), or use another score: confidence (--score), max_prob (--ood-score)."
            )
        return np.asarray(logsumexp(as_logits(logits).astype(np.float64, copy=False), axis=1))
    probs = as_probs(logits=logits, probs=probs)
    # Minus the entropy: a confident row is more in-distribution.
    return np.asarray(probs.max(axis=1) if kind == "max_prob" else xlogy(probs, probs).sum(axis=1))


OOD_SCORES = ("energy", "max_prob", "entropy")


def ood_detection(in_scores: Any, out_scores: Any) -> dict[str, float]:
    """How well scores separate in-distribution rows (positive) from OOD rows (negative).

    - auroc: the probability that an in-distribution row scores above an OOD row, ties count half;
    - aupr: average precision with in-distribution rows as the positives; chance level is their share;
    - fpr95: share of OOD rows accepted by the strictest threshold that keeps 95% of in-distribution rows.

    >>> ood_detection([2.0, 3.0], [1.0])
    {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    kept, passed = ood_counts(in_scores, out_scores)
    return {name: float(formula(kept, passed)) for name, formula in DETECTION.items()}


def ood_counts(in_scores: Any, out_scores: Any, max_levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of in-distribution and OOD rows at each level of score, the highest score first."""
    scores = [as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores")]
    levels = score_levels(np.concatenate(scores), max_levels)
    places = (np.searchsorted(levels, s, side="right") - 1 for s in scores)
    kept, passed = (np.bincount(p, minlength=len(levels))[::-1].astype(np.float64) for p in places)
    return kept, passed


def _average_precision(kept: np.ndarray, passed: np.ndarray) -> np.ndarray:
    true, false = np.cumsum(kept, axis=-1), np.cumsum(passed, axis=-1)
    precision = true / np.maximum(true + false, 1.0)
    return (kept * precision).sum(axis=-1) / true[..., -1]


def _fpr95(kept: np.ndarray, passed: np.ndarray) -> np.ndarray:
    true, false = np.cumsum(kept, axis=-1), np.cumsum(passed, axis=-1)
    enough = true >= 0.95 * true[..., -1:] * (1 - 1e-12)  # 0.95 · 20 is slightly off 19 in floats
    return np.where(enough, false, np.inf).min(axis=-1) / false[..., -1]


#: Formulas from the numbers of in-distribution and OOD rows at each level [..., levels].
DETECTION: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "auroc": _auroc,
    "aupr": _average_precision,
    "fpr95": _fpr95,
}
