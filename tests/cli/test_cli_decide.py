"""`ebmcal decide`: the rule in a model folder, what it is bound to, and what the command refuses."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ebmcal.calibrators import Isotonic, TemperatureScaling, attach, make_calibrator
from ebmcal.cli.calibrate import calibrate
from ebmcal.cli.decide import decide
from ebmcal.decisions import RULE_FILE, Rule, attached_rule
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions

NAMES = ("neg", "neu", "pos")


def run(*arguments):
    app = typer.Typer()
    app.command()(decide)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(n=800, seed=0, **changes):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3)) * 2
    y = (logits + 0.5 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    ids = [f"{seed}-{i}" for i in range(n)]
    return Predictions(y, NAMES, **{"logits": 3 * logits, "energies": rng.normal(size=n), "ids": ids} | changes)


@pytest.fixture
def model_dir(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"id2label": {str(i): name for i, name in enumerate(NAMES)}}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    attach(folder, TemperatureScaling().fit_predictions(rows(seed=1)))
    return folder


@pytest.fixture
def on(tmp_path):
    rows().write(tmp_path / "calibration.parquet")
    rows(seed=2).write(tmp_path / "test.parquet")
    return tmp_path / "calibration.parquet"


ASKED = ("--max-error", "0.1", "--coverage", "0.9")


def test_a_rule_is_kept_and_what_it_promises_is_said(model_dir, on, tmp_path):
    result = run(model_dir, "--on", on, *ASKED, "--judge", tmp_path / "test.parquet", "-o", tmp_path / "rule.json")
    assert "Promise: at most 10.0% of the answers are wrong, with confidence 0.9" in result.stdout
    assert "of them wrong" in result.stdout
    assert str(model_dir / RULE_FILE) in result.stdout
    rule = attached_rule(model_dir)
    assert rule.calibrated_by["name"] == "temperature"
    assert Rule.read(tmp_path / "rule.json").to_json() == rule.to_json()
    again = run(model_dir, "--on", on, "--max-error", "0.2", "-o", tmp_path / "rule.json")
    for place in (model_dir / RULE_FILE, tmp_path / "rule.json"):  # a rule may take the place of a rule, aloud
        assert f"Replaced the rule in {place}: Answers" in again.stdout
    assert "at most 10.0% of the answers" in again.stdout
    assert "Replaced" not in result.stdout


def test_rounded_probabilities(tmp_path):
    lines = [f"{'ab'[i % 2]},0.33,0.66" for i in range(60)]
    (tmp_path / "rounded.csv").write_text("\n".join(["label,prob_a,prob_b", *lines]))
    asked = ("--on", tmp_path / "rounded.csv", "-o", tmp_path / "rule.json", "--coverage", "0.9")
    with pytest.raises(EbmcalError, match="--normalize of evaluate, calibrate, decide"):
        run(*asked)
    assert "Label sets" in run(*asked, "--normalize").stdout


def test_predictions_of_other_weights_are_refused(model_dir, tmp_path):
    rows(meta={"weights": "others"}).write(tmp_path / "theirs.parquet")
    with pytest.raises(EbmcalError, match="another model: its weights are others"):
        run(model_dir, "--on", tmp_path / "theirs.parquet", *ASKED)


def test_classes_in_another_order_are_the_same(model_dir, on, tmp_path):
    run(model_dir, "--on", on, *ASKED)
    want = attached_rule(model_dir).to_json()
    rows().in_order(("pos", "neg", "neu")).write(on)
    run(model_dir, "--on", on, *ASKED)
    assert attached_rule(model_dir).to_json() == want


def test_another_calibrator_or_other_weights_make_the_rule_void(model_dir, on):
    run(model_dir, "--on", on, *ASKED)
    attach(model_dir, TemperatureScaling().fit_predictions(rows(seed=3)))
    with pytest.raises(EbmcalError, match=r"fitted for another calibrator.*ebmcal decide"):
        attached_rule(model_dir)
    run(model_dir, "--on", on, *ASKED)
    weights = (model_dir / "model.safetensors").read_bytes()
    (model_dir / "model.safetensors").write_bytes(weights[:-1] + b"\1")
    with pytest.raises(EbmcalError, match="fitted for another model"):
        attached_rule(model_dir)


def test_a_calibrator_that_was_changed_by_hand_is_damaged(model_dir, on):
    path = model_dir / "calibrator.json"
    value = json.loads(path.read_text())
    value["learned"]["temperature_"] = 1.0
    path.write_text(json.dumps(value))
    with pytest.raises(EbmcalError, match="damaged or was changed by hand"):
        run(model_dir, "--on", on, *ASKED)


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_rows_that_taught_the_calibrator(model_dir, on):
    attach(model_dir, TemperatureScaling().fit_predictions(rows()))
    assert "one number, the promise stands" in run(model_dir, "--on", on, *ASKED).stdout
    attach(model_dir, Isotonic().fit_predictions(rows()))
    with pytest.raises(EbmcalError, match="taught the model's isotonic calibrator"):
        run(model_dir, "--on", on, *ASKED)


def test_a_calibrator_that_reads_energies(model_dir, on):
    attach(model_dir, make_calibrator("energy-temperature").fit_predictions(rows(seed=1)))
    run(model_dir, "--on", on, *ASKED)
    assert attached_rule(model_dir).calibrated_by["name"] == "energy-temperature"


def test_what_is_judged_is_held_out_too(model_dir, on, tmp_path):
    rows(seed=2, meta={"split": "train"}).write(tmp_path / "train.parquet")
    with pytest.raises(EbmcalError, match="predictions for the training rows"):
        run(model_dir, "--on", on, *ASKED, "--judge", tmp_path / "train.parquet")


def test_calibrating_again_says_that_the_rule_is_void(model_dir, on):
    run(model_dir, "--on", on, *ASKED)
    app = typer.Typer()
    app.command()(calibrate)
    said = CliRunner().invoke(app, [str(model_dir), "--on", str(on)]).stdout
    assert "its promise no longer holds" in said
    assert "Replaced the temperature (" in said


def test_a_model_without_a_calibrator(model_dir, on):
    (model_dir / "calibrator.json").unlink()
    assert "confidence is the model's own" in run(model_dir, "--on", on, *ASKED).stdout


def test_what_is_refused(model_dir, on, tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "empty.csv").write_text("label,prob_a,prob_b\n")
    (tmp_path / "nan.csv").write_text("label,logit_neg,logit_neu,logit_pos\nneg,nan,0,0\n")
    for arguments, words in (
        (["--on", on, *ASKED], "Where shall the rule go"),
        ([model_dir, "--on", on], None),  # unusual texts alone
        ([model_dir, "--on", on, *ASKED, "-o", tmp_path / "mine.json"], "is not a rule"),
        ([model_dir, "--on", on, *ASKED, "-o", tmp_path / "rule.txt"], ".json"),
        ([model_dir, "--on", tmp_path / "absent.csv", *ASKED], "absent.csv"),
        ([model_dir, "--on", tmp_path / "empty.csv", *ASKED], "no rows"),
        ([model_dir, "--on", tmp_path / "nan.csv", *ASKED], "finite"),
        ([model_dir, "--on", on, "--max-error", "0.0001"], "are the least"),
        ([tmp_path, "--on", on, *ASKED], "not a model folder"),
        ([model_dir, "--on", on, *ASKED, "--judge", tmp_path / "absent.csv"], "absent.csv"),
    ):
        if words is None:
            run(*arguments)
            (model_dir / RULE_FILE).unlink()
            continue
        with pytest.raises(EbmcalError, match=words):
            run(*arguments)
        assert not (model_dir / RULE_FILE).exists()
    assert (tmp_path / "mine.json").read_text() == "{}"


def test_other_classes_are_refused(model_dir, tmp_path):
    Predictions([0, 1], ("a", "b"), logits=[[0.0, 1.0], [1.0, 0.0]]).write(tmp_path / "two.parquet")
    with pytest.raises(EbmcalError, match="has 2 classes"):
        run(model_dir, "--on", tmp_path / "two.parquet", *ASKED)
