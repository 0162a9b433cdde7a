"""A rule by itself: what it decides, what it refuses to promise, and its file."""

import json

import numpy as np
import pytest

import ebmcal
from ebmcal.decisions import Rule, fit_rule
from ebmcal.decisions.conformal import least_rows as least_rows_of_sets
from ebmcal.decisions.conformal import p_values, prediction_sets
from ebmcal.decisions.risk import counts, find_threshold, least_rows, split_rows
from ebmcal.decisions.scores import SCORES
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions

NAMES = ("bad", "good")


def rows(n=400, seed=0, **changes):
    """Predictions that are wrong where they are unsure, with energies that know a little."""
    rng = np.random.default_rng(seed)
    strength = rng.exponential(2.0, n)
    labels = rng.integers(0, 2, n)
    right = rng.random(n) < 1 / (1 + np.exp(-2 * strength))
    said = np.where(right, labels, 1 - labels)
    logits = np.eye(2)[said] * (2 * strength)[:, None]
    given = {"logits": logits, "energies": rng.normal(size=n) - strength, "meta": {"split": "calibration"}} | changes
    return Predictions(labels, NAMES, **given)


def test_least_rows_by_hand():
    assert least_rows(0.05, 0.9) == 45  # 0.95^45 = 0.0994, 0.95^44 = 0.1047
    assert least_rows(0.1, 0.9) == 22
    assert least_rows_of_sets(0.9) == 9


def test_the_tests_end_at_the_first_failure():
    scores = np.repeat([3.0, 2.0, 1.0], 100)
    wrong = np.concatenate([np.zeros(100), np.arange(100) < 40, np.zeros(100)]).astype(bool)
    levels = np.array([3.0, 2.0, 1.0, -np.inf])
    promise = find_threshold(scores, wrong, levels, max_error=0.05, confidence=0.9)
    assert (promise.threshold, promise.n_answered, promise.n_wrong) == (3.0, 100, 0)
    assert promise.bound == pytest.approx(1 - 0.1 ** (1 / 100))  # Clopper-Pearson of no error
    assert find_threshold(scores, wrong, levels[1:], max_error=0.05, confidence=0.9) is None
    assert find_threshold(scores, wrong, levels, max_error=0.3, confidence=0.9).threshold is None  # all of them


def test_counts_take_ties_whole():
    answered, errors = counts(
        np.array([1.0, 2.0, 2.0, 3.0]), np.array([1, 0, 1, 0], dtype=bool), np.array([2.0, -np.inf])
    )
    assert answered.tolist() == [3, 4]
    assert errors.tolist() == [1, 2]


def test_planning_rows_do_not_test():
    plan, test = split_rows(103)
    assert sorted([*plan, *test]) == list(range(103))
    assert len(plan) == 20


@pytest.mark.parametrize("score", SCORES)
def test_a_rule_answers_what_it_is_sure_of(score):
    rule, new = fit_rule(rows(), max_error=0.1, score=score), rows(2000, seed=1)
    found = rule.decide(new)
    wrong = new.predicted() != new.labels
    assert 0.2 < found.answers.mean() < 1
    assert wrong[found.answers].mean() < wrong[~found.answers].mean()
    assert all(bool(reason) != answer for reason, answer in zip(found.reasons, found.answers, strict=True))
    assert "below" in next(filter(None, found.reasons))
    columns = found.columns()
    assert set(columns) == {"decision", "reason", "unusual", "unusual_p"}
    assert columns["decision"].count("answer") == found.answers.sum()


def test_p_values_and_sets_by_hand():
    assert p_values(np.array([1.0]), np.array([1.0, 1.0, 2.0])).tolist() == [1.0]  # ties count against
    inside = prediction_sets(np.array([[0.5, 0.3, 0.2]]), np.array([0.4, 0.75, 0.75]))
    assert inside.tolist() == [[True, True, False]]  # the most probable one always is


def test_sets_name_labels_most_probable_first():
    rule = fit_rule(rows(), coverage=0.99, sets="class-conditional")
    sets = rule.decide(rows(50, seed=2)).sets
    probable = rows(50, seed=2).labels_
    assert all(names[0] == first for names, first in zip(sets, probable, strict=True))
    assert {len(names) for names in sets} == {1, 2}
    assert rule.decide(rows(3)).answers is None


