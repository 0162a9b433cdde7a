"""The bootstrap: weights of resamples, and what each unit of rows adds to the sums of a metric.

Up to `MAX_ROWS` rows the units are the rows. With more rows, `N_BLOCKS` random blocks are the units: sums over random
blocks vary as sums over rows do (the spread is known to 1/√(2·N_BLOCKS) = 2% of itself), and the cost of a resample
no longer grows with the rows. With very many classes blocks start earlier and are fewer, to bound memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.metrics.sufficient_statistics import SufficientStatistics
from ebmcal.predictions.arrays import chunks

MAX_ROWS = 32_768
N_BLOCKS = 2_048
MIN_BLOCKS = 128
MAX_ENTRIES = 1 << 22  # rows times classes that are resampled row by row
MAX_TABLE = 1 << 24  # sums times blocks, 128 MB
SUMS_PER_CLASS = 60  # three in each of 20 bins
MAX_LEVELS = 1_024  # distinct scores kept when blocks are drawn
_CHUNK_NUMBERS = 1 << 21  # 16 MB of weights and sums at a time


def is_drawn_in_blocks(n_rows: int, n_classes: int) -> bool:
    """Whether there are too many rows or classes to draw single rows.

    >>> is_drawn_in_blocks(1000, 3), is_drawn_in_blocks(10_000, 1000)
    (False, True)
    """
    return n_rows > MAX_ROWS or n_rows * n_classes > MAX_ENTRIES


@dataclass(frozen=True)
class Units:
    """What is drawn: `of_row` [n] is the block of each row, or None if every row is a unit."""

    n_rows: int
    n_units: int
    of_row: np.ndarray | None = None

    @classmethod
    def create(cls, n_rows: int, seed: int, n_classes: int = 2) -> "Units":
        """Rows, or random blocks of equal size (up to one row).

        >>> Units.create(1000, seed=0).n_units, Units.create(10_000, seed=0, n_classes=1000).n_units
        (1000, 279)
        """
        if not is_drawn_in_blocks(n_rows, n_classes):
            return cls(n_rows, n_rows)
        room = MAX_TABLE // (SUMS_PER_CLASS * n_classes)
        n_blocks = min(n_rows, N_BLOCKS, max(MIN_BLOCKS, room))
        blocks = (np.arange(n_rows) % n_blocks).astype(np.uint16)
        np.random.default_rng([seed, 1]).shuffle(blocks)
        return cls(n_rows, n_blocks, blocks)

    def sizes(self) -> np.ndarray:
        """The number of rows in each unit [n_units]."""
        return np.ones(self.n_units) if self.of_row is None else np.bincount(self.of_row).astype(np.float64)

    def table(self, statistics: SufficientStatistics) -> Any:
        """What each unit adds to each sum [n_sums, n_units]: sparse for rows, dense for blocks."""
        if self.of_row is None:
            return _row_table(statistics)
        table = np.zeros(statistics.n_sums * self.n_units)
        for part in chunks(self.n_rows, statistics.width):
            index, amount = statistics.entries(part)
            np.add.at(table, (index.astype(np.intp) * self.n_units + self.of_row[part]).ravel(), amount.ravel())
        return table.reshape(statistics.n_sums, self.n_units)


def _row_table(statistics: SufficientStatistics) -> Any:
    from scipy.sparse import coo_array

    index, amount = statistics.entries(slice(0, statistics.n_rows))
    rows = np.broadcast_to(np.arange(statistics.n_rows), index.shape)
    shape = (statistics.n_sums, statistics.n_rows)
    return coo_array((amount.ravel(), (index.ravel(), rows.ravel())), shape=shape).tocsc()


def draw_weights(n_units: int, n_resamples: int, seed: int, n_sums: int) -> Iterator[np.ndarray]:
    """Weights [n_units, r] of resamples with replacement: how often each unit was drawn; r resamples at a time.

    `n_sums` is the number of sums per resample, so that r fits memory. The array is reused: do not keep it.
    """
    bits = np.random.PCG64([seed, 2])
    step = max(1, min(int(np.clip(_CHUNK_NUMBERS // (n_units + n_sums), 1, 64)), n_resamples))
    counts = np.empty((step, n_units), dtype=np.uint8)  # no unit is drawn 256 times
    weights = np.empty((n_units, step))  # a sparse table times this runs along contiguous resamples
    for start in range(0, n_resamples, step):
        counts = counts[: n_resamples - start]
        for row in counts:
            row[:] = _draw(bits, n_units)
        if len(counts) < step:  # the last ones
            weights = np.empty((n_units, len(counts)))
        weights[:] = counts.T
        yield weights


def _draw(bits: np.random.PCG64, n: int) -> np.ndarray:
    """How often each of n units is drawn in n draws.

    The upper half of 32 random bits times n: uniform to n/2³², and faster than `Generator.integers`, for "1,000
    bootstrap resamples" in benchmarks/metrics.json.
    """
    words = bits.random_raw((n + 1) // 2).view(np.uint32)[:n]
    picked = (words * np.uint64(n)) >> np.uint64(32)
    return np.bincount(picked.view(np.int64), minlength=n)
