"""How difficult noise is to distinguish from data, before any training: lengths, words, copies, and a linear probe.

Noise that is always recognised teaches nothing about the data; noise that equals the data teaches nothing at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from ebmcal.noise.texts import TextPair

#: How a gap and the separator of a pair are shown in a masked text.
MASK, SEPARATOR = "<M>", "<SEP>"

#: Folds of the probe's cross-validation.
N_FOLDS = 5


def describe_noise(noise: Sequence[TextPair], train: Sequence[TextPair], test: Sequence[TextPair]) -> dict[str, Any]:
    """Noise next to test texts: words per text, share of words unknown from the training texts, share of copies."""
    known = set(train)
    vocabulary = {word for text in known for word in _words(text)}
    facts: dict[str, Any] = {"copies": round(sum(text in known for text in noise) / max(1, len(noise)), 4)}
    for suffix, texts in (("", noise), ("_of_data", test)):
        words = [_words(text) for text in texts]
        n_words, n_unknown = sum(map(len, words)), sum(w not in vocabulary for ws in words for w in ws)
        facts[f"words{suffix}"] = round(n_words / max(1, len(words)), 1)
        facts[f"unknown_words{suffix}"] = round(n_unknown / max(1, n_words), 4)
    return facts


def _words(text: TextPair) -> list[str]:
    return " ".join(part for part in text if part).lower().split()


def kept_share(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """The share of unmasked words that an LM repeated in order, over rows of a noise store; None if there are none.

    Words next to a gap are left out, because they may be parts of words.

    >>> kept_share([{"masked": "a very good <M> and so on", "text": "a good film and so on", "text_pair": None}])
    0.75
    """
    n_kept = n_repeated = 0
    for row in (row for row in rows if MASK in row["masked"]):
        words = ["", *row["masked"].replace(MASK, f" {MASK} ").replace(SEPARATOR, " ").split(), ""]
        kept = [words[i] for i in range(1, len(words) - 1) if MASK not in words[i - 1 : i + 2]]
        written = f"{row['text']} {row['text_pair'] or ''}".split()
        matches = SequenceMatcher(None, kept, written, autojunk=False).get_matching_blocks()
        n_kept, n_repeated = n_kept + len(kept), n_repeated + sum(match.size for match in matches)
    return n_repeated / n_kept if n_kept else None


def probe_auroc(data: np.ndarray, noise: np.ndarray, groups: np.ndarray | None = None) -> float | None:
    """Cross-validated AUROC of a linear probe between features of data [n, H] and of noise [m, H].

    Noise texts made from the same texts share a group [m] and stay in one fold; otherwise the probe would recognise
    them by what they share. None if there are too few texts or groups for two folds.
    """
    from sklearn.linear_model import Ridge
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    groups = np.arange(len(noise)) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_folds = min(N_FOLDS, len(np.unique(groups)), len(data))
    if n_folds < 2:
        return None
    features = np.concatenate([data, noise]).astype(np.float64)
    is_data = np.concatenate([np.ones(len(data)), np.zeros(len(noise))])
    data_folds = np.random.default_rng(0).permutation(len(data))
    folds = PredefinedSplit(np.concatenate([data_folds, groups]) % n_folds)
    probe = make_pipeline(StandardScaler(), Ridge(alpha=float(len(features))))
    return float(roc_auc_score(is_data, cross_val_predict(probe, features, is_data, cv=folds)))
