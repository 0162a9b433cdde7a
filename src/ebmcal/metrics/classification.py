"""Scores of predicted classes and of probabilities: accuracy, macro F1, Matthews; NLL, Brier.

Every function takes `labels` [n] and `probs` or `logits` [n, C]. The predicted class is the most probable one, of a tie
the first. A metric is defined by its `SufficientStatistics`, what each row adds to some sums: value = finish(sums). A
bootstrap resample only weighs the rows differently, so what each row adds is computed once.

ECE, NLL and Brier hide overconfident errors when accuracy is high, because there are few of them.
`confidence_on_errors` and `balanced_brier` weigh errors separately.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ebmcal.predictions import as_labels_and_probs, chunks

#: Up to here a loop over classes beats numpy's argmax over short rows: "top-label ECE" in benchmarks/metrics.json.
_LOOP_CLASSES = 16
#: The NLL counts a probability of 0 as this, the smallest float64.
TINY = np.finfo(np.float64).tiny
#: Up to so many rows, and rows times classes, the bootstrap draws single rows.
MAX_ROWS = 32_768
MAX_ENTRIES = 1 << 22

#: From sums over rows [..., *shape] of total weight n [...] to values [...].
Finish = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class SufficientStatistics:
    """What each row adds to which sums, and how the sums give the metric.

    `entries(part)` returns, for a slice of rows, the index of the sum that each entry adds to [k, rows] and the amount
    [k, rows]; the index counts through the sums, which have this `shape`.
    """

    n_rows: int
    shape: tuple[int, ...]
    entries: Callable[[slice], tuple[np.ndarray, np.ndarray]]
    finish: Finish
    width: int = 1  # entries per row, for the size of chunks

    def value(self) -> float:
        """The metric on all rows."""
        totals = np.zeros(math.prod(self.shape))
        for part in chunks(self.n_rows, self.width):
            index, amount = self.entries(part)
            totals += np.bincount(index.ravel(), weights=amount.ravel(), minlength=len(totals))
        return float(self.finish(totals.reshape(self.shape), np.array(float(self.n_rows))))


def mean_statistics(values: np.ndarray) -> SufficientStatistics:
    """The mean of one number per row [n].

    >>> mean_statistics(np.array([1.0, 2.0, 6.0])).value()
    3.0
    """

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        amount = values[None, part].astype(np.float64, copy=False)
        return np.zeros(amount.shape, dtype=np.intp), amount

    return SufficientStatistics(len(values), (1,), entries, lambda sums, n: sums[..., 0] / n)


class MetricFunction(Protocol):
    """A metric that users call; `statistics(labels, probs, **options)` takes validated arrays, for resampling."""

    statistics: Callable[..., SufficientStatistics]

    def __call__(self, labels: Any, *, logits: Any = None, probs: Any = None, **options: Any) -> float: ...


def from_statistics(statistics: Callable[..., SufficientStatistics]) -> MetricFunction:
    """Decorator: the metric `(labels, *, logits= | probs=, **options) -> float` defined by these statistics."""

    @functools.wraps(statistics)
    def function(labels: Any, *, logits: Any = None, probs: Any = None, **options: Any) -> float:
        return statistics(*as_labels_and_probs(labels, logits=logits, probs=probs), **options).value()

    return as_metric(function, statistics)


def as_metric(function: Any, statistics: Callable[..., SufficientStatistics]) -> MetricFunction:
    """The function with its statistics; `help` shows the signature of the function itself, not of what it wraps."""
    function.statistics = statistics
    del function.__wrapped__
    metric: MetricFunction = function
    return metric


def is_drawn_in_blocks(n_rows: int, n_classes: int) -> bool:
    """Whether the bootstrap draws blocks of rows, because there are too many rows or classes to draw single rows.

    >>> is_drawn_in_blocks(1000, 3), is_drawn_in_blocks(10_000, 1000)
    (False, True)
    """
    return n_rows > MAX_ROWS or n_rows * n_classes > MAX_ENTRIES


@from_statistics
def accuracy(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """The share of rows whose most probable class is the label.

    >>> accuracy([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]])
    0.5
    """
    return mean_statistics(confidence_and_correct(labels, probs)[1])


@from_statistics
def macro_f1(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """The mean F1 over the classes that occur as a label or as a prediction.

    >>> round(macro_f1([1, 0], probs=[[0.2, 0.8], [0.3, 0.7]]), 4)
    0.3333
    """

    def finish(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        true, predicted, both = np.moveaxis(sums, -2, 0)
        occurs = true + predicted > 0
        f1 = 2 * both / np.where(occurs, true + predicted, 1.0)
        return f1.sum(axis=-1) / occurs.sum(axis=-1)

    return _class_counts(labels, probs, finish)


@from_statistics
def matthews(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Matthews correlation of labels and predictions, for any number of classes; 0 if either is constant.

    >>> matthews([1, 0], probs=[[0.2, 0.8], [0.9, 0.1]])
    1.0
    """

    def finish(sums: np.ndarray, n: np.ndarray) -> np.ndarray:  # Gorodkin's form for many classes
        true, predicted, both = np.moveaxis(sums, -2, 0)
        variances = (n * n - (true * true).sum(axis=-1)) * (n * n - (predicted * predicted).sum(axis=-1))
        covariance = both.sum(axis=-1) * n - (true * predicted).sum(axis=-1)
        return np.divide(covariance, np.sqrt(variances), out=np.zeros(np.shape(covariance)), where=variances > 0)

    return _class_counts(labels, probs, finish)


