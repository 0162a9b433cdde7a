"""Noise that needs no language model: a text is made from the training texts at the moment it is needed.

    splice   the beginning of one text and the end of another, cut between words: nearly data, joined wrongly
    far      plainly something else: the words of one text shuffled, or words drawn one by one from all texts

An `OnlineSource` is one class with one method, from (texts, random generator) to a noise text. It costs nothing, keeps
nothing and is never used up. Noise of language models is in `lm`, `masking` and their neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ebmcal.errors import EbmcalError

Row = tuple[str, str | None]

#: Forms of splice that look at labels, and how often two rows are drawn until they fit.
LABEL_FORMS = ("same-label", "other-label")
TRIES = 50

#: Two training rows that a noise text was made of, and the share of the first.
Parts = tuple[int, int, float]

#: Texts at most that the words of one noise text come from: reading hundreds of long texts for one would take seconds.
MOST_TEXTS = 64


@dataclass(frozen=True)
class Written:
    """A noise text, and what it was made of where that has a meaning for its label."""

    row: Row
    parts: Parts | None = None


class TextRows(Protocol):
    """What sources see of texts, whether a task or somebody's dataset has them."""

    is_pair: bool
    labels: np.ndarray  # [n], -1 = unknown

    def __len__(self) -> int: ...

    def rows(self, indices: Sequence[int] | np.ndarray) -> list[Row]: ...


class OnlineSource(Protocol):
    """Writes noise texts from the texts of a task, each with random numbers of its own.

    The same numbers give the same text, whichever others are written with it.
    """

    def write_all(self, texts: TextRows, rngs: Sequence[np.random.Generator]) -> list[Written]: ...


class OneByOne:
    """A source whose texts are written one after the other, by `write`."""

    def write(self, texts: TextRows, rng: np.random.Generator) -> Written:
        raise NotImplementedError

    def write_all(self, texts: TextRows, rngs: Sequence[np.random.Generator]) -> list[Written]:
        return [self.write(texts, rng) for rng in rngs]


@dataclass(frozen=True)
class Splice(OneByOne):
    """The beginning of one text and the end of another, about as long as the first.

    Of a pair, one sentence is spliced, or the second sentence is that of another row. Forms: `same-label` and
    `other-label` choose the second text by its label; `middle` puts words of another text inside the first, `halves`
    cuts in the middle, `several` cuts two to four times.
    """

    form: str = ""

    def write(self, texts: TextRows, rng: np.random.Generator) -> Written:
        chosen = self._two(texts, rng)
        first, other = texts.rows(chosen)
        mend = WAYS.get(self.form, join)
        if first[1] is None:
            text, share = mend(first[0], other[0], rng)
            return Written((text, None), (*chosen, share))
        way = rng.integers(3)
        if way == 0:
            return Written((first[0], other[1]))
        if way == 1:
            return Written((mend(first[0], other[0], rng)[0], first[1]))
        return Written((first[0], mend(first[1], other[1] or "", rng)[0]))

    def _two(self, texts: TextRows, rng: np.random.Generator) -> tuple[int, int]:
        """Two different rows, where there are two; with a form that asks for labels, by trying some."""
        for _ in range(TRIES):
            first, other = _two(len(texts), rng)
            same = texts.labels[first] == texts.labels[other]
            if self.form not in LABEL_FORMS or same == (self.form == "same-label"):
                break
        return first, other


@dataclass(frozen=True)
class Far(OneByOne):
    """Half of the time the words of a text in another order, else as many words drawn one by one from all texts."""

    def write(self, texts: TextRows, rng: np.random.Generator) -> Written:
        (row,) = texts.rows([int(rng.integers(len(texts)))])
        is_shuffled = rng.random() < 0.5

        def change(text: str) -> str:
            in_another_order = shuffle(text, rng) if is_shuffled else ""
            return in_another_order or draw_words(texts, max(1, len(to_words(text)[0])), rng)

        first, second = (None if text is None else change(text) for text in row)
        return Written((first or "", second))


@dataclass(frozen=True)
class Others(OneByOne):
    """Texts of a file that the user gives; for pairs, two of them."""

    given: TextRows

    def write(self, texts: TextRows, rng: np.random.Generator) -> Written:
        first, other = self.given.rows(rng.integers(len(self.given), size=2))
        return Written((first[0], (first[1] or other[0]) if texts.is_pair else None))


#: Sources that need nothing but the texts: name -> the source in the form that follows the name, "" for none.
FROM_TEXTS: dict[str, Callable[[str], OnlineSource]] = {"splice": Splice, "far": lambda form: Far()}


