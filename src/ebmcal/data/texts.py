"""`Texts`: one split, whose texts stay in a memory-mapped Arrow file and whose labels and ids are numpy arrays."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ebmcal.data.store import MappedFile, StoredPart

TextRow = tuple[str, str | None]


class Texts:
    r"""A split of n rows. `labels[i]` is the class of row i, -1 where there is none; `ids[i]` its row in the source.

    >>> import tempfile; from pathlib import Path; from ebmcal.data import load_texts
    >>> folder = Path(tempfile.mkdtemp()); path = folder / "films.csv"
    >>> _ = path.write_text("text,label\nfine film,good\ndull film,bad\n")
    >>> split = load_texts(path, folder / "cache", label_column="label")
    >>> split.texts(0, 2), split.labels.tolist(), split.take([1]).ids.tolist()
    ([('fine film', None), ('dull film', None)], [1, 0], [1])
    """

    def __init__(self, file: MappedFile, is_pair: bool, numbers: dict[str, np.ndarray]):
        self.file, self.is_pair = file, is_pair
        self._numbers = numbers
        self._rows = numbers["row"]  # [n] int64, position in the Arrow file
        self.labels = numbers["label"]  # [n] int64
        self.ids = numbers["id"]  # [n] int64
        self.keys = numbers["key"]  # [n] uint64, equal for equal texts
        self.empty = numbers["empty"]  # [n] bool, nothing but white space

    @classmethod
    def of(cls, part: StoredPart, is_pair: bool, labels: np.ndarray) -> "Texts":
        """All rows of a stored part, with their classes [n]."""
        numbers = {"id": part.ids, "key": part.keys, "empty": part.empty}
        return cls(part.file, is_pair, numbers | {"row": np.arange(len(part.ids)), "label": labels.astype(np.int64)})

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Texts({len(self):,} {'pairs' if self.is_pair else 'texts'})"

    def texts(self, start: int = 0, stop: int | None = None) -> list[TextRow]:
        """The rows from `start` to `stop` as (text, text of the pair or None)."""
        return self.file.gather(self._rows[start:stop], self.is_pair)

    def rows(self, indices: Sequence[int] | np.ndarray) -> list[TextRow]:
        """The rows at `indices`, in that order."""
        return self.file.gather(self._rows[np.asarray(indices, dtype=np.int64)], self.is_pair)

    def batches(self, size: int = 1024) -> Iterator[list[TextRow]]:
        """All rows in order, `size` at a time: the way to go through a split in bounded memory."""
        for start in range(0, len(self), size):
            yield self.texts(start, start + size)

    def take(self, indices: Sequence[int] | np.ndarray) -> "Texts":
        """A split with only these rows, in this order; nothing is copied but the numbers."""
        i = np.asarray(indices, dtype=np.int64)
        return Texts(self.file, self.is_pair, {name: values[i] for name, values in self._numbers.items()})

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the texts, pairs and labels in order; where they are stored does not matter."""
        digest = hashlib.sha256(f"{self.is_pair} {len(self)}".encode())
        for start in range(0, len(self), 65536):
            digest.update(self.keys[start : start + 65536].astype("<u8").tobytes())
            digest.update(self.labels[start : start + 65536].astype("<i8").tobytes())
        return digest.hexdigest()[:16]
