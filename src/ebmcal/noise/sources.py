"""What every source of noise shares, and the default source: splices of two training texts.

`Texts` gives access to the texts of a dataset, a `NoiseSource` writes noise from them, and a `NoiseStream` numbers the
noise texts of a training, so that text n depends on the seed and n alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from datasets import Dataset

from ebmcal.errors import EbmcalError

#: A text, or a pair of texts; the second is None for single texts.
TextPair = tuple[str, str | None]


class NoiseText(NamedTuple):
    """A noise text and the index of its source in `NoiseStream.names`."""

    text: str
    text_pair: str | None
    source: int = 0


class NoiseStream(Protocol):
    """Numbered noise texts. Draw n is a pure function of the seed and n, so an interrupted training resumes exactly
    and several processes share the draws without communicating.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]: ...


class NoiseSource(Protocol):
    """Writes one noise text per random generator; a text depends on its own generator only."""

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


@dataclass(frozen=True)
class OnlineStream:
    """A new text for every draw."""

    name: str
    source: NoiseSource
    texts: Texts
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]:
        rngs = [np.random.default_rng([self.seed, 19, n]) for n in numbers]
        return [NoiseText(*text) for text in self.source.write(self.texts, rngs)] if rngs else []

    def restricted_to(self, rows: Texts) -> "OnlineStream":
        return replace(self, texts=rows)


class Splice:
    """The beginning of one text and the end of another, cut between words: locally fluent, globally wrong.

    Of a pair, either sentence is spliced or the second is taken from another row.
    """

    def write(self, texts: Texts, rngs: Sequence[np.random.Generator]) -> list[TextPair]:
        chosen = [row for rng in rngs for row in _two_rows(len(texts), rng)]
        rows = texts[chosen]  # one read for all
        return [_splice_rows(rows[2 * i], rows[2 * i + 1], rng) for i, rng in enumerate(rngs)]


def _two_rows(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Two different rows, if there are two."""
    first = int(rng.integers(n))
    return first, (first + 1 + int(rng.integers(max(1, n - 1)))) % n


def _splice_rows(first: TextPair, other: TextPair, rng: np.random.Generator) -> TextPair:
    if first[1] is None:
        return splice_texts(first[0], other[0], rng), None
    way = rng.integers(3)
    if way == 0:
        return first[0], other[1]
    if way == 1:
        return splice_texts(first[0], other[0], rng), first[1]
    return first[0], splice_texts(first[1], other[1] or "", rng)


def splice_texts(text: str, other: str, rng: np.random.Generator) -> str:
    """The beginning of a text and as many words from the end of another as were cut off.

    A text of one word is kept whole, unless neither text has spaces.

    >>> splice_texts("one two three four", "a b c d e f", np.random.default_rng(0))
    'one two three f'
    """
    (words, space), (ends, other_space) = split_words(text), split_words(other)
    if space != other_space:
        words, ends, space = text.split(), other.split(), " "
    cut = int(rng.integers(1, len(words))) if len(words) > 1 else len(words)
    return space.join(words[:cut] + ends[-max(1, len(words) - cut) :])


def split_words(text: str) -> tuple[list[str], str]:
    """The words of a text and their separator; a text without spaces is split into characters.

    >>> split_words("a fine film"), split_words("好电影")
    ((['a', 'fine', 'film'], ' '), (['好', '电', '影'], ''))
    """
    words = text.split()
    return (words, " ") if len(words) > 1 else (list(text.strip()), "")
