"""Tests that are data: YAML files of invariance, directional and minimum-functionality tests, after CheckList.

    labels: [negative, positive]       # optional: only for models that have these
    tests:
      - {name: …, kind: invariance, append: [sentences], strengths: [1, 2]}         the label must not change
      - {name: …, kind: directional, replace: {" is ": " is not "},                 a probability must not move against
         expect: {label: predicted, moves: down, tolerance: 0.1}}                     the expectation by more than this
      - {name: …, kind: minimum-functionality, templates: ["A {word} film."], words: {positive: [good]}}
      - {name: …, kind: minimum-functionality, cases: [{text: …, label: …}]}

`append` and `prepend` add as many sentences as the strength says, `replace` changes words; one of them a test.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ebmcal.errors import EbmcalError

KINDS = ("invariance", "directional", "minimum-functionality")
ADDITIONS = ("append", "prepend", "replace")
KEYS = {"name", "kind", "strengths", "expect", "templates", "words", "cases", "labels", *ADDITIONS}
TOLERANCE = 0.1  # of a probability, as in CheckList
MOST = 1000  # sentences added to a text


@dataclass(frozen=True)
class Expectation:
    """Which probability must not go where: `label` is a label or "predicted", the one of the unchanged text."""

    label: str
    moves: str  # up, down
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class SuiteTest:
    """One test of a suite."""

    suite: str
    name: str
    kind: str
    append: tuple[str, ...] = ()
    prepend: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    strengths: tuple[int, ...] = (1,)
    expect: Expectation | None = None
    cases: tuple[tuple[str, str], ...] = ()  # text and label
    labels: tuple[str, ...] = ()  # that a model must have

    def fits(self, label_names: Iterable[str]) -> bool:
        return set(self.labels) <= set(label_names)

    def change(self, text: str, strength: int, rng: np.random.Generator) -> str:
        """The changed text; as it was where nothing of `replace` is in it.

        >>> SuiteTest("s", "t", "invariance", append=("So.",)).change("A film", 2, np.random.default_rng(0))
        'A film So. So.'
        """
        for old, new in self.replace.items():
            if old in text:
                return text.replace(old, new, 1)
        sentences = self.prepend or self.append
        if not sentences:
            return text
        words = " ".join(sentences[i] for i in rng.integers(len(sentences), size=strength))
        return f"{words} {text}" if self.prepend else f"{text} {words}"


def shipped_suites() -> list[Path]:
    """The suites that come with ebmcal."""
    folder = resources.files("ebmcal.stress").joinpath("data")
    return sorted(Path(str(path)) for path in folder.iterdir() if path.name.endswith(".yaml"))


def read_suite(path: str | Path) -> list[SuiteTest]:
    """The tests of a file; every mistake in one error."""
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise EbmcalError(f"{path} is not a readable suite of tests: {error}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("tests"), list):
        raise EbmcalError(f"{path} is no suite: it needs `tests:`, a list; see docs/stress.md.")
    problems = [f"labels: {problem}" for problem in _label_problems(content.get("labels"))]
    common = () if problems else tuple(map(str, content.get("labels") or ()))
    tests = [_test(path.stem, number, entry, common, problems) for number, entry in enumerate(content["tests"], 1)]
    if problems or not tests:
        raise EbmcalError(f"{path}: " + " ".join(problems or ["it has no tests."]))
    return [test for test in tests if test]


def _test(suite: str, number: int, entry: Any, common: tuple[str, ...], problems: list[str]) -> SuiteTest | None:
    if not isinstance(entry, Mapping) or not entry.get("name"):
        problems.append(f"Test {number} has no name.")
        return None
    name, kind = str(entry["name"]), entry.get("kind")
    found = _problems(entry, kind)
    if found:
        problems += [f"{name}: {problem}" for problem in found]
        return None
    cases = _cases(entry)
    labels = dict.fromkeys([*common, *map(str, entry.get("labels") or ()), *(label for _, label in cases)])
    expect = (
        Expectation(**entry["expect"] | {"label": str(entry["expect"]["label"])}) if kind == "directional" else None
    )
    if expect and expect.label != "predicted":
        labels[expect.label] = None
    return SuiteTest(
        suite, name, str(kind), tuple(map(str, entry.get("append", ()))), tuple(map(str, entry.get("prepend", ()))),
        {str(a): str(b) for a, b in (entry.get("replace") or {}).items()}, tuple(entry.get("strengths", (1,))), expect,
        cases, tuple(labels),
    )  # fmt: skip


def _problems(entry: Mapping[str, Any], kind: Any) -> list[str]:
    found = [f"unknown key {key!r}; known: {', '.join(sorted(KEYS))}." for key in entry if key not in KEYS]
    found += _label_problems(entry.get("labels"))
    if kind not in KINDS:
        return [*found, f"kind is {kind!r}; it must be one of {', '.join(KINDS)}."]
    given = [name for name in ADDITIONS if entry.get(name)]
    if kind == "minimum-functionality":
        if not _are_templates(entry) and not _are_cases(entry.get("cases")):
            found.append("it needs templates (with {word}) and lists of words by label, or cases with text and label.")
            return found
        labels = [*(entry.get("words") or ()), *(case["label"] for case in entry.get("cases") or ())]
        return found + _label_problems(labels)
    if len(given) != 1:
        found.append(f"it needs one of {', '.join(ADDITIONS)}; {', '.join(given) or 'none'} came.")
    elif not isinstance(entry[given[0]], Mapping if given[0] == "replace" else list):
        found.append(f"{given[0]} must be a {'mapping of words' if given[0] == 'replace' else 'list of sentences'}.")
    strengths = entry.get("strengths", [1])
    if not isinstance(strengths, list) or not strengths or not all(type(n) is int and 0 < n <= MOST for n in strengths):
        found.append(f"strengths are whole numbers from 1 to {MOST}; {strengths!r} came.")
    return found + (_expect_problems(entry.get("expect")) if kind == "directional" else [])


def _expect_problems(expect: Any) -> list[str]:
    if not isinstance(expect, Mapping) or not {"label", "moves"} <= set(expect) <= {"label", "moves", "tolerance"}:
        return ["expect needs label (a label, or predicted) and moves (up or down), and may have tolerance."]
    if expect["moves"] not in ("up", "down"):
        return [f"expect: moves is {expect['moves']!r}; it must be up or down."]
    if problems := _label_problems([expect["label"]]):
        return [f"expect: {problem}" for problem in problems]
    tolerance = expect.get("tolerance", TOLERANCE)
    is_share = isinstance(tolerance, int | float) and 0 <= tolerance < 1
    return [] if is_share else [f"expect: tolerance is {tolerance!r}; it must be a share of 1."]


def _label_problems(labels: Any) -> list[str]:
    """What is wrong with a list of labels; YAML makes switches of yes, no, on and off."""
    if labels is not None and not isinstance(labels, list):
        return [f"a list of labels is needed; {labels!r} came."]
    return [
        f"the label {label!r} is no word: YAML reads yes, no, on, off and null as values. Put it in quotes."
        for label in labels or ()
        if isinstance(label, bool) or label is None
    ]


def _are_templates(entry: Mapping[str, Any]) -> bool:
    templates, words = entry.get("templates"), entry.get("words")
    if not isinstance(templates, list) or not isinstance(words, Mapping) or not words:
        return False
    are_texts = all(isinstance(template, str) and "{word}" in template for template in templates)
    return bool(are_texts and templates and all(isinstance(many, list) and many for many in words.values()))


def _are_cases(cases: Any) -> bool:
    are_mappings = isinstance(cases, list) and cases and all(isinstance(case, Mapping) for case in cases)
    return bool(are_mappings and all({"text", "label"} <= set(case) for case in cases))


def _cases(entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    given = [(str(case["text"]), str(case["label"])) for case in entry.get("cases") or ()]
    words: Mapping[str, Sequence[str]] = entry.get("words") or {}
    made = [
        (template.replace("{word}", str(word)), str(label))
        for template in entry.get("templates") or ()
        for label, many in words.items()
        for word in many
    ]
    return (*given, *made)
