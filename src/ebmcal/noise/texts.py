"""What noise sources read and write: `Texts` gives random access to the texts of a dataset, `NoiseStream` is what a
training draws from. Everything else in `ebmcal.noise` stands between the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from datasets import Dataset

from ebmcal.errors import EbmcalError

#: A text, or a pair of texts; the second is None for single texts.
TextPair = tuple[str, str | None]


@dataclass(frozen=True)
class NoiseText:
    """A noise text and the index of its source in `NoiseStream.names`."""

    text: str
    text_pair: str | None
    source: int


class NoiseStream(Protocol):
    """Numbered noise texts. Draw n is a pure function of the seed and n, so an interrupted training resumes exactly
    and several processes share the draws without communicating.
    """

    names: tuple[str, ...]

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]: ...


class NoiseSource(Protocol):
    """Writes one noise text per random generator, from the texts of a dataset.

    A text depends on its own generator only, not on the others that are written with it.
    """

    def write(self, texts: "Texts", rngs: Sequence[np.random.Generator]) -> list[TextPair]: ...


class Texts:
    """The texts, labels (-1 if unknown) and ids of a dataset.

    The text columns are `text` and `text_pair`, or else the only one or two columns of strings.

    >>> texts = Texts(Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}))
    >>> texts[[1, 0]], texts.labels.tolist()
    ([('b', None), ('a', None)], [1, 0])
    """

    def __init__(self, dataset: Dataset) -> None:
        columns = _text_columns(dataset)
        self.dataset, self.is_pair = dataset, len(columns) == 2
        self._columns, self._rows = columns, Dataset(dataset.data).select_columns(columns)
        # Resolved here: `datasets` would resolve selected rows one by one, in Python, at every read.
        selected = dataset._indices
        self._positions = np.arange(len(dataset)) if selected is None else selected.column(0).to_numpy()
        has = dataset.column_names
        self.labels = np.array(dataset["label"][:] if "label" in has else [-1] * len(dataset), dtype=np.int64)
        self.ids = [str(i) for i in (dataset["id"][:] if "id" in has else range(len(dataset)))]

    def __len__(self) -> int:
        return len(self._positions)

    def select(self, rows: Sequence[int] | np.ndarray) -> "Texts":
        """Some of the texts."""
        return Texts(self.dataset.select([int(i) for i in rows]))

    def __getitem__(self, indices: Sequence[int] | np.ndarray) -> list[TextPair]:
        rows = self._rows[self._positions[np.asarray(indices, dtype=np.int64)].tolist()]
        firsts = rows[self._columns[0]]
        return list(zip(firsts, rows[self._columns[1]] if self.is_pair else [None] * len(firsts), strict=True))


class ShuffledOrder:
    """The numbers 0 … n-1 in endless rounds, each round in a new order: none is used twice before all are used once.

    >>> order = ShuffledOrder(3, seed=0)
    >>> sorted(order[i] for i in range(3)), sorted(order[i] for i in range(3, 6))
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self._round, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, position: int) -> int:
        round_, offset = divmod(position, self.n)
        if round_ != self._round:
            self._round, self._order = round_, np.random.default_rng([self.seed, round_]).permutation(self.n)
        return int(self._order[offset])


def _text_columns(dataset: Dataset) -> list[str]:
    if "text" in dataset.column_names:
        return ["text", *(["text_pair"] if "text_pair" in dataset.column_names else [])]
    strings = ("string", "large_string")
    columns = [n for n, kind in dataset.features.items() if getattr(kind, "dtype", "") in strings and n != "id"]
    if not 1 <= len(columns) <= 2:
        raise EbmcalError(
            f"Noise is made from the texts of a dataset: expected a column `text` (and `text_pair` for pairs), or one "
            f"or two columns of strings; got {', '.join(columns) or 'no column of strings'}."
        )
    return columns
