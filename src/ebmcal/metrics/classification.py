"""How often the predicted class, the most probable one, is right: accuracy, macro F1, Matthews correlation.

All three are functions of how often each class is the label, is predicted, and is both; ties go to the first class.
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
    """Macro F1 from how often each class is the label, is predicted, and is both."""

    def finish(true: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> np.ndarray:
        occurs = true + predicted > 0
        f1 = 2 * right / np.where(occurs, true + predicted, 1.0)
        return f1.sum(axis=-1) / occurs.sum(axis=-1)

    return _class_sums(labels, probs, finish)


def matthews_sums(labels: np.ndarray, probs: np.ndarray) -> Sums:
    """Matthews correlation from the same counts (Gorodkin's form for many classes)."""

    def finish(true: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> np.ndarray:
        n = true.sum(axis=-1)
        spread = (n * n - (true * true).sum(axis=-1)) * (n * n - (predicted * predicted).sum(axis=-1))
        joint = right.sum(axis=-1) * n - (true * predicted).sum(axis=-1)
        return np.divide(joint, np.sqrt(spread), out=np.zeros(np.shape(joint)), where=spread > 0)

    return _class_sums(labels, probs, finish)


def _class_sums(labels: np.ndarray, probs: np.ndarray, finish: Callable[..., np.ndarray]) -> Sums:
    """Rows and columns of the confusion matrix added up and its diagonal: 3 C sums where the matrix has C²."""
    n_classes = probs.shape[1]

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        true, predicted = labels[part], top_label(probs[part])[1].astype(np.intp)
        cells = np.stack([true, n_classes + predicted, 2 * n_classes + true])
        return cells, np.stack([np.ones(len(true)), np.ones(len(true)), predicted == true])

    def finish_sums(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return finish(*np.moveaxis(sums.reshape(*sums.shape[:-1], 3, n_classes), -2, 0))

    return Sums(len(labels), n_classes, 3 * n_classes, entries, finish_sums)
