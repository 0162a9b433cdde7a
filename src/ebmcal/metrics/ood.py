"""Telling text of another kind from the text a classifier was made for, by energy, maximum probability or entropy.

A score says how far a row looks in-domain: **higher = more in-domain**. In-domain rows are the positives.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.metrics.intervals import Interval, interval_of
from ebmcal.metrics.registry import metric
from ebmcal.metrics.resampling import MAX_ROWS
from ebmcal.metrics.selective import error_auroc_of_counts, merged_levels
from ebmcal.predictions.arrays import as_logits, as_probs, as_scores, chunks


def ood_scores(kind: str, *, logits: Any = None, probs: Any = None, energies: Any = None) -> np.ndarray:
    """Scores [n], higher = more in-domain, of kind "energy", "max_prob" or "entropy".

    "energy" is −energies; without `energies`, −Ê = logsumexp of the logits (the `hidden` energy of any classifier).

    >>> ood_scores("energy", energies=[-3.0, 2.0]), ood_scores("max_prob", probs=[[0.25, 0.75]])
    (array([ 3., -2.]), array([0.75]))
    """
    if kind not in OOD_SCORES:
        raise unknown_name("out-of-domain score", kind, OOD_SCORES)
    return OOD_SCORES[kind](logits, probs, energies)


def ood_detection(in_scores: Any, out_scores: Any) -> dict[str, float]:
    """How well scores tell in-domain rows (positive) from out-of-domain rows (negative); ties are right.

    - auroc: the chance that an in-domain row scores higher than an out-of-domain row, ties half;
    - aupr: average precision with in-domain rows as the positives; chance level is their share;
    - fpr_at_95_recall: share of out-of-domain rows let in by the strictest threshold that keeps 95% of in-domain rows.

    >>> ood_detection([2.0, 3.0], [1.0])
    {'auroc': 1.0, 'aupr': 1.0, 'fpr_at_95_recall': 0.0}
    """
    kept, passed = _counts(in_scores, out_scores)
    return {name: float(function(kept, passed)) for name, function in DETECTION.items()}


def ood_bootstrap(
    in_scores: Any, out_scores: Any, *, n_resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval]:
    """`ood_detection` with bootstrap intervals; in-domain and out-of-domain rows are drawn each among themselves.

    Drawing rows is drawing how many fall on each level of score, which is multinomial. With very many distinct scores,
    neighbours are merged for the resamples.

    >>> ood_bootstrap([2.0, 3.0], [1.0], n_resamples=10)["auroc"].low
    1.0
    """
    values = ood_detection(in_scores, out_scores)
    kept, passed = _counts(in_scores, out_scores, MAX_ROWS)
    rng = np.random.default_rng([seed, 4])
    drawn: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in DETECTION}
    for part in chunks(n_resamples, len(kept)):
        shape = part.stop - part.start
        a, b = (rng.multinomial(int(c.sum()), c / c.sum(), shape).astype(np.float64) for c in (kept, passed))
        for name, function in DETECTION.items():
            drawn[name].append(function(a, b))
    out = {}
    for name, function in DETECTION.items():
        shift = values[name] - float(function(kept, passed))  # of merging
        low, high = interval_of(_SHARE, values[name], np.concatenate(drawn[name]) + shift, level)
        out[name] = Interval(values[name], low, high)
    return out


_SHARE = metric("error_auroc")  # like it, these lie within 0 and 1, and noise does not raise them


def _counts(in_scores: Any, out_scores: Any, max_levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """How many in-domain and out-of-domain rows are on each level of score, the most in-domain level first."""
    scores = [as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores")]
    levels = merged_levels(np.concatenate(scores), max_levels)
    places = (np.searchsorted(levels, s, side="right") - 1 for s in scores)
    inside, outside = (np.bincount(p, minlength=len(levels))[::-1].astype(np.float64) for p in places)
    return inside, outside


def _average_precision(kept: np.ndarray, passed: np.ndarray) -> np.ndarray:  # both [..., levels]
    true, false = np.cumsum(kept, axis=-1), np.cumsum(passed, axis=-1)
    precision = true / np.maximum(true + false, 1.0)
    return (kept * precision).sum(axis=-1) / true[..., -1]


def _fpr_at_95_recall(kept: np.ndarray, passed: np.ndarray) -> np.ndarray:
    true, false = np.cumsum(kept, axis=-1), np.cumsum(passed, axis=-1)
    enough = true >= 0.95 * true[..., -1:] * (1 - 1e-12)  # 0.95 · 20 is a hair off 19 in floats
    return np.where(enough, false, np.inf).min(axis=-1) / false[..., -1]


def _by_energy(logits: Any, probs: Any, energies: Any) -> np.ndarray:
    if energies is not None:
        return -as_scores(energies, "energies")
    if logits is None:
        raise EbmcalError(
            "Scores by energy need energies= or logits=; probabilities have lost the scale of the logits."
        )
    from scipy.special import logsumexp

    return logsumexp(as_logits(logits).astype(np.float64, copy=False), axis=1)


def _by_max_prob(logits: Any, probs: Any, energies: Any) -> np.ndarray:
    return as_probs(logits=logits, probs=probs).max(axis=1)


def _by_entropy(logits: Any, probs: Any, energies: Any) -> np.ndarray:
    from scipy.special import xlogy

    probs = as_probs(logits=logits, probs=probs)
    return xlogy(probs, probs).sum(axis=1)  # minus the entropy: a sure row is the more in-domain


OOD_SCORES: dict[str, Callable[[Any, Any, Any], np.ndarray]] = {
    "energy": _by_energy,
    "max_prob": _by_max_prob,
    "entropy": _by_entropy,
}
DETECTION: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "auroc": error_auroc_of_counts,
    "aupr": _average_precision,
    "fpr_at_95_recall": _fpr_at_95_recall,
}
