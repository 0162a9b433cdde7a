"""How often the predicted class, the most probable one, is correct: accuracy, macro F1, Matthews correlation.

All three are functions of how often each class is the label, is predicted, and is both; ties go to the first class.
They are sums over rows, so that the bootstrap can reuse them; the tests compare them with scikit-learn.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ebmcal.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from ebmcal.predictions.arrays import as_labels_and_probs, chunks

#: Up to here a loop over classes beats numpy's argmax over short rows: "top-label ECE" in benchmarks/metrics.json.
_LOOP_CLASSES = 16


def accuracy(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """The share of rows with the label as the most probable class.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> accuracy([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]])
    0.5
    """
    return accuracy_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def macro_f1(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """The mean F1 over the classes that occur as a label or as a prediction.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(macro_f1([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]]), 4)
    0.3333
    """
    return macro_f1_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def matthews(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Matthews correlation of labels and predictions for any number of classes; 0 if either is constant.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> matthews([1, 0], probs=[[0.2, 0.8], [0.9, 0.1]])
    1.0
    """
    return matthews_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def top_label(probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest probability of each row [n] and its class [n], the first one of a tie.

    >>> top_label(np.array([[0.5, 0.5], [0.1, 0.9]]))
    (array([0.5, 0.9]), array([0, 1], dtype=int32))
    """
    confidence, predicted = np.empty(len(probs)), np.zeros(len(probs), dtype=np.int32)
    for part in chunks(*probs.shape):
        block = probs[part]
        if probs.shape[1] > _LOOP_CLASSES:
            predicted[part] = block.argmax(axis=1)
            confidence[part] = block.max(axis=1)
            continue
        top = functools.reduce(np.maximum, block.T)
        confidence[part] = top
        below = np.ones(len(block), dtype=bool)  # is every class so far below the maximum?
        for column in block.T[:-1]:
            below &= column < top
            predicted[part] += below
    return confidence, predicted


def confidence_and_correct(labels: np.ndarray, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest probability of each row [n] and whether its class is the label [n]."""
    confidence, predicted = top_label(probs)
    return confidence, predicted == labels


def accuracy_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Accuracy as the mean of one number per row."""
    return mean_statistics(confidence_and_correct(labels, probs)[1])


def macro_f1_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Macro F1 from how often each class is the label, is predicted, and is both."""

    def finish(true: np.ndarray, predicted: np.ndarray, both: np.ndarray) -> np.ndarray:
        occurs = true + predicted > 0
        f1 = 2 * both / np.where(occurs, true + predicted, 1.0)
        return f1.sum(axis=-1) / occurs.sum(axis=-1)

    return _class_counts(labels, probs, finish)


def matthews_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Matthews correlation from the same counts (Gorodkin's form for many classes)."""

    def finish(true: np.ndarray, predicted: np.ndarray, both: np.ndarray) -> np.ndarray:
        n = true.sum(axis=-1)
        variances = (n * n - (true * true).sum(axis=-1)) * (n * n - (predicted * predicted).sum(axis=-1))
        covariance = both.sum(axis=-1) * n - (true * predicted).sum(axis=-1)
        return np.divide(covariance, np.sqrt(variances), out=np.zeros(np.shape(covariance)), where=variances > 0)

    return _class_counts(labels, probs, finish)


def _class_counts(labels: np.ndarray, probs: np.ndarray, finish: Callable[..., np.ndarray]) -> SufficientStatistics:
    """Row sums, column sums and diagonal of the confusion matrix: 3 C sums, where the matrix has C²."""
    n_classes = probs.shape[1]
    predictions = top_label(probs)[1]

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        true, predicted = labels[part], predictions[part]
        ones = np.ones(len(true))
        index = np.stack([true, predicted + n_classes, true + 2 * n_classes])
        return index, np.stack([ones, ones, predicted == true])

    def finish_sums(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return finish(*np.moveaxis(sums.reshape(*sums.shape[:-1], 3, n_classes), -2, 0))

    return SufficientStatistics(len(labels), 3 * n_classes, entries, finish_sums, width=3)
