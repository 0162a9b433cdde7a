"""`ebmcal calibrate`: what it stores in a model folder, what it folds, and what it refuses."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ebmcal.calibrators import ScalingBinning, TemperatureScaling, attached
from ebmcal.calibrators.weights import folded_temperature
from ebmcal.cli.calibrate import calibrate
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.report import model_card

NAMES = ("neg", "neu", "pos")


def run(*arguments):
    app = typer.Typer()
    app.command()(calibrate)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(n=800, scale=3.0, names=NAMES, **changes):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, len(names))) * 1.5
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions(labels=y, label_names=names, logits=scale * logits, **changes)


def write_config(folder, names=NAMES):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps({"id2label": {str(i): name for i, name in enumerate(names)}}))
    return folder


@pytest.fixture
def model_dir(tmp_path):
    return write_config(tmp_path / "model")


@pytest.fixture
def on(tmp_path):
    rows().write(tmp_path / "calibration.parquet")
    return tmp_path / "calibration.parquet"


def test_temperature_is_fitted_and_stored(model_dir, on):
    result = run(model_dir, "--on", on)
    expected = TemperatureScaling().fit(rows().logits, rows().labels)
    stored = attached(model_dir)
    assert stored.temperature_ == expected.temperature_
    assert stored.label_names_ == list(NAMES)
    assert f"T = {expected.temperature_:.4g}" in result.stdout
    assert "800 rows" in result.stdout
    assert "Note:" not in result.stderr


def test_another_calibrator_with_settings_replaces_it(model_dir, on):
    run(model_dir, "--on", on)
    run(model_dir, "--on", on, "--calibrator", "scaling-binning:n_bins=7")
    stored = attached(model_dir)
    assert isinstance(stored, ScalingBinning)
    assert stored.n_bins == 7


def test_few_rows_are_said(model_dir, tmp_path):
    rows(30).write(tmp_path / "few.csv")
    assert "30 rows are few for temperature" in run(model_dir, "--on", tmp_path / "few.csv").stderr


def test_the_classes_take_the_order_of_the_model(model_dir, tmp_path):
    order = [2, 0, 1]
    turned = rows()
    Predictions(
        labels=np.argsort(order)[turned.labels],
        label_names=[NAMES[i] for i in order],
        logits=turned.logits[:, order],
    ).write(tmp_path / "turned.csv")
    run(model_dir, "--on", tmp_path / "turned.csv", "--calibrator", "vector")
    run(write_config(tmp_path / "other"), "--on", _written(rows(), tmp_path), "--calibrator", "vector")
    np.testing.assert_allclose(attached(model_dir).bias_, attached(tmp_path / "other").bias_, atol=1e-6)
    assert attached(model_dir).label_names_ == list(NAMES)


def test_classes_that_are_only_numbered_take_the_names_of_the_model(model_dir, tmp_path):
    run(model_dir, "--on", _written(rows(names=("0", "1", "2")), tmp_path))
    assert attached(model_dir).label_names_ == list(NAMES)


def test_stand_in_names_of_a_model_are_not_compared(tmp_path, on):
    folder = write_config(tmp_path / "plain", names=("LABEL_0", "LABEL_1", "LABEL_2"))
    run(folder, "--on", on)
    assert attached(folder).label_names_ == list(NAMES)


def _written(predictions, folder):
    predictions.write(folder / "written.csv")
    return folder / "written.csv"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"names": ("no", "yes")}, "2 classes"),
        ({"names": ("a", "b", "c")}, "a, b, c"),
        ({"meta": {"calibrator": {"name": "temperature"}}}, "calibrated already"),
    ],
)
def test_predictions_of_something_else_are_refused(model_dir, tmp_path, changes, words):
    rows(**changes).write(tmp_path / "p.parquet")
    with pytest.raises(EbmcalError, match=words):
        run(model_dir, "--on", tmp_path / "p.parquet")
    assert attached(model_dir) is None


def write_card(model_dir, **changes):
    card = {"task": "reviews", "method": "hidden", "seed": 1} | changes
    (model_dir / "ebmcal.json").write_text(json.dumps(card))


ABOUT = {"task": "reviews", "method": "hidden", "seed": 1, "split": "calibration"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"split": "train"}, "predictions for the training rows"),
        ({"method": "baseline"}, "another model: method baseline, not hidden"),
        ({"seed": 2, "task": "tweets"}, "another model: task tweets, not reviews, seed 2, not 1"),
    ],
)
def test_a_file_that_says_what_it_is_must_fit(model_dir, tmp_path, said, words):
    write_card(model_dir)
    rows(meta=ABOUT | said).write(tmp_path / "p.parquet")
    with pytest.raises(EbmcalError, match=words) as refusal:
        run(model_dir, "--on", tmp_path / "p.parquet")
    assert "--allow-mismatch" in str(refusal.value)
    assert attached(model_dir) is None
    run(model_dir, "--on", tmp_path / "p.parquet", "--allow-mismatch")
    assert attached(model_dir) is not None


def test_the_models_own_calibration_split_fits(model_dir, tmp_path):
    write_card(model_dir)
    for meta in (ABOUT, {}, {"model": str(model_dir)}, {"model": "gone"}):
        rows(meta=meta).write(tmp_path / "p.parquet")
        run(model_dir, "--on", tmp_path / "p.parquet")


def test_predictions_that_name_the_folder_of_another_model_are_refused(model_dir, tmp_path):
    write_card(model_dir)
    other = write_config(tmp_path / "other")
    write_card(other, method="scalar")
    rows(meta={"model": str(other)}).write(tmp_path / "p.parquet")
    with pytest.raises(EbmcalError, match="method scalar, not hidden"):
        run(model_dir, "--on", tmp_path / "p.parquet")


def test_rows_of_one_class_are_refused(model_dir, tmp_path):
    same = rows()
    same.rows(np.flatnonzero(same.labels == 2)).write(tmp_path / "one.csv")
    for options in ((), ("--allow-mismatch",)):
        with pytest.raises(EbmcalError, match=r"all of one class \(pos\)"):
            run(model_dir, "--on", tmp_path / "one.csv", *options)
    assert attached(model_dir) is None


@pytest.mark.parametrize("damaged", ["config.yaml", "metrics.json"])
def test_a_card_that_cannot_be_made_again_does_not_hide_what_was_done(tmp_path, on, damaged):
    model = write_config(tmp_path / "run" / "checkpoints" / "hidden-seed1" / "model")
    card = model_card.write_card(model).read_text()
    (tmp_path / "run" / damaged).write_text("{ half")
    result = run(model, "--on", on)
    assert attached(model) is not None
    assert "Stored as" in result.stdout
    assert "README.md of the model stays as it was" in result.stderr
    assert damaged in result.stderr
    assert (model / "README.md").read_text() == card


def test_energy_temperature_is_kept_and_asks_for_energies(model_dir, on, tmp_path):
    with pytest.raises(EbmcalError, match="needs an energy for each row"):
        run(model_dir, "--on", on, "--calibrator", "energy-temperature")
    rows(energies=np.arange(800.0)).write(tmp_path / "energies.csv")
    result = run(model_dir, "--on", tmp_path / "energies.csv", "--calibrator", "energy-temperature")
    assert "at the mean energy" in result.stdout
    assert attached(model_dir).name == "energy-temperature"


def test_mistakes_are_refused(model_dir, tmp_path, on):
    with pytest.raises(EbmcalError, match=r"no config\.json"):
        run(tmp_path, "--on", on)
    with pytest.raises(EbmcalError, match="Did you mean 'temperature'"):
        run(model_dir, "--on", on, "--calibrator", "temprature")
    with pytest.raises(EbmcalError, match=r"--fold .* needs temperature"):
        run(model_dir, "--on", on, "--calibrator", "platt", "--fold")
    with pytest.raises(EbmcalError, match=r"no model\.safetensors"):
        run(model_dir, "--on", on, "--fold")
    with pytest.raises(EbmcalError, match="does not exist"):
        run(model_dir, "--on", tmp_path / "missing.csv")


def test_folding_into_a_real_model(tmp_path, on):
    torch = pytest.importorskip("torch", reason="folding is tested with a real model")
    transformers = pytest.importorskip("transformers", reason="folding is tested with a real model")
    config = transformers.RobertaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50,
        max_position_embeddings=40, id2label=dict(enumerate(NAMES)), label2id={n: i for i, n in enumerate(NAMES)},
    )  # fmt: skip
    model = transformers.RobertaForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path / "roberta")
    before = model(torch.arange(2, 12)[None]).logits.detach().numpy()
    result = run(tmp_path / "roberta", "--on", on, "--fold")
    temperature = folded_temperature(tmp_path / "roberta")
    assert "classifier.out_proj.weight and classifier.out_proj.bias" in result.stdout
    folded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "roberta").eval()
    after = folded(torch.arange(2, 12)[None]).logits.detach().numpy()
    np.testing.assert_allclose(after, before / temperature, rtol=1e-5, atol=1e-7)
    assert attached(tmp_path / "roberta") is None
    with pytest.raises(EbmcalError, match="already folded"):
        run(tmp_path / "roberta", "--on", on, "--fold")
    with pytest.raises(EbmcalError, match="apply a temperature twice"):
        run(tmp_path / "roberta", "--on", on)
