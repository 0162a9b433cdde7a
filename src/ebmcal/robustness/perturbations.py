"""Perturbed texts: built-in perturbations at several strengths, and test suites as data.

A perturbation is a pure function of text, strength and a random generator. The strength is the share of tokens or words
that it changes; at strength 0 the text is unchanged. Suites are YAML files of invariance, directional and
minimum-functionality tests, after CheckList (Ribeiro et al. 2020):

    labels: [negative, positive]       # optional: only for models with these labels
    tests:
      - {name: …, kind: invariance, append: [sentences], strengths: [1, 2]}     the predicted label must not change
      - {name: …, kind: directional, replace: {" is ": " is not "},             a probability must not move against
         expect: {label: predicted, moves: down, tolerance: 0.1}}                 the expectation by more than this
      - {name: …, kind: minimum-functionality, templates: ["A {word} film."], words: {positive: [good]}}
      - {name: …, kind: minimum-functionality, cases: [{text: …, label: …}]}

`append` and `prepend` add as many sentences as the strength, `replace` changes the first match; one of them per test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ebmcal.config import read_yaml
from ebmcal.errors import EbmcalError
from ebmcal.storage import PathLike

Rng = np.random.Generator


class TokenSource:
    """Tokens of a fast tokenizer of transformers: where they are in a text, and random ones."""

    def __init__(self, tokenizer: Any) -> None:
        special = set(tokenizer.all_special_ids)
        self._tokenizer, self._ids = tokenizer, [i for i in range(len(tokenizer)) if i not in special]

    def spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Start and end of each token, in characters."""
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(start, stop) for start, stop in encoded["offset_mapping"] if stop > start]

    def draw(self, rng: Rng) -> str:
        """A random token of the vocabulary, as text."""
        for _ in range(100):
            token = self._tokenizer.decode([self._ids[rng.integers(len(self._ids))]]).strip().removeprefix("##")
            if token and token.isprintable() and not token.startswith("["):
                return str(token)
        return "x"  # a vocabulary without words


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


Strength = Annotated[int, Field(ge=1, le=1000, strict=True)]
Name = Annotated[str, Field(min_length=1)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Expectation(_Entry):
    """The probability of `label` ("predicted": the label of the original text) must not move the other way."""

    label: Name
    moves: Literal["up", "down"]
    tolerance: float = Field(0.1, ge=0, lt=1)  # as in CheckList


class Case(_Entry):
    """A text and the label it must get."""

    text: str
    label: Name


class SuiteTest(_Entry):
    """One test of a suite.

    >>> test = SuiteTest(name="so", kind="invariance", append=["So."])
    >>> test.perturb("A film", 2, np.random.default_rng(0))
    'A film So. So.'
    """

    name: Name
    kind: Literal["invariance", "directional", "minimum-functionality"]
    suite: str = ""
    append: list[str] = []
    prepend: list[str] = []
    replace: dict[str, str] = {}
    strengths: list[Strength] = Field([1], min_length=1)
    expect: Expectation | None = None
    templates: list[str] = []
    words: dict[str, list[str]] = {}
    cases: list[Case] = []
    labels: list[Name] = []  # required of the model

    @model_validator(mode="after")
    def _check_kind(self) -> "SuiteTest":
        given = [name for name in ("append", "prepend", "replace") if getattr(self, name)]
        if self.kind == "minimum-functionality":
            if given or self.expect:
                raise ValueError("a minimum-functionality test has only templates and words, or cases")
            if not all("{word}" in template for template in self.templates) or not self.all_cases():
                raise ValueError("expected templates (with {word}) and lists of words by label, or cases")
            return self
        if len(given) != 1 or self.templates or self.words or self.cases:
            raise ValueError(f"expected one of append, prepend, replace; got {', '.join(given) or 'none'}")
        if (self.kind == "directional") != (self.expect is not None):
            raise ValueError("directional tests, and only they, need expect (label and moves)")
        return self

    def all_cases(self) -> list[Case]:
        """The cases, and those made from templates and words."""
        made = [
            Case(text=template.replace("{word}", word), label=label)
            for template in self.templates
            for label, words in self.words.items()
            for word in words
        ]
        return [*self.cases, *made]

    def required_labels(self) -> set[str]:
        """The labels that a model must have for this test."""
        expected = {self.expect.label} - {"predicted"} if self.expect else set()
        return {*self.labels, *expected, *(case.label for case in self.all_cases())}

    def perturb(self, text: str, strength: int, rng: Rng) -> str:
        """The perturbed text; unchanged if nothing matches `replace`."""
        for old, new in self.replace.items():
            if old in text:
                return text.replace(old, new, 1)
        if self.replace:
            return text
        sentences = self.prepend or self.append
        added = " ".join(sentences[i] for i in rng.integers(len(sentences), size=strength))
        return f"{added} {text}" if self.prepend else f"{text} {added}"


class _Suite(_Entry):
    labels: list[Name] = []
    tests: list[SuiteTest] = Field(min_length=1)


def builtin_suites() -> list[Path]:
    """The suites of the package."""
    return sorted((Path(__file__).parent / "suites").glob("*.yaml"))


def read_suite(path: PathLike) -> list[SuiteTest]:
    """The tests of a YAML file; all mistakes are reported in one error."""
    path = Path(path)
    try:
        suite = _Suite.model_validate(read_yaml(path))
    except ValidationError as error:
        raise EbmcalError(f"{path}: " + " ".join(map(_problem, error.errors()))) from None
    common = {"suite": path.stem}
    return [test.model_copy(update=common | {"labels": [*suite.labels, *test.labels]}) for test in suite.tests]


def _problem(found: Any) -> str:
    """One mistake as a sentence."""
    value = found["input"]
    shown = f", got {value!r:.60}" if isinstance(value, str | int | float) else ""
    return f"{'.'.join(map(str, found['loc']))}: {found['msg'].removeprefix('Value error, ')}{shown}."
