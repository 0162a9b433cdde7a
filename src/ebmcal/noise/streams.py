"""What a training draws its noise from: `Texts` gives access to the texts of a dataset, a `NoiseSource` writes noise
from them, and a `NoiseStream` numbers the noise texts, so that text n depends on the seed and n alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
import pyarrow as pa
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
    """The texts (columns text, text_pair), labels (-1 if unknown) and ids of a dataset.

    >>> texts = Texts(Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}))
    >>> texts[[1, 0]], texts.labels.tolist()
    ([('b', None), ('a', None)], [1, 0])
    """

    def __init__(self, dataset: Dataset) -> None:
        has = dataset.column_names
        if "text" not in has:
            raise EbmcalError(f"Noise is made from a column `text` (and `text_pair`); got {', '.join(has)}.")
        self.dataset, self.is_pair = dataset, "text_pair" in has
        self._rows = Dataset(dataset.data).select_columns(["text", *["text_pair"][: self.is_pair]])
        # Resolved here: `datasets` would resolve selected rows one by one, in Python, at every read.
        selected = dataset._indices
        self._positions = np.arange(len(dataset)) if selected is None else selected.column(0).to_numpy()
        self.labels = np.array(dataset["label"][:] if "label" in has else [-1] * len(dataset), dtype=np.int64)
        self.ids = [str(i) for i in (dataset["id"][:] if "id" in has else range(len(dataset)))]

    def __len__(self) -> int:
        return len(self._positions)

    def select(self, rows: Sequence[int] | np.ndarray) -> "Texts":
        """Some of the texts."""
        return Texts(self.dataset.select([int(i) for i in rows]))

    def __getitem__(self, indices: Sequence[int] | np.ndarray) -> list[TextPair]:
        rows = self._rows[self._positions[np.asarray(indices, dtype=np.int64)].tolist()]
        return list(zip(rows["text"], rows.get("text_pair", [None] * len(rows["text"])), strict=True))


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


class OnlineStream:
    """A new text for every draw."""

    def __init__(self, name: str, source: NoiseSource, texts: Texts, seed: int) -> None:
        self.names: tuple[str, ...] = (name,)
        self.source, self.texts, self.seed = source, texts, seed

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]:
        rngs = [np.random.default_rng([self.seed, 19, n]) for n in numbers]
        return [NoiseText(text, pair, 0) for text, pair in self.source.write(self.texts, rngs)] if rngs else []


class StoredStream:
    """The texts of a table with columns text and text_pair in endless rounds; shuffled unless `seed` is None."""

    def __init__(self, name: str, table: pa.Table, seed: int | None) -> None:
        self.names: tuple[str, ...] = (name,)
        self.table = table.combine_chunks()
        self._order = None if seed is None else ShuffledOrder(len(table), seed + 1)

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]:
        rows = [n % len(self.table) if self._order is None else self._order[n] for n in numbers]
        texts = self.table.take(pa.array(rows, pa.int64())).to_pylist()
        return [NoiseText(row["text"], row["text_pair"], 0) for row in texts]


class MixtureStream:
    """Several streams of one source each, in proportion to their shares."""

    def __init__(self, streams: Sequence[NoiseStream], shares: Sequence[float]) -> None:
        self.streams, self.shares = streams, shares
        self.names = tuple(name for stream in streams for name in stream.names)

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]:
        chosen = [allot(number, self.shares) for number in numbers]
        drawn: dict[int, NoiseText] = {}
        for source, stream in enumerate(self.streams):
            places = [i for i, (s, _) in enumerate(chosen) if s == source]
            texts = stream.draw([chosen[i][1] for i in places])
            drawn |= {i: replace(text, source=source) for i, text in zip(places, texts, strict=True)}
        return [drawn[i] for i in range(len(chosen))]


def mix(streams: Sequence[NoiseStream], shares: Sequence[float]) -> NoiseStream:
    """One stream for several; a single stream is returned as it is."""
    return streams[0] if len(streams) == 1 else MixtureStream(streams, shares)


def allot(number: int, shares: Sequence[float]) -> tuple[int, int]:
    """The source that a draw falls to, and the number of the draw within that source.

    Of the first n draws every source has its share, to within one (two with more than three sources).

    >>> [allot(n, [0.75, 0.25]) for n in range(4)]
    [(0, 0), (0, 1), (1, 0), (0, 2)]
    """
    exact = [Fraction(share).limit_denominator(10_000) for share in shares]
    for source in range(len(exact) - 1):
        rate = exact[source] / sum(exact[source:])
        before, after = (int(n * rate + Fraction(1, 2)) for n in (number, number + 1))
        if after > before:
            return source, before
        number -= before
    return len(exact) - 1, number
