"""Changes of a text, each at several strengths: pure functions of text, strength and a random generator.

A strength is the share of a text's tokens or words that a change touches; 0 leaves the text as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Rng = np.random.Generator


class Tokens(Protocol):
    """A tokenizer, as far as changes see it."""

    def spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Where the tokens of a text begin and end, in characters."""

    def draw(self, rng: Rng) -> str:
        """A random token of the vocabulary, as text."""


@dataclass(frozen=True)
class Change:
    """How texts are changed, and how strongly."""

    title: str
    unit: str  # what a strength is a share of
    strengths: tuple[float, ...]
    apply: Callable[[str, float, Rng, Tokens], str]


def replace_tokens(text: str, strength: float, rng: Rng, tokens: Tokens) -> str:
    """Other tokens of the vocabulary in place of some: the random-token test of the paper."""
    spans = tokens.spans(text)
    for i in sorted(_some(len(spans), strength, rng), reverse=True):  # from the end: earlier places stay
        start, stop = spans[i]
        text = text[:start] + tokens.draw(rng) + text[stop:]
    return text


def add_typos(text: str, strength: float, rng: Rng, tokens: Tokens) -> str:
    """One slip in some words: two letters swapped, one left out, one doubled, or the key beside it.

    >>> add_typos("wonderful", 1.0, np.random.default_rng(0), None)
    'wonderdul'
    """
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 2]
    for i in (long[j] for j in _some(len(long), strength, rng)):
        words[i] = _slip(words[i], rng)
    return " ".join(words)


def shout(text: str, strength: float, rng: Rng, tokens: Tokens) -> str:
    """Some words in capitals.

    >>> shout("not bad", 1.0, np.random.default_rng(0), None)
    'NOT BAD'
    """
    words = text.split(" ")
    for i in _some(len(words), strength, rng):
        words[i] = words[i].upper()
    return " ".join(words)


def shuffle_words(text: str, strength: float, rng: Rng, tokens: Tokens) -> str:
    """Some words move to the place of another: each of them does, so that a strength is what it says.

    >>> shuffle_words("one two three", 1.0, np.random.default_rng(0), None)
    'three one two'
    """
    words = text.split(" ")
    places = _some(len(words), strength, rng, least=2)
    for place, word in zip(places, [words[i] for i in np.roll(places, 1)], strict=True):
        words[place] = word
    return " ".join(words)


def cut_end(text: str, strength: float, rng: Rng, tokens: Tokens) -> str:
    """The beginning of a text; one word stays at least.

    >>> cut_end("one two three four", 0.5, None, None)
    'one two'
    """
    words = text.split(" ")
    return " ".join(words[: max(1, round(len(words) * (1 - strength)))])


CHANGES: dict[str, Change] = {
    "random-tokens": Change("Random tokens", "tokens replaced", (0.1, 0.2), replace_tokens),
    "typos": Change("Typos", "words with a slip", (0.05, 0.1, 0.2, 0.4), add_typos),
    "case": Change("Capitals", "words in capitals", (0.25, 0.5, 1.0), shout),
    "word-order": Change("Word order", "words moved", (0.1, 0.25, 0.5, 1.0), shuffle_words),
    "truncation": Change("Cut ends", "words cut off", (0.25, 0.5, 0.75), cut_end),
}


class TokenizerTokens:
    """`Tokens` of a fast tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        special = set(tokenizer.all_special_ids)
        self._tokenizer, self._ids = tokenizer, [i for i in range(len(tokenizer)) if i not in special]

    def spans(self, text: str) -> Sequence[tuple[int, int]]:
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(start, stop) for start, stop in encoded["offset_mapping"] if stop > start]

    def draw(self, rng: Rng) -> str:
        for _ in range(100):
            token = self._tokenizer.decode([self._ids[rng.integers(len(self._ids))]]).strip().removeprefix("##")
            if token and token.isprintable() and not token.startswith("["):
                return token
        return "x"  # a vocabulary of marks only


def _some(n: int, strength: float, rng: Rng, least: int = 1) -> np.ndarray:
    """Places of a share of n things, in random order; one at least where there are any."""
    return rng.permutation(n)[: max(least, round(n * strength))] if n and strength else np.empty(0, dtype=int)


#: Rows of a keyboard: a slip takes the key beside.
KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _slip(word: str, rng: Rng) -> str:
    i, kind = int(rng.integers(len(word) - 1)), int(rng.integers(4))
    if kind == 0 and word[i] != word[i + 1]:
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if kind == 1:
        return word[:i] + word[i + 1 :]
    row = next((keys for keys in KEYS if word[i].lower() in keys), None)
    if kind == 2 and row:
        place = row.index(word[i].lower())
        return word[:i] + row[place - 1 if place else 1] + word[i + 1 :]
    return word[:i] + word[i] + word[i:]
