"""How hard noise is to tell from data, before any training: lengths, words, copies, and a probe of an encoder.

Noise that is told apart always teaches nothing of the data; noise that cannot be told apart teaches nothing at all.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebmcal.data import Texts
from ebmcal.metrics import ood_detection
from ebmcal.noise.sources import Row

#: Told apart more often than this: too easy. Less often: too hard.
TOO_EASY, TOO_HARD = 0.97, 0.6

#: Data texts that the words of the noise are compared with.
COMPARED = 20_000


def describe(noise: Sequence[Row], data: Texts) -> dict[str, Any]:
    """Noise beside data: mean number of words of both, share of words that no data text has, share of copies."""
    known = data.rows(np.arange(min(len(data), COMPARED)))
    words = {word for row in known for word in _words(row)}
    counts = [len(_words(row)) for row in noise]
    unknown = sum(word not in words for row in noise for word in _words(row))
    copies = set(known)
    return {
        "words": round(float(np.mean(counts)), 1),
        "words_of_data": round(float(np.mean([len(_words(row)) for row in known])), 1),
        "unknown_words": round(unknown / max(1, sum(counts)), 4),
        "identical": round(sum(row in copies for row in noise) / len(noise), 4),
    }


def _words(row: Row) -> list[str]:
    return " ".join(text for text in row if text).lower().split()


def probe(data: np.ndarray, noise: np.ndarray, folds: int = 5, ridge: float = 1.0) -> float:
    """How often a ridge regression on features [n, H] of both tells them apart, on texts it was not fitted on."""
    features = np.concatenate([data, noise]).astype(np.float64)
    features = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-6)
    target = np.concatenate([np.ones(len(data)), -np.ones(len(noise))])
    fold = np.random.default_rng(0).permutation(len(target)) % folds
    scores = np.empty(len(target))
    for f in range(folds):
        x, y = features[fold != f], target[fold != f]
        weights = np.linalg.solve(x.T @ x + ridge * len(x) * np.eye(x.shape[1]), x.T @ y)
        scores[fold == f] = features[fold == f] @ weights
    return float(ood_detection(scores[target > 0], scores[target < 0])["auroc"])


def verdict(told_apart: float) -> str:
    """What a share told apart on held-out texts means."""
    if told_apart > TOO_EASY:
        return "too easy: the energy learns little from it"
    return "too hard: it is hardly different from data" if told_apart < TOO_HARD else "teaches"
