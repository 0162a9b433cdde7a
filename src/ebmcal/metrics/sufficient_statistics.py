"""Metrics as functions of sums over rows: value = finish(Σ over rows of what each row adds).

The class-wise calibration error needs one sum per class and bin, macro F1 three sums per class, and so on. A resample
only weighs the rows differently, so the bootstrap computes what each row adds once and reuses it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ebmcal.predictions.arrays import chunks

Finish = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class SufficientStatistics:
    """What each row adds to which sums, and how the sums give the metric.

    `entries(part)` returns, for a slice of rows, the index of the sum that each entry adds to [k, rows] and the amount
    [k, rows]. `finish(sums [..., n_sums], n [...])` turns sums over rows of total weight n into values [...].
    """

    n_rows: int
    n_sums: int
    entries: Callable[[slice], tuple[np.ndarray, np.ndarray]]
    finish: Finish
    width: int = 1  # entries per row, for the size of chunks

    def totals(self) -> np.ndarray:
        """The sums over all rows [n_sums]."""
        totals = np.zeros(self.n_sums)
        for part in chunks(self.n_rows, self.width):
            index, amount = self.entries(part)
            totals += np.bincount(index.ravel(), weights=amount.ravel(), minlength=self.n_sums)
        return totals

    def value(self) -> float:
        """The metric on all rows."""
        return float(self.finish(self.totals(), np.array(self.n_rows, dtype=np.float64)))


def mean_statistics(values: np.ndarray) -> SufficientStatistics:
    """The mean of one number per row [n].

    >>> mean_statistics(np.array([1.0, 2.0, 6.0])).value()
    3.0
    """

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        amount = values[None, part].astype(np.float64, copy=False)
        return np.zeros(amount.shape, dtype=np.intp), amount

    return SufficientStatistics(len(values), 1, entries, lambda sums, n: sums[..., 0] / n)


def finish_resamples(finish: Finish, sums: np.ndarray, n: np.ndarray) -> np.ndarray:
    """`finish` for many resamples: sums [n_sums, r] and n [r] to values [r], a few at a time to stay in cache."""
    return np.concatenate([finish(sums[:, part].T, n[part]) for part in chunks(len(n), len(sums))])
