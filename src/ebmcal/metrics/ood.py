"""Out-of-distribution (OOD) detection: how well a score separates test texts from other texts.

A score is **higher for in-distribution rows**; these are the positives.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.metrics.intervals import Interval, checked_level, percentile_interval
from ebmcal.metrics.registry import METRICS
from ebmcal.metrics.resampling import MAX_ROWS
from ebmcal.metrics.selective import auroc_of_counts, score_levels
from ebmcal.predictions.arrays import as_logits, as_probs, as_scores, chunks


def ood_scores(kind: str, *, logits: Any = None, probs: Any = None, energies: Any = None) -> np.ndarray:
    """Scores [n], higher = more in-distribution, of kind "energy", "max_prob" or "entropy".

    "energy" is −energies; without `energies`, logsumexp of the logits (the `hidden` energy of any classifier).

    >>> ood_scores("energy", energies=[-3.0, 2.0]), ood_scores("max_prob", probs=[[0.25, 0.75]])
    (array([ 3., -2.]), array([0.75]))
    """
    if kind not in OOD_SCORES:
        raise unknown_name("OOD score", kind, OOD_SCORES)
    return OOD_SCORES[kind](logits, probs, energies)


def ood_detection(in_scores: Any, out_scores: Any) -> dict[str, float]:
    """How well scores separate in-distribution rows (positive) from OOD rows (negative).

    - auroc: the probability that an in-distribution row scores above an OOD row, ties count half;
    - aupr: average precision with in-distribution rows as the positives; chance level is their share;
    - fpr95: share of OOD rows accepted by the strictest threshold that keeps 95% of in-distribution rows.

    >>> ood_detection([2.0, 3.0], [1.0])
    {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    kept, passed = _counts(in_scores, out_scores)
    return {name: float(function(kept, passed)) for name, function in DETECTION.items()}


def ood_bootstrap(
    in_scores: Any, out_scores: Any, *, n_resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval]:
    """`ood_detection` with bootstrap intervals; in-distribution and OOD rows are resampled separately.

    Drawing rows is drawing how many fall on each level of score, which is multinomial. With very many distinct scores,
    neighbours are merged for the resamples.

    >>> ood_bootstrap([2.0, 3.0], [1.0], n_resamples=10)["auroc"].low
    1.0
    """
    checked_level(level)
    values = ood_detection(in_scores, out_scores)
    kept, passed = _counts(in_scores, out_scores, MAX_ROWS)
    rng = np.random.default_rng([seed, 4])
    drawn: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in DETECTION}
    for part in chunks(n_resamples, len(kept)):
        n = part.stop - part.start
        a, b = (rng.multinomial(int(c.sum()), c / c.sum(), n).astype(np.float64) for c in (kept, passed))
        for name, function in DETECTION.items():
            drawn[name].append(function(a, b))
    intervals = {}
    for name, function in DETECTION.items():
        resampled = np.concatenate(drawn[name]) + (values[name] - float(function(kept, passed)))  # shift by merging
        ends = percentile_interval(METRICS["error_auroc"], values[name], resampled, level)  # the same bounds, 0 and 1
        intervals[name] = Interval(values[name], *ends)
    return intervals


def _counts(in_scores: Any, out_scores: Any, max_levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of in-distribution and OOD rows at each level of score, the highest score first."""
    scores = [as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores")]
    levels = score_levels(np.concatenate(scores), max_levels)
    places = (np.searchsorted(levels, s, side="right") - 1 for s in scores)
    kept, passed = (np.bincount(p, minlength=len(levels))[::-1].astype(np.float64) for p in places)
    return kept, passed


def _average_precision(kept: np.ndarray, passed: np.ndarray) -> np.ndarray:  # both [..., levels]
    true, false = np.cumsum(kept, axis=-1), np.cumsum(passed, axis=-1)
    precision = true / np.maximum(true + false, 1.0)
    return (kept * precision).sum(axis=-1) / true[..., -1]


def _fpr95(kept: np.ndarray, passed: np.ndarray) -> np.ndarray:
    true, false = np.cumsum(kept, axis=-1), np.cumsum(passed, axis=-1)
    enough = true >= 0.95 * true[..., -1:] * (1 - 1e-12)  # 0.95 · 20 is slightly off 19 in floats
    return np.where(enough, false, np.inf).min(axis=-1) / false[..., -1]


def _by_energy(logits: Any, probs: Any, energies: Any) -> np.ndarray:
    if energies is not None:
        return -as_scores(energies, "energies")
    if logits is None:
        raise EbmcalError("Scores by energy need energies= or logits=; probabilities do not determine the energy.")
    from scipy.special import logsumexp

    return logsumexp(as_logits(logits).astype(np.float64, copy=False), axis=1)


def _by_max_prob(logits: Any, probs: Any, energies: Any) -> np.ndarray:
    return as_probs(logits=logits, probs=probs).max(axis=1)


def _by_entropy(logits: Any, probs: Any, energies: Any) -> np.ndarray:
    from scipy.special import xlogy

    probs = as_probs(logits=logits, probs=probs)
    return xlogy(probs, probs).sum(axis=1)  # minus the entropy: a confident row is more in-distribution


OOD_SCORES: dict[str, Callable[[Any, Any, Any], np.ndarray]] = {
    "energy": _by_energy,
    "max_prob": _by_max_prob,
    "entropy": _by_entropy,
}
DETECTION: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "auroc": auroc_of_counts,
    "aupr": _average_precision,
    "fpr95": _fpr95,
}
