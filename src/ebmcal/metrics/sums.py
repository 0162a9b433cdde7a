"""Metrics that see their rows only through sums: value = finish(Σ over rows of what each row adds).

The class-wise calibration error needs one sum a class and bin, the Matthews correlation one a cell of the confusion
matrix, and so on. A resample only weighs the rows differently, so the bootstrap reuses what each row adds.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ebmcal.predictions.arrays import chunks

Finish = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: Up to here a loop over classes beats numpy's argmax over short rows: "top-label ECE" in benchmarks/metrics.json.
_LOOP_CLASSES = 16


@dataclass(frozen=True)
class Sums:
    """What the rows add to which sums, and how the sums make the metric.

    `entries(part)` gives, for a slice of rows, the sum each entry adds to [k, rows] and how much it adds [k, rows].
    `finish(sums [..., n_sums], n [...])` turns sums over rows of total weight n into values [...].
    """

    n_rows: int
    width: int  # entries a row, for the size of chunks
    n_sums: int
    entries: Callable[[slice], tuple[np.ndarray, np.ndarray]]
    finish: Finish
    add_up: Callable[[slice], np.ndarray] | None = None  # a quicker way to the sums of a slice [n_sums]

    def totals(self) -> np.ndarray:
        """The sums over all rows, each once [n_sums]."""
        add_up = self.add_up or self._add_up_entries
        return sum((add_up(part) for part in chunks(self.n_rows, self.width)), np.zeros(self.n_sums))

    def _add_up_entries(self, part: slice) -> np.ndarray:
        columns, values = self.entries(part)
        return np.bincount(columns.ravel(), weights=values.ravel(), minlength=self.n_sums)

    def value(self) -> float:
        """The metric on all rows, each once."""
        return float(self.finish(self.totals(), np.array(self.n_rows, dtype=np.float64)))


def finish_many(finish: Finish, sums: np.ndarray, n: np.ndarray) -> np.ndarray:
    """`finish` for many resamples, sums [n_sums, r] and n [r] to values [r], a few at a time to stay in cache."""
    return np.concatenate([finish(sums[:, part].T, n[part]) for part in chunks(len(n), len(sums))])


def mean_of_rows(n_rows: int, n_classes: int, values: Callable[[slice], np.ndarray]) -> Sums:
    """The mean of one number a row, given as a function from a slice of rows to [rows].

    >>> mean_of_rows(3, 1, lambda part: np.array([1.0, 2.0, 6.0])[part]).value()
    3.0
    """

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        block = values(part)[None]
        return np.zeros(block.shape, dtype=np.intp), block

    def add_up(part: slice) -> np.ndarray:
        return values(part).sum(keepdims=True)

    return Sums(n_rows, n_classes, 1, entries, lambda sums, n: sums[..., 0] / n, add_up)


def top_label(probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest probability of each row [n] and its class [n], the first one of a tie.

    >>> top_label(np.array([[0.5, 0.5], [0.1, 0.9]]))
    (array([0.5, 0.9]), array([0, 1], dtype=int8))
    """
    n_classes = probs.shape[1]
    if n_classes > _LOOP_CLASSES:
        predicted = probs.argmax(axis=1)
        return np.take_along_axis(probs, predicted[:, None], axis=1)[:, 0], predicted
    confidence = functools.reduce(np.maximum, probs.T)
    predicted = np.zeros(len(probs), dtype=np.int8)
    below = np.ones(len(probs), dtype=bool)  # is every class so far below the maximum?
    for column in probs.T[:-1]:
        below &= column < confidence
        predicted += below
    return confidence, predicted