def check_labels(form: str, labels: np.ndarray) -> None:
    """Refuse a form that looks at labels where there are none, or only one."""
    if form in LABEL_FORMS and len(np.unique(labels[labels >= 0])) < 2:
        found = "none" if (labels < 0).all() else "one only"
        raise EbmcalError(
            f"splice:{form} chooses texts by their labels, and these have {found}. "
            "Use splice, or give texts with labels."
        )


def _two(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Two different rows, where there are two."""
    first = int(rng.integers(n))
    return first, (first + 1 + int(rng.integers(max(1, n - 1)))) % n


def to_words(text: str) -> tuple[list[str], str]:
    """The words of a text and what joins them; a text without spaces is cut into characters.

    >>> to_words("a fine film"), to_words("好电影")
    ((['a', 'fine', 'film'], ' '), (['好', '电', '影'], ''))
    """
    words = text.split()
    return (words, " ") if len(words) > 1 else (list(text.strip()), "")


def _alike(text: str, other: str) -> tuple[list[str], list[str], str]:
    """Two texts cut in the same way, and what joins their words: where one has spaces, the other is one word."""
    (words, space), (others, other_space) = to_words(text), to_words(other)
    return (words, others, space) if space == other_space else (text.split(), other.split(), " ")


def join(text: str, other: str, rng: np.random.Generator) -> tuple[str, float]:
    """The beginning of a text and as many words of the end of another as the text has left; the share of the first.

    A text of one word is kept whole, unless both are without spaces.

    >>> join("one two three four", "a b c d e f", np.random.default_rng(0))
    ('one two three f', 0.75)
    """
    words, ends, space = _alike(text, other)
    cut = int(rng.integers(1, len(words))) if len(words) > 1 else len(words)
    return _join_at(cut, words, ends, space)


def join_halves(text: str, other: str, rng: np.random.Generator) -> tuple[str, float]:
    """The first half of a text and as many words of the end of another; the share of the first.

    >>> join_halves("one two three four", "a b c d e f", np.random.default_rng(0))
    ('one two e f', 0.5)
    """
    words, ends, space = _alike(text, other)
    return _join_at((len(words) + 1) // 2, words, ends, space)


def _join_at(cut: int, words: list[str], ends: list[str], space: str) -> tuple[str, float]:
    tail = ends[-max(1, len(words) - cut) :]
    return space.join(words[:cut] + tail), cut / max(1, cut + len(tail))


def replace_middle(text: str, other: str, rng: np.random.Generator) -> tuple[str, float]:
    """A text with a run of its words replaced by as many of another; the share that is the text's own.

    >>> replace_middle("one two three four", "a b c d e f", np.random.default_rng(1))
    ('one d e four', 0.5)
    """
    words, others, space = _alike(text, other)
    if len(words) < 2 or not others:
        return join(text, other, rng)
    n = int(rng.integers(1, min(len(words) - 1, len(others)) + 1))
    start, taken = int(rng.integers(len(words) - n + 1)), int(rng.integers(len(others) - n + 1))
    return space.join(words[:start] + others[taken : taken + n] + words[start + n :]), 1 - n / len(words)


def take_turns(text: str, other: str, rng: np.random.Generator) -> tuple[str, float]:
    """A text that is cut at two to four places, every second piece replaced by as many words of another; its own share.

    >>> take_turns("one two three four five", "a b c d e f", np.random.default_rng(0))
    ('one a three b five', 0.6)
    """
    words, others, space = _alike(text, other)
    if len(words) < 3 or not others:
        return join(text, other, rng)
    n_cuts = int(rng.integers(2, min(4, len(words) - 1) + 1))
    cuts = np.sort(rng.choice(len(words) - 1, n_cuts, replace=False)) + 1
    pieces = [piece.tolist() for piece in np.split(np.array(words, dtype=object), cuts)]
    for i in range(1, len(pieces), 2):
        n = min(len(pieces[i]), len(others))
        start = int(rng.integers(len(others) - n + 1))
        pieces[i] = others[start : start + n]
    n_own = sum(map(len, pieces[::2]))
    return space.join(word for piece in pieces for word in piece), n_own / sum(map(len, pieces))


#: Forms of splice that cut in another way.
WAYS = {"middle": replace_middle, "halves": join_halves, "several": take_turns}


def shuffle(text: str, rng: np.random.Generator) -> str:
    """The words of a text in another order."""
    words, space = to_words(text)
    return space.join(words[i] for i in rng.permutation(len(words)))


def draw_words(texts: TextRows, n: int, rng: np.random.Generator) -> str:
    """n words, each of a text of its own as long as n is small: words by their frequency, without grammar."""
    rows: Sequence[Row] = texts.rows(rng.integers(len(texts), size=min(n, MOST_TEXTS)))
    words = [found for text, pair in rows if (found := to_words(text or pair or "")[0])]
    chosen = (words[i % len(words)] for i in range(n)) if words else ()
    return " ".join(found[int(rng.integers(len(found)))] for found in chosen)
