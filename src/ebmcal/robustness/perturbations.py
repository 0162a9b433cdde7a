"""Perturbations of a text at several strengths: pure functions of text, strength and a random generator.

The strength is the share of tokens or words that a perturbation changes; at strength 0 the text is unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Rng = np.random.Generator


class TokenSource(Protocol):
    """What a perturbation needs from a tokenizer."""

    def spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Start and end of each token, in characters."""

    def draw(self, rng: Rng) -> str:
        """A random token of the vocabulary, as text."""


@dataclass(frozen=True)
class Perturbation:
    """A function (text, strength, rng, tokens) → text, with the strengths at which it is evaluated."""

    title: str
    unit: str  # what the strength is a share of
    strengths: tuple[float, ...]
    apply: Callable[[str, float, Rng, TokenSource], str]


def replace_tokens(text: str, strength: float, rng: Rng, tokens: TokenSource) -> str:
    """Replace tokens by random tokens of the vocabulary: the random-token test of the paper."""
    spans = tokens.spans(text)
    for i in sorted(_sample(len(spans), strength, rng), reverse=True):  # from the end, so that earlier spans stay valid
        start, stop = spans[i]
        text = text[:start] + tokens.draw(rng) + text[stop:]
    return text


def add_typos(text: str, strength: float, rng: Rng, tokens: TokenSource) -> str:
    """Put one typo into words of three letters or more: swapped, missing, doubled letters or a neighbouring key.

    >>> add_typos("wonderful", 1.0, np.random.default_rng(0), None)
    'wonderdul'
    """
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 2]
    for i in (long[j] for j in _sample(len(long), strength, rng)):
        words[i] = _typo(words[i], rng)
    return " ".join(words)


def uppercase(text: str, strength: float, rng: Rng, tokens: TokenSource) -> str:
    """Write words in capitals.

    >>> uppercase("not bad", 1.0, np.random.default_rng(0), None)
    'NOT BAD'
    """
    words = text.split(" ")
    for i in _sample(len(words), strength, rng):
        words[i] = words[i].upper()
    return " ".join(words)


def shuffle_words(text: str, strength: float, rng: Rng, tokens: TokenSource) -> str:
    """Move words; every selected word changes its position.

    >>> shuffle_words("one two three", 1.0, np.random.default_rng(0), None)
    'three one two'
    """
    words = text.split(" ")
    places = _sample(len(words), strength, rng, at_least=2)
    for place, word in zip(places, [words[i] for i in np.roll(places, 1)], strict=True):
        words[place] = word
    return " ".join(words)


def truncate(text: str, strength: float, rng: Rng, tokens: TokenSource) -> str:
    """Remove words at the end; at least one word stays.

    >>> truncate("one two three four", 0.5, None, None)
    'one two'
    """
    words = text.split(" ")
    return " ".join(words[: max(1, round(len(words) * (1 - strength)))])


PERTURBATIONS: dict[str, Perturbation] = {
    "random-tokens": Perturbation("Random tokens", "tokens replaced", (0.1, 0.2), replace_tokens),
    "typos": Perturbation("Typos", "words with a typo", (0.05, 0.1, 0.2, 0.4), add_typos),
    "uppercase": Perturbation("Uppercase", "words in capitals", (0.25, 0.5, 1.0), uppercase),
    "word-order": Perturbation("Word order", "words moved", (0.1, 0.25, 0.5, 1.0), shuffle_words),
    "truncation": Perturbation("Truncation", "words removed", (0.25, 0.5, 0.75), truncate),
}


class TokenizerSource:
    """`TokenSource` of a fast tokenizer of transformers."""

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
                return str(token)
        return "x"  # a vocabulary without words


def _sample(n: int, strength: float, rng: Rng, at_least: int = 1) -> np.ndarray:
    """A share of the indices below n, in random order; at least one unless n or the strength is 0."""
    return rng.permutation(n)[: max(at_least, round(n * strength))] if n and strength else np.empty(0, dtype=int)


_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _typo(word: str, rng: Rng) -> str:
    i, kind = int(rng.integers(len(word) - 1)), int(rng.integers(4))
    if kind == 0 and word[i] != word[i + 1]:
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if kind == 1:
        return word[:i] + word[i + 1 :]
    row = next((keys for keys in _KEYBOARD if word[i].lower() in keys), None)
    if kind == 2 and row:
        place = row.index(word[i].lower())
        return word[:i] + row[place - 1 if place else 1] + word[i + 1 :]
    return word[:i] + word[i] + word[i:]
