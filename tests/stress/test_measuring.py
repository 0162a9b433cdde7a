"""What a stress test measures, against models whose answers are known."""

import json

import numpy as np
import pytest

from ebmcal.decisions.unusual import Unusual
from ebmcal.predictions import Predictions
from ebmcal.stress.changes import CHANGES
from ebmcal.stress.measuring import Subject, changed_texts, measure
from ebmcal.stress.page import condition_table, test_table, write_page
from ebmcal.stress.suites import Expectation, SuiteTest

NAMES = ("negative", "positive")
ROWS = [(f"the film {'was good' if i % 2 else 'was dull'} and number {i} <b>", None) for i in range(60)]
LABELS = np.arange(60) % 2
TESTS = [
    SuiteTest("mine", "shout", "invariance", append=("LOUD",), strengths=(1, 2)),
    SuiteTest("mine", "turn", "directional", replace={"good": "dull"}, expect=Expectation("positive", "up")),
    SuiteTest("mine", "sink", "directional", append=("so",), expect=Expectation("predicted", "down")),
    SuiteTest("mine", "known", "minimum-functionality", cases=(("good", "positive"), ("fine", "positive"))),
]


def words_model(rows):
    """Positive where `good` stands; energy: how many words are not those of the data; LOUD LOUD turns it round."""
    good = np.array([("good" in text) != ("LOUD LOUD" in text) for text, _ in rows])
    p = np.where(good, 0.9, 0.1)
    known = {"the", "film", "was", "good", "dull", "and", "number", "<b>"}
    new = [sum(word not in known and not word.isdigit() for word in text.split()) for text, _ in rows]
    energies = np.array(new) + 0.001 * np.arange(len(rows))
    return Predictions(np.full(len(rows), -1), NAMES, probs=np.stack([1 - p, p], axis=1), energies=energies)


class Tokens:
    def spans(self, text):
        return [(0, 3)]

    def draw(self, rng):
        return "zebra"


@pytest.fixture(scope="module")
def document():
    changed = list(changed_texts(ROWS, ["random-tokens", "truncation"], TESTS, Tokens(), seed=3))
    subjects = [
        Subject("baseline", words_model),
        Subject("hidden", words_model, usual=Unusual(0.05, np.linspace(-1, 1, 200))),
    ]
    found = measure(subjects, ROWS, LABELS, changed, TESTS)
    return {"models": ["baseline", "hidden"], "texts": "<i>rows</i>.csv", "n_rows": 60, "seed": 3, "false_alarms": 0.05,
            "skipped": ["x"], "usual_texts": ["a", "b"], "calibrated": ["no", "no"]} | found  # fmt: skip


def conditions(document, change, model="hidden"):
    return [c for c in document["conditions"] if c["model"] == model and c["change"] in ("", change)]


def outcomes(document, test):
    return [t for t in document["tests"] if t["model"] == "hidden" and t["test"] == test]


def test_conditions(document):
    clean, *replaced = conditions(document, "random-tokens")
    assert clean["strength"] == 0
    assert clean["metrics"]["accuracy"]["value"] == 1
    assert clean["metrics"]["ece_top_label"]["value"] == pytest.approx(0.1)
    assert clean["unusual"] == clean["changed_label"] == 0
    assert [c["strength"] for c in replaced] == list(CHANGES["random-tokens"].strengths)
    for c in replaced:  # "the" became "zebra": an unknown word more
        assert c["metrics"]["accuracy"]["value"] == 1
        assert c["energy"] == pytest.approx(clean["energy"] + 1)
        assert c["unusual"] == 1
    cut = conditions(document, "truncation")[-1]
    assert cut["metrics"]["accuracy"]["value"] == 0.5  # nothing good is left
    assert cut["changed_label"] == 0.5
    assert conditions(document, "random-tokens", "baseline")[0]["unusual"] <= 0.05  # against the texts themselves


def test_tests(document):
    once, twice = outcomes(document, "shout")
    assert (once["n_cases"], once["n_failed"], twice["n_failed"]) == (60, 0, 60)
    (turn,) = outcomes(document, "turn")
    assert (turn["n_cases"], turn["n_failed"]) == (30, 30)  # those with `good`; positive went down
    assert turn["failures"][0]["expected"] == "P(positive) up from 0.90"
    assert turn["failures"][0]["got"] == "0.10"
    (sink,) = outcomes(document, "sink")
    assert sink["n_failed"] == 0  # nothing moved, which is within the tolerance
    (known,) = outcomes(document, "known")
    assert (known["n_cases"], known["n_failed"]) == (2, 1)
    assert known["low"] < known["share"] == 0.5 < known["high"]
    assert known["failures"][0]["got"] == "negative (0.90)"


def test_the_same_seed_gives_the_same_texts():
    def texts(seed):
        return [c.rows for c in changed_texts(ROWS, ["typos", "word-order"], TESTS, Tokens(), seed)]

    assert texts(3) == texts(3) != texts(4)


def test_page_and_tables(document, tmp_path):
    json.dumps(document, allow_nan=False)
    html = write_page(tmp_path / "stress.html", document).read_text(encoding="utf-8")
    assert html.count("<svg") == 6  # random tokens, cut ends, shout: two each
    assert "<i>rows" not in html
    assert "<b>" not in html
    assert "zebra" in html
    assert len(condition_table(document).rows) == len(document["conditions"]) == 2 * (1 + 2 + 3 + 2)
    assert len(test_table(document).rows) == len(document["tests"]) == 2 * 5