@from_statistics
def nll(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Negative log-likelihood: the mean of −log P(label|x), in nats.

    A probability of exactly 0 for the label counts as the smallest float64, 2.2e-308 (708 nats), so that the mean stays
    finite: probabilities that were rounded before they were written contain such zeros.

    >>> round(nll([1], probs=[[0.5, 0.5]]), 4)
    0.6931
    """
    return mean_statistics(-np.log(np.maximum(_label_prob(labels, probs), TINY)))


@from_statistics
def brier(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Brier score: the mean over rows of Σ_y (P(y|x) − [label is y])², from 0 to 2.

    >>> brier([1], probs=[[0.5, 0.5]])
    0.5
    """
    return mean_statistics(np.einsum("ij,ij->i", probs, probs) - 2.0 * _label_prob(labels, probs) + 1.0)


@from_statistics
def confidence_on_errors(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """The mean confidence of wrong predictions; NaN if there are none.

    >>> confidence_on_errors([0, 1, 1], probs=[[0.9, 0.1], [0.75, 0.25], [0.1, 0.9]])
    0.75
    """
    return _by_correctness(labels, probs, lambda sums, n: _ratio(sums[..., 1, :], sums[..., 0, :])[..., 0])


@from_statistics
def balanced_brier(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """½ · mean of (1 − confidence)² over correct rows + ½ · mean of confidence² over wrong rows.

    Correct and wrong predictions have equal weight; NaN if there are none of either.

    >>> balanced_brier([0, 1], probs=[[0.5, 0.5], [1.0, 0.0]])
    0.625
    """
    return _by_correctness(labels, probs, lambda sums, n: _ratio(sums[..., 2, :], sums[..., 0, :]).mean(axis=-1))


def top_label(probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest probability of each row [n] and its class [n], the first one of a tie.

    >>> top_label(np.array([[0.5, 0.5], [0.1, 0.9]]))
    (array([0.5, 0.9]), array([0, 1], dtype=int32))
    """
    confidence, predicted = np.empty(len(probs)), np.zeros(len(probs), dtype=np.int32)
    for part in chunks(*probs.shape):
        block = probs[part]
        if probs.shape[1] > _LOOP_CLASSES:
            predicted[part], confidence[part] = block.argmax(axis=1), block.max(axis=1)
            continue
        confidence[part] = top = functools.reduce(np.maximum, block.T)
        below = np.ones(len(block), dtype=bool)  # is every class so far below the maximum?
        for column in block.T[:-1]:
            below &= column < top
            predicted[part] += below
    return confidence, predicted


def confidence_and_correct(labels: np.ndarray, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest probability of each row [n] and whether its class is the label [n]."""
    confidence, predicted = top_label(probs)
    return confidence, predicted == labels


def _class_counts(labels: np.ndarray, probs: np.ndarray, finish: Finish) -> SufficientStatistics:
    """How often each class is the label, is predicted, and is both [3, C]: enough of the confusion matrix [C, C]."""
    n_classes, predictions = probs.shape[1], top_label(probs)[1]

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        true, predicted = labels[part], predictions[part]
        ones = np.ones(len(true))
        index = np.stack([true, predicted + n_classes, true + 2 * n_classes])
        return index, np.stack([ones, ones, predicted == true])

    return SufficientStatistics(len(labels), (3, n_classes), entries, finish, width=3)


def _by_correctness(labels: np.ndarray, probs: np.ndarray, finish: Finish) -> SufficientStatistics:
    """Counts, summed confidence and summed squared gap of the wrong and of the correct rows [3, 2]."""
    confidence, correct = confidence_and_correct(labels, probs)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        group = correct[part].astype(np.intp)
        gap = confidence[part] - group
        return np.stack([group, group + 2, group + 4]), np.stack([np.ones(len(gap)), confidence[part], gap * gap])

    return SufficientStatistics(len(labels), (3, 2), entries, finish, width=3)


def _ratio(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)


def _label_prob(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    return np.take_along_axis(probs, labels[:, None], axis=1)[:, 0]