@pytest.mark.parametrize(
    ("promises", "n", "words"),
    [
        ({"max_error": 0.05}, 50, "58 labelled rows are the least"),
        ({"max_error": 0.001}, 400, "rows are the least"),
        ({"max_error": 0.01, "confidence": 0.6}, 400, "cannot promise an error of at most 0.01"),
        ({"coverage": 0.99}, 50, "at least 99 labelled rows"),
        ({"coverage": 0.95, "sets": "class-conditional"}, 30, "of every class"),
        ({"false_alarms": 0.01}, 50, "at least 99 are needed"),
        ({"max_error": 1.5}, 400, r"max_error \(--max-error\) is 1.5"),
        ({"coverage": 0}, 400, "--coverage"),
        ({"max_error": 0.1, "score": "energie"}, 400, "Did you mean 'energy'"),
        ({"coverage": 0.9, "sets": "whole"}, 400, "kind of sets 'whole'"),
        ({}, 10, "Nothing was asked for"),
    ],
)
def test_what_cannot_be_promised(promises, n, words):
    with pytest.raises(EbmcalError, match=words):
        fit_rule(rows(n), **promises)


def test_a_model_that_is_wrong_everywhere_gets_no_rows_recommended():
    coin = rows(400)
    coin = Predictions(np.random.default_rng(3).integers(0, 2, 400), NAMES, logits=coin.logits)
    with pytest.raises(EbmcalError, match=r"more of them would hardly help.*come near to is 0") as refused:
        fit_rule(coin, max_error=0.1)
    assert "labelled rows" not in str(refused.value)  # nor does the advice at the end


def test_rows_that_are_only_too_few_get_a_number_of_rows_recommended():
    with pytest.raises(EbmcalError, match=r"about [\d,]+ rows would do.*Give so many labelled rows"):
        fit_rule(rows(400), max_error=0.01, confidence=0.6)


def test_rows_that_may_not_be_used():
    with pytest.raises(EbmcalError, match="training rows"):
        fit_rule(rows(meta={"split": "train"}), max_error=0.1)
    unlabelled = Predictions(np.full(9, -1), NAMES, logits=np.zeros((9, 2)))
    with pytest.raises(EbmcalError, match="No row has a label"):
        fit_rule(unlabelled, max_error=0.1)
    only_probs = rows().with_probs(rows().probs)
    only_probs = Predictions(only_probs.labels, NAMES, probs=only_probs.probs)
    with pytest.raises(EbmcalError, match="need energies= or logits="):
        fit_rule(only_probs, max_error=0.1, score="energy")
    assert fit_rule(only_probs, max_error=0.1).unusual is None


def test_a_file_is_read_as_it_was_written(tmp_path):
    rule = fit_rule(rows(), max_error=0.1, score="both", coverage=0.9)
    rule.write(tmp_path / "rule.json")
    again, new = Rule.read(tmp_path / "rule.json"), rows(100, seed=4)
    assert again.decide(new).columns() == rule.decide(new).columns()
    assert again.to_json() == rule.to_json()
    assert again.describe() == rule.describe()


def test_a_file_that_was_changed_by_hand_is_damaged(tmp_path):
    path = tmp_path / "rule.json"
    fit_rule(rows(), max_error=0.1).write(path)
    value = json.loads(path.read_text())
    value["abstention"]["threshold"] = 0.5
    path.write_text(json.dumps(value))
    with pytest.raises(EbmcalError, match="damaged or was changed by hand"):
        Rule.read(path)
    del value["checksum_of_the_rest"]
    path.write_text(json.dumps(value))
    with pytest.raises(EbmcalError, match="damaged"):
        Rule.read(path)
    path.write_text('{"a": ')
    with pytest.raises(EbmcalError, match="not readable JSON"):
        Rule.read(path)
    with pytest.raises(EbmcalError, match="does not exist"):
        Rule.read(tmp_path / "absent.json")
    with pytest.raises(EbmcalError, match="is a folder; a JSON file is expected"):  # and not: delete it
        Rule.read(tmp_path)


def test_predictions_that_the_rule_is_not_for():
    rule = fit_rule(rows(), max_error=0.1)
    with pytest.raises(EbmcalError, match="is for the classes bad, good"):
        rule.decide(Predictions([0], ("no", "yes"), logits=[[0.0, 1.0]]))
    calibrated = ebmcal.TemperatureScaling().fit_predictions(rows(seed=5)).apply(rows(9, seed=6))
    with pytest.raises(EbmcalError, match="fitted on predictions without a calibrator; these are calibrated by temp"):
        rule.decide(calibrated)


def test_the_rule_of_a_file_alone(tmp_path):
    rows().write(tmp_path / "held_out.parquet")
    rule = ebmcal.decide(None, tmp_path / "held_out.parquet", max_error=0.1, output=tmp_path / "rule.json")
    assert rule.model is None
    said = ebmcal.Rule.read(tmp_path / "rule.json").judge(rows(500, seed=8))
    assert "of them wrong" in said[0]
