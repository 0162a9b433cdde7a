"""What every source of noise shares, and the default source: splices of two training texts.

A `NoiseSource` writes noise from texts, and a `NoiseStream` numbers the noise texts of a training, so that text n
depends on the seed and n alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ebmcal.data.splits import TextPair, Texts


class NoiseStream(Protocol):
    """Numbered noise texts. Draw n is a pure function of the seed and n, so an interrupted training resumes exactly
    and several processes share the draws without communicating.
    """

    def draw(self, numbers: Sequence[int]) -> list[TextPair]: ...


class NoiseSource(Protocol):
    """Writes one noise text per random generator; a text depends on its own generator only."""

    def write(self, texts: Texts, rngs: Sequence[np.random.Generator]) -> list[TextPair]: ...


@dataclass(frozen=True)
class OnlineStream:
    """A new text for every draw."""

    source: NoiseSource
    texts: Texts
    seed: int

    def draw(self, numbers: Sequence[int]) -> list[TextPair]:
        rngs = [np.random.default_rng([self.seed, 19, n]) for n in numbers]
        return self.source.write(self.texts, rngs) if rngs else []

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
