"""The bootstrap of metrics that are functions of sums over rows: value = finish(Σ over rows of what each row adds).

The class-wise calibration error needs one sum per class and bin, macro F1 three sums per class, and so on. A resample
only weighs the rows differently, so what each row adds is computed once (`SufficientStatistics`).

Up to `MAX_ROWS` rows the units that are drawn are the rows. With more rows, `N_BLOCKS` random blocks are drawn: sums
over random blocks vary as sums over rows do (the spread is known to 1/√(2·N_BLOCKS) = 2% of itself), and the cost of a
resample no longer grows with the rows. With very many classes blocks start earlier and are fewer, to bound memory.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import numpy as np

from ebmcal.predictions.arrays import as_labels_and_probs, chunks

MAX_ROWS = 32_768
N_BLOCKS = 2_048
MIN_BLOCKS = 128
MAX_ENTRIES = 1 << 22  # rows times classes that are resampled row by row
MAX_TABLE = 1 << 24  # sums times blocks, 128 MB
SUMS_PER_CLASS = 60  # three in each of 20 bins
_CHUNK_NUMBERS = 1 << 21  # 16 MB of weights and sums at a time

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

    @wraps(statistics)
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
    """Whether there are too many rows or classes to draw single rows.

    >>> is_drawn_in_blocks(1000, 3), is_drawn_in_blocks(10_000, 1000)
    (False, True)
    """
    return n_rows > MAX_ROWS or n_rows * n_classes > MAX_ENTRIES


class Units:
    """What is drawn: single rows, or random blocks of equal size (up to one row); `block` [n] is that of each row.

    >>> Units(1000, 2, seed=0).sizes.size, Units(10_000, 1000, seed=0).sizes.size
    (1000, 279)
    """

    def __init__(self, n_rows: int, n_classes: int, seed: int):
        self.block: np.ndarray | None = None
        self.sizes = np.ones(n_rows)
        if is_drawn_in_blocks(n_rows, n_classes):
            n_blocks = min(n_rows, N_BLOCKS, max(MIN_BLOCKS, MAX_TABLE // (SUMS_PER_CLASS * n_classes)))
            self.block = (np.arange(n_rows) % n_blocks).astype(np.uint16)
            np.random.default_rng([seed, 1]).shuffle(self.block)
            self.sizes = np.bincount(self.block).astype(np.float64)

    def table(self, statistics: SufficientStatistics) -> Any:
        """What each unit adds to each sum [n_sums, n_units]: sparse for rows, dense for blocks."""
        n_sums, n_units = math.prod(statistics.shape), len(self.sizes)
        if self.block is None:
            from scipy.sparse import coo_array

            index, amount = statistics.entries(slice(0, n_units))
            rows = np.broadcast_to(np.arange(n_units), index.shape)
            return coo_array((amount.ravel(), (index.ravel(), rows.ravel())), shape=(n_sums, n_units)).tocsc()
        table = np.zeros(n_sums * n_units)
        for part in chunks(statistics.n_rows, statistics.width):
            index, amount = statistics.entries(part)
            np.add.at(table, (index.astype(np.intp) * n_units + self.block[part]).ravel(), amount.ravel())
        return table.reshape(n_sums, n_units)

    def reader(self, statistics: SufficientStatistics) -> Callable[[np.ndarray], np.ndarray]:
        """The function from weights [n_units, r] to the metric on these resamples [r].

        It keeps the table only: the statistics themselves keep arrays as long as the rows alive.
        """
        table, finish, shape = self.table(statistics), statistics.finish, statistics.shape

        def read(weights: np.ndarray) -> np.ndarray:
            sums, n = table @ weights, self.sizes @ weights
            # A few resamples at a time stay in the processor's cache.
            parts = chunks(len(n), len(sums))
            return np.concatenate([finish(sums[:, part].T.reshape(-1, *shape), n[part]) for part in parts])

        return read


def draw_weights(n_units: int, n_resamples: int, seed: int, n_sums: int) -> Iterator[np.ndarray]:
    """Weights [n_units, r] of resamples with replacement: how often each unit was drawn; r resamples at a time.

    `n_sums` is the number of sums per resample, so that r fits memory.
    """
    bits = np.random.PCG64([seed, 2])
    step = int(np.clip(_CHUNK_NUMBERS // (n_units + n_sums), 1, 64))
    for start in range(0, n_resamples, step):
        counts = np.empty((min(step, n_resamples - start), n_units), dtype=np.uint8)  # no unit is drawn 256 times
        for row in counts:
            row[:] = _draw(bits, n_units)
        yield np.ascontiguousarray(counts.T, dtype=np.float64)  # a sparse table times this runs along resamples


def _draw(bits: np.random.PCG64, n: int) -> np.ndarray:
    """How often each of n units is drawn in n draws.

    The upper half of 32 random bits times n: uniform to n/2³², and faster than `Generator.integers`, for "1,000
    bootstrap resamples" in benchmarks/metrics.json.
    """
    words = bits.random_raw((n + 1) // 2).view(np.uint32)[:n]
    picked = (words * np.uint64(n)) >> np.uint64(32)
    return np.bincount(picked.view(np.int64), minlength=n)
