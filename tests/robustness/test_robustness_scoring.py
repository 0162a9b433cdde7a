"""Robustness scores of models with known answers, and the tables and the page made from them."""

import json

import numpy as np
import pandas as pd
import pytest

from ebmcal.predictions import Predictions
from ebmcal.robustness import PERTURBATIONS, Robustness, Subject, make_conditions, score
from ebmcal.robustness.perturbations import SuiteTest

NAMES = ("negative", "positive")
TEXTS = [f"the film {'was good' if i % 2 else 'was dull'} and number {i} <b>" for i in range(60)]
LABELS = np.arange(60) % 2
TESTS = [
    SuiteTest(suite="mine", name="loud", kind="invariance", append=["LOUD"], strengths=[1, 2]),
    SuiteTest(
        suite="mine", name="turn", kind="directional", replace={"good": "dull"},
        expect={"label": "positive", "moves": "up"},
    ),
    SuiteTest(
        suite="mine", name="sink", kind="directional", append=["so"], expect={"label": "predicted", "moves": "down"}
    ),
    SuiteTest(
        suite="mine", name="known", kind="minimum-functionality",
        cases=[{"text": "good", "label": "positive"}, {"text": "fine", "label": "positive"}],
    ),
]  # fmt: skip


def word_model(texts):
    """Positive if the text has `good`, reversed by LOUD LOUD; the energy counts unknown words."""
    good = np.array([("good" in text) != ("LOUD LOUD" in text) for text in texts])
    p = np.where(good, 0.9, 0.1)
    known = {"the", "film", "was", "good", "dull", "and", "number", "<b>"}
    new = [sum(word not in known and not word.isdigit() for word in text.split()) for text in texts]
    energies = np.array(new) + 0.001 * np.arange(len(texts))
    return Predictions(None, NAMES, probs=np.stack([1 - p, p], axis=1), energies=energies)


class Tokens:
    def spans(self, text):
        return [(0, 3)]

    def draw(self, rng):
        return "zebra"


@pytest.fixture(scope="module")
def result():
    conditions = list(make_conditions(TEXTS, ["random-tokens", "truncation"], TESTS, Tokens(), seed=3))
    subjects = [Subject("baseline", word_model), Subject("hidden", word_model, lambda p: p.energies > 0.5)]
    records = score(subjects, TEXTS, LABELS, conditions, TESTS)
    meta = {
        "models": ["baseline", "hidden"], "calibrators": [None, "temperature"], "data": "<i>rows</i>.csv",
        "n_rows": 60, "seed": 3, "false_alarm_rate": 0.05, "skipped": ["x"],
    }  # fmt: skip
    return Robustness(**{name: pd.DataFrame(rows) for name, rows in records.items()}, meta=meta)


def conditions_of(result, perturbation, model="hidden"):
    frame = result.conditions
    return frame[(frame.model == model) & frame.perturbation.isin(["", perturbation])].to_dict("records")


def test_conditions(result):
    original, *replaced = conditions_of(result, "random-tokens")
    assert (original["strength"], original["accuracy"], original["ood"], original["changed_label"]) == (0, 1, 0, 0)
    assert original["ece_top_label"] == pytest.approx(0.1)
    assert [c["strength"] for c in replaced] == list(PERTURBATIONS["random-tokens"].strengths)
    for condition in replaced:  # "the" became "zebra": one more unknown word
        assert (condition["accuracy"], condition["ood"]) == (1, 1)
        assert condition["energy"] == pytest.approx(original["energy"] + 1)
    cut = conditions_of(result, "truncation")[-1]  # nothing good is left
    assert (cut["accuracy"], cut["changed_label"]) == (0.5, 0.5)
    assert cut["accuracy_low"] < 0.5 < cut["accuracy_high"]


def test_without_a_rule_ood_is_relative_to_the_original_texts(result):
    original, *replaced = conditions_of(result, "random-tokens", "baseline")
    assert original["ood"] <= 0.05
    assert [condition["ood"] for condition in replaced] == [1, 1]


def test_outcomes_and_failures(result):
    tests = result.tests[result.tests.model == "hidden"].set_index(["test", "strength"])
    assert list(tests.index) == [("loud", 1), ("loud", 2), ("turn", 1), ("sink", 1), ("known", 0)]
    assert (tests.n_cases.tolist(), tests.n_failed.tolist()) == ([60, 60, 30, 60, 2], [0, 60, 30, 0, 1])
    known = tests.loc[("known", 0)]
    assert known.failed_low < known.failed == 0.5 < known.failed_high
    failures = result.failures[result.failures.model == "hidden"].groupby("test").first()
    assert failures.expected["turn"] == "P(positive) up from 0.90"
    assert failures.got["turn"] == "0.10"
    assert failures.got["known"] == "negative (0.90)"


def test_pairs_are_perturbed_on_both_sides_by_perturbations_and_on_the_first_by_tests():
    pairs = [("one two three four", "five six seven eight")]
    made = {c.perturbation: c.texts[0] for c in make_conditions(pairs, ["uppercase"], TESTS[:1], Tokens(), seed=0)}
    assert made["uppercase"] == ("ONE TWO THREE FOUR", "FIVE SIX SEVEN EIGHT")
    assert made["mine: loud"] == ("one two three four LOUD LOUD", "five six seven eight")


def test_the_same_seed_gives_the_same_texts():
    def texts(seed):
        return [c.texts for c in make_conditions(TEXTS, ["typos", "word-order"], TESTS, Tokens(), seed)]

    assert texts(3) == texts(3) != texts(4)


def test_tables_page_and_json(result, tmp_path):
    conditions, tests = result.tables()
    assert len(conditions) == 2 * (1 + 2 + 3)
    assert len(tests) == 5
    assert tests.headings == ["Test", "Kind", "Strength", "Cases", "Failed baseline", "Failed hidden"]
    assert max(map(len, str(result).splitlines())) <= 100
    html = result.report(tmp_path / "robustness.html").read_text(encoding="utf-8")
    assert html.count("<figure") == 6  # random tokens, truncation and loud, with two pictures each
    assert "<i>rows" not in html
    assert "<b>" not in html
    assert "zebra" in html
    document = json.loads(result.to_json())
    assert len(document["conditions"]) == 2 * (1 + 2 + 3 + 2)
    assert document["models"] == ["baseline", "hidden"]
