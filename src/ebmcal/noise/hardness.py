"""How hard noise is to tell from data, before any training: lengths, words, copies, and a probe of an encoder.

Noise that is told apart always teaches nothing of the data; noise that cannot be told apart teaches nothing at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from ebmcal.data import Texts
from ebmcal.metrics import ood_detection
from ebmcal.noise.sources import Row

#: How a gap and the mark between two sentences look in a masked text.
MASK, SEPARATOR = "<M>", "<SEP>"

#: A language model that writes fewer of the words again that it read has not learned to fill in.
FEW_KEPT = 0.7
LOSES_WORDS = "It has hardly learned to fill in: fit it longer (--noise-lm-steps), or use continue:LM or gaps:LM."

#: Noise texts that this is measured on.
KEPT_FROM = 500

#: Parts of the texts of which a probe is judged on one and fitted on the others.
FOLDS = 5

#: Data texts that the words of the noise are compared with.
COMPARED = 20_000


def describe(noise: Sequence[Row], train: Texts, data: Texts) -> dict[str, Any]:
    """Noise beside data that was not trained on: words a text, share of words that no training text has, copies."""
    known = set(train.rows(np.arange(min(len(train), COMPARED))))
    words = {word for row in known for word in _words(row)}
    facts: dict[str, Any] = {"identical": round(sum(row in known for row in noise) / len(noise), 4)}
    for suffix, rows in (("", noise), ("_of_data", data.rows(np.arange(min(len(data), COMPARED))))):
        found = [_words(row) for row in rows]
        n_words = sum(map(len, found))
        facts[f"words{suffix}"] = round(n_words / len(found), 1)
        facts[f"unknown_words{suffix}"] = round(sum(w not in words for ws in found for w in ws) / max(1, n_words), 4)
    return facts


def kept_share(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Share of the words that a language model read and was to write again that it wrote, in their order.

    Words beside a gap are left out: they may be parts of words. None where no others are, as where nothing was read.

    >>> kept_share([{"masked": "a very good <M> and so on", "text": "a good film and so on", "text_pair": None}])
    0.75
    """
    n_kept = n_found = 0
    for row in (row for row in rows if MASK in row["masked"]):
        words = ["", *row["masked"].replace(MASK, f" {MASK} ").replace(SEPARATOR, " ").split(), ""]
        kept = [words[i] for i in range(1, len(words) - 1) if MASK not in words[i - 1 : i + 2]]
        written = f"{row['text']} {row['text_pair'] or ''}".split()
        matches = SequenceMatcher(None, kept, written, autojunk=False).get_matching_blocks()
        n_kept, n_found = n_kept + len(kept), n_found + sum(match.size for match in matches)
    return n_found / n_kept if n_kept else None


def _words(row: Row) -> list[str]:
    return " ".join(text for text in row if text).lower().split()


def probe(data: np.ndarray, noise: np.ndarray, groups: np.ndarray | None = None, ridge: float = 1.0) -> float:
    """How often a ridge regression on features [n, H] of both tells them apart, on texts it was not fitted on.

    Noise texts that are made of the same texts share a group [n]: fitted on one and judged on another, the probe would
    know them by what they share.
    """
    features = np.concatenate([data, noise]).astype(np.float64)
    features = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-6)
    target = np.concatenate([np.ones(len(data)), -np.ones(len(noise))])
    rng = np.random.default_rng(0)
    if groups is None or not groups.any():  # unknown, or one only
        groups = rng.permutation(len(noise))
    fold = np.concatenate([rng.permutation(len(data)), groups]) % min(FOLDS, groups.max() + 1)
    scores = np.empty(len(target))
    for f in np.unique(fold):
        x, y = features[fold != f], target[fold != f]
        weights = np.linalg.solve(x.T @ x + ridge * len(x) * np.eye(x.shape[1]), x.T @ y)
        scores[fold == f] = features[fold == f] @ weights
    return float(ood_detection(scores[target > 0], scores[target < 0])["auroc"])
