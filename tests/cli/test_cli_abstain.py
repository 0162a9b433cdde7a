"""`ebmcal abstain`: the rule in a model directory, what it prints and what it refuses."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from ebmcal import AbstentionRule, Predictions
from ebmcal.calibration import TemperatureScaling, read_calibrator, save_calibrator
from ebmcal.run_dir import update_card
from ebmcal.selective import read_rule
from synthetic_run import write_model

NAMES = ("neg", "neu", "pos")
GUARANTEES = ("--max-error", "0.1", "--coverage", "0.9")


@pytest.fixture
def run(command):
    return lambda *arguments, **expected: command("abstain", *arguments, **expected)


def rows(n=800, seed=0, **changes):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3)) * 2
    y = (logits + 0.5 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    ids = [f"{seed}-{i}" for i in range(n)]
    return Predictions(y, NAMES, **{"logits": 3 * logits, "energies": rng.normal(size=n), "ids": ids} | changes)


@pytest.fixture
def model_dir(tmp_path):
    folder = write_model(tmp_path / "model", NAMES)
    save_calibrator(folder, TemperatureScaling().fit_predictions(rows(seed=1)))
    return folder


@pytest.fixture
def held_out(tmp_path):
    rows().write(tmp_path / "calibration.parquet")
    rows(seed=2).write(tmp_path / "test.parquet")
    return tmp_path / "calibration.parquet"


def test_a_rule_is_stored_and_described(model_dir, held_out, tmp_path, run):
    out, test = tmp_path / "rule.json", tmp_path / "test.parquet"
    printed = run(model_dir, "--predictions", held_out, *GUARANTEES, "--evaluate", test, "-o", out)
    assert "Guarantee: at most 10.0% of the answers are wrong, with confidence 0.9" in printed
    assert f"On {test}: answers" in printed
    assert "of the answers are wrong." in printed
    assert "Replaced" not in printed
    assert "Rule: answer if confidence is at least 0." in printed
    assert "and the text is not OOD, otherwise abstain." in printed
    assert "of texts like the held-out rows get an answer." in printed
    assert (
        "Rows: 760 of 800 held-out rows used, 152 to choose the threshold and 608 to test it; not used: 40 OOD."
        in printed
    )
    rule = read_rule(model_dir)
    assert rule.calibrated_by["name"] == "temperature"
    assert AbstentionRule.read(out).to_json() == rule.to_json()
    again = run(model_dir, "--predictions", held_out, "--max-error", "0.2", "-o", out, "--overwrite")
    lost = "an error of at most 10.0% and label sets with a coverage of 0.9"
    assert f"Replaced the earlier rule, which guaranteed {lost}. Stored in" in again
    assert read_rule(model_dir).guarantee.max_error == 0.2


def test_splits_of_the_models_run_have_names(model_dir, held_out, tmp_path, run):
    by_path = run(model_dir, "--predictions", held_out, *GUARANTEES, "--evaluate", tmp_path / "test.parquet")
    by_name = run(model_dir, "--predictions", "calibration", *GUARANTEES, "--evaluate", "test")
    assert by_path.splitlines()[:4] == by_name.splitlines()[:4]
    assert f"On {tmp_path / 'test.parquet'}: answers" in by_name
    assert "does not exist" in run(model_dir, "--predictions", "training", *GUARANTEES, code=1)


def test_a_rule_that_guarantees_less_replaces_another_only_on_request(model_dir, held_out, run):
    run(model_dir, "--predictions", held_out, "--max-error", "0.1")
    printed = run(model_dir, "--predictions", held_out, code=1)
    assert "has a rule that guarantees an error of at most 10.0%; the new one would not. Pass --max-error" in printed
    assert read_rule(model_dir).guarantee.max_error == 0.1
    run(model_dir, "--predictions", held_out, "--max-error", "0.2")  # another error is a decision
    assert "Replaced the earlier rule" in run(model_dir, "--predictions", held_out, "--overwrite")
    assert read_rule(model_dir).guarantee is None


def test_ood_texts_are_answered_only_on_request(model_dir, held_out, run):
    assert "The rule abstains on them." in run(model_dir, "--predictions", held_out, *GUARANTEES)
    assert not read_rule(model_dir).answer_ood
    assert "They are answered." in run(model_dir, "--predictions", held_out, *GUARANTEES, "--answer-ood")
    assert read_rule(model_dir).answer_ood
    assert "OOD" not in run(model_dir, "--predictions", held_out, *GUARANTEES, "--ood", "0")
    assert read_rule(model_dir).ood is None


def test_classes_in_another_order_are_the_same(model_dir, held_out, run):
    run(model_dir, "--predictions", held_out, *GUARANTEES)
    expected = read_rule(model_dir).to_json()
    rows().reorder(("pos", "neg", "neu")).write(held_out)
    run(model_dir, "--predictions", held_out, *GUARANTEES)
    assert read_rule(model_dir).to_json() == expected


def test_calibrating_again_removes_the_rule_and_reports_it(model_dir, held_out, run, command):
    run(model_dir, "--predictions", held_out, *GUARANTEES)
    printed = command("calibrate", model_dir, "--predictions", held_out)
    assert "Removed the abstention rule" in printed
    assert f"Fit it again: ebmcal abstain {model_dir} --data HELD_OUT --max-error 0.1 --coverage 0.9" in printed
    assert re.search(
        r"NLL \d\.\d+ → \d\.\d+ \(no calibrator → this one; \d\.\d+ with the earlier temperature\)", printed
    )
    assert read_rule(model_dir) is None
    assert "with one parameter this is harmless" in run(model_dir, "--predictions", held_out, *GUARANTEES)


def test_a_model_without_a_calibrator(model_dir, held_out, run):
    update_card(model_dir, calibrator=None)
    assert read_calibrator(model_dir) is None
    assert "confidence is the model's own" in run(model_dir, "--predictions", held_out, *GUARANTEES)


def test_a_rule_for_rounded_probabilities_of_any_classifier(tmp_path, run):
    lines = [f"{'ab'[i % 2]},0.33,0.66" for i in range(60)]
    (tmp_path / "rounded.csv").write_text("\n".join(["label,prob_a,prob_b", *lines]))
    arguments = ("--predictions", tmp_path / "rounded.csv", "-o", tmp_path / "rule.json", "--coverage", "0.9")
    assert "--normalize" in run(*arguments, code=1)
    assert "Label sets" in run(*arguments, "--normalize")


def test_a_rule_for_any_classifier_is_applied_to_its_new_predictions(tmp_path, run):
    for seed, name in enumerate(("labelled.csv", "new.csv")):
        rows(seed=seed, energies=None).with_probs(rows(seed=seed).probs).write(tmp_path / name)
    rule, decided = tmp_path / "rule.json", tmp_path / "decisions.csv"
    pd.read_csv(tmp_path / "new.csv").assign(decision="mine").to_csv(tmp_path / "new.csv", index=False)
    run("--predictions", tmp_path / "labelled.csv", "--max-error", "0.15", "--coverage", "0.9", "-o", rule)
    printed = run("--load", rule, "--apply", tmp_path / "new.csv", "-o", decided)
    expected = AbstentionRule.read(rule).apply(Predictions.read(tmp_path / "new.csv"))
    assert f"Answers {expected.answered.sum()} of 800 rows" in printed
    table = pd.read_csv(decided)
    assert (table["decision"] == "answer").tolist() == expected.answered.tolist()
    assert set(table["input_decision"]) == {"mine"}
    assert json.loads(table["label_set"][0]) == list(expected.label_sets[0])
    assert {"id", "label", "prob_neg", "reason"} <= set(table)
    assert "go together" in run("--load", rule, "-o", decided, code=1)
    assert "exists already" in run("--load", rule, "--apply", tmp_path / "new.csv", "-o", decided, code=1)


@pytest.mark.parametrize(
    ("meta", "words"), [({"weights": "others"}, "other weights"), ({"split": "train"}, "predictions for training rows")]
)
@pytest.mark.parametrize("place", ["--predictions", "--evaluate"])
def test_predictions_of_another_origin_are_refused(model_dir, held_out, tmp_path, run, meta, words, place):
    rows(meta=meta).write(tmp_path / "theirs.parquet")
    files = {"--predictions": held_out} | {place: tmp_path / "theirs.parquet"}
    arguments = [part for option, path in files.items() for part in (option, path)]
    assert words in run(model_dir, *arguments, *GUARANTEES, code=1)
    assert read_rule(model_dir) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--predictions", "FILE"], "Where should the rule be stored"),
        (["MODEL"], "exactly one of --predictions and --data"),
        (["--data", "FILE", "-o", "rule.json"], "--data needs a model"),
        (["MODEL", "--predictions", "FILE", "-o", "mine.json"], "mine.json exists already"),
        (["MODEL", "--predictions", "FILE", "-o", "rule.txt"], "expected a .json file"),
        (["MODEL", "--predictions", "absent.csv"], "absent.csv does not exist"),
        (["MODEL", "--predictions", "empty.csv"], "has no rows"),
        (["MODEL", "--predictions", "nan.csv"], "finite"),
        (["MODEL", "--predictions", "two.csv"], "the classes are a, b; expected neg, neu, pos"),
        (["MODEL", "--predictions", "FILE", "--max-error", "0.0001"], "labelled rows are needed"),
        (["EMPTY", "--predictions", "FILE"], "not a model directory"),
        (["MODEL", "--predictions", "FILE", "--evaluate", "absent.csv"], "absent.csv"),
        (["MODEL", "--predictions", "FILE", "--ood-score", "knn"], "the held-out rows have none (column text)"),
    ],
)
def test_mistakes_are_refused_and_nothing_is_written(model_dir, held_out, tmp_path, run, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "empty.csv").write_text("label,prob_a,prob_b\n")
    (tmp_path / "nan.csv").write_text("label,logit_neg,logit_neu,logit_pos\nneg,nan,0,0\n")
    (tmp_path / "two.csv").write_text("label,logit_a,logit_b\na,0,1\nb,1,0\n")
    places = {"MODEL": model_dir, "FILE": held_out, "EMPTY": tmp_path}
    assert words in run(*(places.get(argument, argument) for argument in arguments), code=1)
    assert read_rule(model_dir) is None
    assert (tmp_path / "mine.json").read_text() == "{}"
