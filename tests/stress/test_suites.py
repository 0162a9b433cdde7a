"""Suites of tests: those that are shipped are right, and every mistake in one of your own is named at once."""

import numpy as np
import pytest

from ebmcal.errors import EbmcalError
from ebmcal.stress.suites import KINDS, read_suite, shipped_suites

SHIPPED = [test for path in shipped_suites() for test in read_suite(path)]


def test_what_is_shipped():
    assert {test.kind for test in SHIPPED} == set(KINDS)
    assert len({test.name for test in SHIPPED}) == len(SHIPPED) > 8
    for test in SHIPPED:
        assert bool(test.cases) == (test.kind == "minimum-functionality")
        assert "{word}" not in "".join(text for text, _ in test.cases)
        assert test.fits(["negative", "positive"])
        assert test.fits(["a", "b"]) == (test.suite == "additions")


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_your_own(tmp_path):
    suite = write(
        tmp_path / "mine.yaml",
        "tests:\n"
        "  - {name: greet, kind: invariance, prepend: [Hello.], strengths: [1, 2]}\n"
        "  - {name: turn, kind: directional, replace: {good: bad}, expect: {label: up, moves: down, tolerance: 0.2}}\n"
        "  - {name: known, kind: minimum-functionality, cases: [{text: fine, label: up}]}\n",
    )
    greet, turn, known = read_suite(suite)
    rng = np.random.default_rng(0)
    assert greet.change("a film", 2, rng) == "Hello. Hello. a film"
    assert turn.change("a good, good film", 1, rng) == "a bad, good film"
    assert turn.change("a film", 1, rng) == "a film"
    assert turn.expect.tolerance == 0.2
    assert known.cases == (("fine", "up"),)
    assert known.labels == turn.labels == ("up",)


def test_every_mistake_is_named(tmp_path):
    suite = write(
        tmp_path / "wrong.yaml",
        "tests:\n"
        "  - {kind: invariance}\n"
        "  - {name: a, kind: invariant, append: [x]}\n"
        "  - {name: b, kind: invariance, append: [x], prepend: [y]}\n"
        "  - {name: c, kind: directional, append: [x], expect: {label: up, moves: left}}\n"
        "  - {name: d, kind: minimum-functionality, templates: [x]}\n"
        "  - {name: e, kind: invariance, append: [x], strength: [1], strengths: [0]}\n"
        "  - {name: f, kind: minimum-functionality, templates: ['a {word}'], words: {up: good}}\n"
        "  - {name: g, kind: minimum-functionality, templates: [a], words: {up: [good]}}\n"
        "  - {name: h, kind: minimum-functionality, templates: [7], words: {up: [good]}}\n"
        "  - {name: i, kind: minimum-functionality, cases: [{text: fine, label: yes}]}\n"
        "  - {name: j, kind: directional, append: [x], expect: {label: no, moves: up}}\n"
        "  - {name: k, kind: invariance, append: [x], strengths: [1000000000]}\n"
        "  - {name: l, kind: invariance, append: [x], labels: up, strengths: []}\n",
    )
    with pytest.raises(EbmcalError) as caught:
        read_suite(suite)
    for words in (
        "Test 1 has no name", "a: kind is 'invariant'", "b: it needs one of append, prepend, replace; append, prepend",
        "c: expect: moves is 'left'", "d: it needs templates", "e: unknown key 'strength'", "e: strengths are whole",
        "f: it needs templates (with {word}) and lists of words", "g: it needs templates", "h: it needs templates",
        "i: the label True is no word", "j: expect: the label False is no word",
        "k: strengths are whole numbers from 1",
        "l: a list of labels is needed; 'up' came", "l: strengths are whole",
    ):  # fmt: skip
        assert words in str(caught.value)
    for text, words in (
        ("- a", "no suite"), ("tests: [", "not a readable suite"), ("tests: []", "has no tests"),
        ("tests: " + "[" * 5000, "not a readable suite"), ("when: 2024-13-45", "not a readable suite"),
        ("labels: up\ntests: [{name: a, kind: invariance, append: [x]}]", "labels: a list of labels is needed"),
    ):  # fmt: skip
        with pytest.raises(EbmcalError, match=words):
            read_suite(write(tmp_path / "x.yaml", text))
    with pytest.raises(EbmcalError, match="not a readable suite"):
        read_suite(tmp_path / "absent.yaml")
