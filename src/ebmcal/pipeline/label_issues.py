"""Label issues: training rows whose label contradicts out-of-fold predictions (confident learning, Northcutt 2021).

A row is suspicious if the model, which was not trained on it, gives another class at least that class's average
self-confidence: the mean of P(j|x) over the rows labelled j. Suspicious rows are ranked by the margin between their
given label and the most probable other class.
"""

import numpy as np
import pandas as pd

from ebmcal.predictions import Predictions


def find_label_issues(predictions: Predictions) -> pd.DataFrame:
    """Suspicious rows, most suspicious first: id, text, given, suggested, score (in 0..1, high = suspicious).

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.05, 0.95]]
    >>> p = Predictions([0, 0, 1, 1, 0], ("no", "yes"), probs=probs)
    >>> find_label_issues(p)[["id", "given", "suggested"]].values.tolist()
    [['4', 'no', 'yes']]
    """
    rows = predictions.labelled()
    probs, labels = rows.probs, rows.labels
    n_classes = len(rows.label_names)
    own = probs[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=n_classes)
    thresholds = np.bincount(labels, weights=own, minlength=n_classes) / np.maximum(counts, 1)
    thresholds[counts == 0] = np.inf
    others = np.where(probs >= thresholds, probs, -1.0)  # [n, C], classes the model is confident of
    others[np.arange(len(labels)), labels] = -1.0
    suggested = others.argmax(axis=1)
    best_other = others.max(axis=1)
    score = (1 + best_other - own) / 2
    chosen = np.flatnonzero((best_other > own) & (best_other >= 0))
    chosen = chosen[np.argsort(-score[chosen], kind="stable")]
    names = np.array(rows.label_names, dtype=object)
    return pd.DataFrame(
        {
            "id": [str(rows.ids[i]) for i in chosen],
            "text": [rows.texts[i] if rows.texts else "" for i in chosen],
            "given": names[labels[chosen]],
            "suggested": names[suggested[chosen]],
            "score": score[chosen],
        }
    )
