"""Test suites as data: YAML files of invariance, directional and minimum-functionality tests, after CheckList.

    labels: [negative, positive]       # optional: only for models with these labels
    tests:
      - {name: …, kind: invariance, append: [sentences], strengths: [1, 2]}     the predicted label must not change
      - {name: …, kind: directional, replace: {" is ": " is not "},             a probability must not move against
         expect: {label: predicted, moves: down, tolerance: 0.1}}                 the expectation by more than this
      - {name: …, kind: minimum-functionality, templates: ["A {word} film."], words: {positive: [good]}}
      - {name: …, kind: minimum-functionality, cases: [{text: …, label: …}]}

`append` and `prepend` add as many sentences as the strength, `replace` changes the first match; one of them per test.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ebmcal.errors import EbmcalError
from ebmcal.storage import PathLike

Kind = Literal["invariance", "directional", "minimum-functionality"]
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
    kind: Kind
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

    def applies_to(self, label_names: Iterable[str]) -> bool:
        return self.required_labels() <= set(label_names)

    def perturb(self, text: str, strength: int, rng: np.random.Generator) -> str:
        """The perturbed text; unchanged if nothing matches `replace`."""
        for old, new in self.replace.items():
            if old in text:
                return text.replace(old, new, 1)
        sentences = self.prepend or self.append
        if not sentences:
            return text
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
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise EbmcalError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(content, dict):
        raise EbmcalError(f"{path}: expected `tests:` with a list of tests; see docs/robustness.md.")
    try:
        suite = _Suite.model_validate(content)
    except ValidationError as error:
        raise EbmcalError(f"{path}: " + " ".join(_problem(content, found) for found in error.errors())) from None
    common = {"suite": path.stem}
    return [test.model_copy(update=common | {"labels": [*suite.labels, *test.labels]}) for test in suite.tests]


def _problem(content: Any, found: Any) -> str:
    """One mistake as a sentence; containers are not printed, since YAML aliases can make them huge."""
    place, value = found["loc"], found["input"]
    shown = f", got {value!r:.60}" if isinstance(value, str | int | float) else ""
    if isinstance(value, bool):
        shown += ": YAML reads yes, no, on and off as booleans, so put the word in quotes"
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        message, shown = f"unknown key; known keys of a test: {', '.join(SuiteTest.model_fields)}", ""
    return f"{_where(content, place)}: {message}{shown}."


def _where(content: Any, place: tuple[int | str, ...]) -> str:
    if len(place) < 2 or place[0] != "tests":
        return ".".join(map(str, place))
    entry = content["tests"][place[1]]
    name = entry.get("name") if isinstance(entry, dict) else None
    test = name if isinstance(name, str) else f"test {int(place[1]) + 1}"
    return ", ".join([test, ".".join(map(str, place[2:]))] if place[2:] else [test])
