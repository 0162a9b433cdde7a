"""Unrelated noise: texts that are clearly not data. Shuffled or random words of the training texts, or a user's file.

In a mixture the energy of such texts rises, too; splices alone share words and most of their order with the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebmcal.data import as_dataset
from ebmcal.data.splits import TextPair, Texts
from ebmcal.errors import EbmcalError
from ebmcal.noise.sources import split_words
from ebmcal.progress import Reporter

#: The most texts that the words of one noise text are drawn from, which bounds the cost of long texts.
MAX_TEXTS = 64


class RandomWords:
    """Half of the texts are the shuffled words of a text, the others as many words drawn from all texts."""

    def write(self, texts: Texts, rngs: Sequence[np.random.Generator]) -> list[TextPair]:
        rows = texts[[int(rng.integers(len(texts))) for rng in rngs]]
        is_shuffled = [rng.random() < 0.5 for rng in rngs]
        firsts = _scramble([text for text, _ in rows], is_shuffled, texts, rngs)
        if not texts.is_pair:
            return [(text, None) for text in firsts]
        return list(zip(firsts, _scramble([pair or "" for _, pair in rows], is_shuffled, texts, rngs), strict=True))


@dataclass(frozen=True)
class OtherTexts:
    """Texts of a user's file; two of them for a task of pairs."""

    others: Texts

    def write(self, texts: Texts, rngs: Sequence[np.random.Generator]) -> list[TextPair]:
        rows = self.others[[int(i) for rng in rngs for i in rng.integers(len(self.others), size=2)]]
        firsts, seconds = rows[::2], rows[1::2]
        if not texts.is_pair:
            return [(text, None) for text, _ in firsts]
        return [(text, pair or other) for (text, pair), (other, _) in zip(firsts, seconds, strict=True)]


def read_texts(file: str, reporter: Reporter) -> tuple[OtherTexts, OtherTexts]:
    """The texts of a file: four fifths to draw from, and the others, which are held out."""
    rows = as_dataset(Path(file).expanduser(), reporter=reporter)
    if len(rows) < 2:
        raise EbmcalError(f"{file} has {len(rows)} text; noise from a file needs at least two.")
    is_held_out = np.arange(len(rows)) % 5 == 1
    drawn, held_out = (Texts(rows.select(np.flatnonzero(chosen))) for chosen in (~is_held_out, is_held_out))
    return OtherTexts(drawn), OtherTexts(held_out)


def _scramble(
    column: Sequence[str], is_shuffled: Sequence[bool], texts: Texts, rngs: Sequence[np.random.Generator]
) -> list[str]:
    written = [shuffle_words(t, rng) if s else "" for t, s, rng in zip(column, is_shuffled, rngs, strict=True)]
    drawn = {i: max(1, len(split_words(column[i])[0])) for i, text in enumerate(written) if not text}  # -> n words
    chosen = [rngs[i].integers(len(texts), size=min(n, MAX_TEXTS)) for i, n in drawn.items()]
    rows = iter(texts[np.concatenate(chosen)] if chosen else [])  # one read for all
    for (i, n), indices in zip(drawn.items(), chosen, strict=True):
        written[i] = draw_words([next(rows) for _ in indices], n, rngs[i])
    return written


def shuffle_words(text: str, rng: np.random.Generator) -> str:
    """The words of a text in random order."""
    words, space = split_words(text)
    return space.join(words[i] for i in rng.permutation(len(words)))


def draw_words(rows: Sequence[TextPair], n: int, rng: np.random.Generator) -> str:
    """n words, one from each text in turn: word frequencies of the data without its grammar."""
    words = [found for text, pair in rows if (found := split_words(text or pair or "")[0])]
    chosen = (words[i % len(words)] for i in range(n)) if words else ()
    return " ".join(found[int(rng.integers(len(found)))] for found in chosen)
