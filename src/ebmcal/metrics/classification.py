"""How often the predicted class, the most probable one, is right: accuracy, macro F1, Matthews correlation.

All three are functions of the confusion matrix [label, predicted]; ties go to the first class.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ebmcal.metrics.sums import Sums, mean_of_rows, top_label
from ebmcal.predictions.arrays import as_labels_and_probs


def accuracy(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """The share of rows whose most probable class is the label.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> accuracy([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]])
    0.5
    """
    return accuracy_sums(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def macro_f1(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """The mean of the classes' F1, over the classes that occur as a label or as a prediction.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(macro_f1([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]]), 4)
    0.3333
    """
    return macro_f1_sums(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def matthews(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Matthews correlation between labels and predictions, of any number of classes; 0 where either is constant.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> matthews([1, 0], probs=[[0.2, 0.8], [0.9, 0.1]])
    1.0
    """
    return matthews_sums(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def accuracy_sums(labels: np.ndarray, probs: np.ndarray) -> Sums:
    """Accuracy as the mean of one number a row."""

    def right(part: slice) -> np.ndarray:
        return (top_label(probs[part])[1] == labels[part]).astype(np.float64)

    return mean_of_rows(len(labels), probs.shape[1], right)


def macro_f1_sums(labels: np.ndarray, probs: np.ndarray) -> Sums:
    """Macro F1 from the confusion matrix."""

    def finish(confusion: np.ndarray) -> np.ndarray:
        both = confusion.sum(axis=-1) + confusion.sum(axis=-2)  # times as label and as prediction
        occurs = both > 0
        f1 = 2 * np.diagonal(confusion, axis1=-2, axis2=-1) / np.where(occurs, both, 1.0)
        return f1.sum(axis=-1) / occurs.sum(axis=-1)

    return _confusion_sums(labels, probs, finish)


def matthews_sums(labels: np.ndarray, probs: np.ndarray) -> Sums:
    """Matthews correlation from the confusion matrix (Gorodkin's form for many classes)."""

    def finish(confusion: np.ndarray) -> np.ndarray:
        true, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
        n, right = true.sum(axis=-1), np.trace(confusion, axis1=-2, axis2=-1)
        spread = (n * n - (true * true).sum(axis=-1)) * (n * n - (predicted * predicted).sum(axis=-1))
        joint = right * n - (true * predicted).sum(axis=-1)
        return np.divide(joint, np.sqrt(spread), out=np.zeros(np.shape(joint)), where=spread > 0)

    return _confusion_sums(labels, probs, finish)


def _confusion_sums(labels: np.ndarray, probs: np.ndarray, finish: Callable[[np.ndarray], np.ndarray]) -> Sums:
    n_classes = probs.shape[1]

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        cells = (labels[part] * n_classes + top_label(probs[part])[1])[None]
        return cells, np.ones(cells.shape)

    def finish_sums(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return finish(sums.reshape(*sums.shape[:-1], n_classes, n_classes))

    return Sums(len(labels), n_classes, n_classes**2, entries, finish_sums)
