"""Drawing rows again: weights of resamples, and what the rows add to the sums of a metric, by unit drawn.

Up to `MAX_ROWS` rows the units are the rows. Of more rows, `N_BLOCKS` random blocks are the units: sums over random
blocks vary as sums over rows do (the spread is known to 1/√(2·N_BLOCKS) = 2% of itself), and the cost of a resample
no longer grows with the rows. With very many classes there are blocks sooner and fewer of them, to bound memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.metrics.sums import Sums
from ebmcal.predictions.arrays import chunks

MAX_ROWS = 32_768
N_BLOCKS = 2_048
FEWEST_BLOCKS = 128
MAX_ENTRIES = 1 << 22  # rows times classes that are resampled row by row
MAX_TABLE = 1 << 24  # sums times blocks, 128 MB
SUMS_OF_A_CLASS = 60  # three in each of 20 bins
MAX_LEVELS = 1_024  # distinct scores kept when blocks are drawn
_CHUNK_NUMBERS = 1 << 21  # 16 MB of weights and sums at a time


@dataclass(frozen=True)
class Units:
    """What is drawn: `of_row` [n] is the unit of each row, or None where every row is its own."""

    n_rows: int
    n_units: int
    of_row: np.ndarray | None = None

    @classmethod
    def of(cls, n_rows: int, seed: int, n_classes: int = 2) -> "Units":
        """Rows, or random blocks of equal size (but for one row) where there are very many rows or classes.

        >>> Units.of(1000, seed=0).n_units, Units.of(10_000, seed=0, n_classes=1000).n_units
        (1000, 279)
        """
        if n_rows <= MAX_ROWS and n_rows * n_classes <= MAX_ENTRIES:
            return cls(n_rows, n_rows)
        room = MAX_TABLE // (SUMS_OF_A_CLASS * n_classes)
        n_blocks = min(n_rows, N_BLOCKS, max(FEWEST_BLOCKS, room))
        blocks = (np.arange(n_rows) % n_blocks).astype(np.uint16)
        np.random.default_rng([seed, 1]).shuffle(blocks)
        return cls(n_rows, n_blocks, blocks)

    @property
    def options(self) -> dict[str, Any]:
        """Options that ranking metrics need so that their sums stay few."""
        return {} if self.of_row is None else {"max_levels": MAX_LEVELS}

    def sizes(self) -> np.ndarray:
        """Rows in each unit [n_units]."""
        return np.ones(self.n_units) if self.of_row is None else np.bincount(self.of_row).astype(np.float64)

    def table(self, sums: Sums, first: int = 0) -> Any:
        """What each unit adds to each sum, [n_sums, n_units]; the rows are `first` and those after it."""
        return (
            _row_table(sums, first, self.n_rows) if self.of_row is None else self._block_table(sums, first, self.of_row)
        )

    def _block_table(self, sums: Sums, first: int, of_row: np.ndarray) -> np.ndarray:
        out = np.zeros(sums.n_sums * self.n_units)
        for part in chunks(self.n_rows, sums.width):
            columns, values = sums.entries(slice(first + part.start, first + part.stop))
            cells = columns.astype(np.intp) * self.n_units + of_row[part]
            np.add.at(out, cells.ravel(), values.ravel())
        return out.reshape(sums.n_sums, self.n_units)


def _row_table(sums: Sums, first: int, n_rows: int) -> Any:
    from scipy.sparse import coo_array

    columns, values = sums.entries(slice(first, first + n_rows))
    rows = np.broadcast_to(np.arange(n_rows), columns.shape)
    return coo_array((values.ravel(), (columns.ravel(), rows.ravel())), shape=(sums.n_sums, n_rows)).tocsc()


def draws(units: Units, n_resamples: int, seed: int, n_sums: int) -> Iterator[np.ndarray]:
    """Weights [n_units, r] of resamples with replacement: how often each unit was drawn; r at a time.

    `n_sums` is how many sums will be made of each resample, so that r can be chosen to fit memory.
    """
    n = units.n_units
    bits = np.random.PCG64([seed, 2])

    def draw() -> np.ndarray:
        # 32 random bits times n, of which the upper half is kept: uniform to n/2³², and quicker than `integers`, for
        # "1,000 bootstrap resamples" in benchmarks/metrics.json.
        words = bits.random_raw((n + 1) // 2).view(np.uint32)[:n]
        picked = (words * np.uint64(n)) >> np.uint64(32)
        return np.bincount(picked.view(np.int64), minlength=n)

    return _in_columns(draw, units.n_units, n_resamples, n_sums)


def _in_columns(draw: Callable[[], np.ndarray], n_units: int, n_resamples: int, n_sums: int) -> Iterator[np.ndarray]:
    """Weights [n_units, r], r at a time; the array is filled anew each time, so it must not be kept."""
    step = int(np.clip(_CHUNK_NUMBERS // (n_units + n_sums), 1, 64))
    step = max(1, min(step, n_resamples))
    rows = np.empty((step, n_units), dtype=np.uint8)  # no unit is drawn 256 times
    columns = np.empty((n_units, step))  # a sparse table times this runs along contiguous resamples
    for start in range(0, n_resamples, step):
        rows = rows[: n_resamples - start]
        for row in rows:
            row[:] = draw()
        if len(rows) < step:  # the last ones
            columns = np.empty((n_units, len(rows)))
        columns[:] = rows.T
        yield columns
