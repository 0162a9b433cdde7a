"""Test suites: the built-in ones are valid, and every mistake in a user's suite is reported at once."""

import numpy as np
import pytest

from ebmcal.errors import EbmcalError
from ebmcal.robustness import builtin_suites, read_suite

BUILTIN = [test for path in builtin_suites() for test in read_suite(path)]


def test_builtin_suites():
    assert {test.kind for test in BUILTIN} == {"invariance", "directional", "minimum-functionality"}
    assert len({test.name for test in BUILTIN}) == len(BUILTIN) > 8
    for test in BUILTIN:
        assert bool(test.all_cases()) == (test.kind == "minimum-functionality")
        assert "{word}" not in "".join(case.text for case in test.all_cases())
        assert test.required_labels() <= {"negative", "positive"}
        assert (not test.required_labels()) == (test.suite == "additions")


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_users_suite(tmp_path):
    suite = write(
        tmp_path / "mine.yaml",
        "labels: [5]\n"
        "tests:\n"
        "  - {name: greet, kind: invariance, prepend: [Hello.], strengths: [1, 2]}\n"
        "  - {name: turn, kind: directional, replace: {good: bad}, expect: {label: up, moves: down, tolerance: 0.2}}\n"
        "  - {name: known, kind: minimum-functionality, cases: [{text: fine, label: up}]}\n",
    )
    greet, turn, known = read_suite(suite)
    rng = np.random.default_rng(0)
    assert greet.perturb("a film", 2, rng) == "Hello. Hello. a film"
    assert turn.perturb("a good, good film", 1, rng) == "a bad, good film"
    assert turn.perturb("a film", 1, rng) == "a film"
    assert turn.expect.tolerance == 0.2
    assert [(case.text, case.label) for case in known.all_cases()] == [("fine", "up")]
    assert known.required_labels() == turn.required_labels() == {"5", "up"}
    assert {test.suite for test in (greet, turn, known)} == {"mine"}


def test_all_mistakes_are_reported_at_once(tmp_path):
    suite = write(
        tmp_path / "wrong.yaml",
        "labels: up\n"
        "tests:\n"
        "  - {kind: invariance}\n"
        "  - {name: a, kind: invariant, append: [x]}\n"
        "  - {name: b, kind: invariance, append: [x], prepend: [y]}\n"
        "  - {name: c, kind: directional, append: [x], expect: {label: up, moves: left}}\n"
        "  - {name: d, kind: minimum-functionality, templates: [x]}\n"
        "  - {name: e, kind: invariance, append: [x], strength: [1], strengths: [0]}\n"
        "  - {name: f, kind: minimum-functionality, templates: ['a {word}'], words: {up: good}}\n"
        "  - {name: g, kind: minimum-functionality, templates: [a], words: {up: [good]}}\n"
        "  - {name: h, kind: directional, append: [x]}\n"
        "  - {name: i, kind: minimum-functionality, cases: [{text: fine, label: yes}]}\n"
        "  - {name: j, kind: directional, append: [x], expect: {label: no, moves: up}}\n"
        "  - {name: k, kind: invariance, append: [x], strengths: [1000000000]}\n"
        "  - {name: l, kind: invariance, append: [x], labels: up, strengths: []}\n",
    )
    with pytest.raises(EbmcalError) as caught:
        read_suite(suite)
    for words in (
        "labels: Input should be a valid list, got 'up'", "tests.0.name: Field required", "tests.1.kind: Input should",
        "tests.2: expected one of append, prepend, replace; got append, prepend", "tests.3.expect.moves",
        "tests.4: expected templates", "tests.5.strength: Extra inputs are not permitted", "tests.5.strengths.0",
        "tests.6.words.up: Input should be a valid list", "tests.7: expected templates",
        "tests.8: directional tests, and only they, need expect",
        "tests.9.cases.0.label: Input should be a valid string, got True", "tests.10.expect.label",
        "tests.11.strengths.0", "tests.12.strengths", "tests.12.labels",
    ):  # fmt: skip
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "must contain `setting: value` lines"),
        ("tests: [", "not valid YAML"),
        ("tests: []", "at least 1 item"),
        ("tests: " + "[" * 1200, "not valid YAML"),
        ("when: 2024-13-45", "not valid YAML"),
        ("a: &a [x]\ntests: [*a, *a]", "aliases are not supported"),  # nested ones expand without bound
    ],
)
def test_unreadable_suites(text, words, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(EbmcalError, match=words):
        read_suite(tmp_path / "x.yaml")
    with pytest.raises(EbmcalError, match="does not exist"):
        read_suite(tmp_path / "absent.yaml")
