"""An Arrow file of the cache, memory-mapped: texts are read where they lie, and resident memory stays flat."""

import mmap
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from ebmcal.errors import EbmcalError

_RELEASE_BYTES = 1 << 25
_FAULT_BYTES = 1 << 16  # what the system maps around one row that is looked at


class MappedFile:
    """Opened when first looked at and shared by all splits of a part; other processes map it again by its path."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self._touched = 0

    def gather(self, rows: np.ndarray, is_pair: bool) -> list[tuple[str, str | None]]:
        """The texts at `rows` [k], in that order, as (text, text of the pair or None)."""
        found: list = [None] * len(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for b in np.unique(which):
            where = np.flatnonzero(which == b)
            local = pa.array(rows[where] - self._starts[b])
            text = self._batches[b].column("text").take(local).to_pylist()
            pair = self._batches[b].column("pair").take(local).to_pylist() if is_pair else [None] * len(text)
            for i, row in zip(where, zip(text, pair, strict=True), strict=True):
                found[i] = row
            self._count(self._batches[b], len(where))
        return found

    def numbers(self, name: str, kind: type) -> np.ndarray:
        """A column of numbers, copied out of the file: [n] of `kind`."""
        column = np.empty(sum(batch.num_rows for batch in self._batches), kind)
        for start, batch in zip(self._starts, self._batches, strict=True):
            column[start : start + batch.num_rows] = batch.column(name).to_numpy()
            self._count(batch, batch.num_rows)
        return column

    def release(self) -> None:
        """Give the pages read so far back to the system; they are read again when they are needed."""
        self._touched = 0
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _count(self, batch: pa.RecordBatch, n_rows: int) -> None:
        # Mapped pages count as resident memory of the process until the system wants them back; a pass over a large
        # split would seem to hold all of it.
        self._touched += min(batch.nbytes, n_rows * _FAULT_BYTES)
        if self._touched >= _RELEASE_BYTES:
            self.release()

    @cached_property
    def _map(self) -> mmap.mmap:
        try:
            with open(self.path, "rb") as handle:
                return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise EbmcalError(
                f"Could not open {self.path}: {error}. If it was deleted, run the same command again to remake it."
            ) from error

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        try:
            reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._map)))
            return [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except (pa.ArrowException, OSError) as error:
            raise EbmcalError(f"{self.path} is damaged: {error}. Delete it to have it made again.") from error

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0] + [batch.num_rows for batch in self._batches])[:-1]

    def __getstate__(self) -> dict:
        return {"path": self.path, "_touched": 0}
