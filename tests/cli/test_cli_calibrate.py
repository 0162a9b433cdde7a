"""`ebmcal calibrate`: what it stores in a model directory or writes to files, and what it refuses."""

import json

import numpy as np
import pytest

from ebmcal import Predictions
from ebmcal.calibration import ScalingBinning, TemperatureScaling, folded_temperature, load_calibrator, read_calibrator
from ebmcal.run_dir import RunDir, Trial, update_card
from synthetic_run import write_model

NAMES = ("neg", "neu", "pos")
ABOUT = {"task": "reviews", "method": "hidden", "seed": 1}


@pytest.fixture
def run(command):
    return lambda *arguments, **expected: command("calibrate", *arguments, **expected)


def rows(n=800, seed=0, names=NAMES, **changes):
    """Overconfident predictions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(names))) * 1.5
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions(y, names, logits=3 * logits, **changes)


@pytest.fixture
def model_dir(tmp_path):
    return write_model(tmp_path / "model", NAMES, weights=False)


@pytest.fixture
def held_out(tmp_path):
    rows().write(tmp_path / "calibration.csv")
    return tmp_path / "calibration.csv"


def written(predictions, path):
    predictions.write(path)
    return path


def test_a_calibrator_is_stored_and_described(model_dir, held_out, run):
    printed = run(model_dir, "--predictions", held_out)
    assert "temperature (T = 3.0" in printed or "temperature (T = 2.9" in printed
    assert "fitted on 800 rows: NLL" in printed
    expected = TemperatureScaling().fit_predictions(rows())
    assert read_calibrator(model_dir).temperature_ == pytest.approx(expected.temperature_, rel=1e-6)
    again = run(model_dir, "--predictions", held_out, "--calibrator", "scaling-binning:n_bins=15")
    assert "Replaced the calibrator temperature" in again
    stored = read_calibrator(model_dir)
    assert isinstance(stored, ScalingBinning)
    assert stored.n_bins == 15


def test_zero_probabilities_warn(model_dir, tmp_path, run):
    given = rows()
    probs = given.probs.copy()
    probs[0] = np.eye(3)[(given.labels[0] + 1) % 3]
    zero = written(given.with_probs(probs), tmp_path / "zero.csv")
    assert "1 row with probability 0 for the true label" in run(model_dir, "--predictions", zero)


def test_classes_in_another_order_or_numbered_are_matched_with_those_of_the_model(model_dir, tmp_path, run):
    run(model_dir, "--predictions", written(rows(), tmp_path / "a.csv"), "--calibrator", "vector")
    expected = read_calibrator(model_dir).bias_
    for other in (rows().reorder(("pos", "neg", "neu")), rows(names=("0", "1", "2"))):
        run(model_dir, "--predictions", written(other, tmp_path / "b.csv"), "--calibrator", "vector")
        np.testing.assert_allclose(read_calibrator(model_dir).bias_, expected, atol=1e-6)
        assert read_calibrator(model_dir).label_names_ == list(NAMES)


def test_default_names_of_a_model_are_not_compared(tmp_path, held_out, run):
    folder = write_model(tmp_path / "plain", ("LABEL_0", "LABEL_1", "LABEL_2"))
    run(folder, "--predictions", held_out)
    assert read_calibrator(folder).label_names_ == list(NAMES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"names": ("no", "yes")}, "the classes are no, yes; expected neg, neu, pos"),
        ({"names": ("a", "b", "c")}, "the classes are a, b, c"),
        ({"meta": {"calibrator": {"name": "temperature"}}}, "already calibrated"),
        ({"meta": {"ensemble": [{}]}}, "the average of several models"),
    ],
)
def test_predictions_of_something_else_are_refused(model_dir, tmp_path, run, changes, words):
    assert words in run(model_dir, "--predictions", written(rows(**changes), tmp_path / "p.parquet"), code=1)
    assert read_calibrator(model_dir) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"split": "train"}, "predictions for training rows"),
        ({"method": "baseline"}, "another model (method baseline, not hidden)"),
        ({"seed": 2, "task": "tweets"}, "another model (task tweets, not reviews, seed 2, not 1)"),
    ],
)
def test_files_with_another_origin_are_refused_unless_allowed(model_dir, tmp_path, run, given, words):
    update_card(model_dir, **ABOUT)
    path = written(rows(meta=ABOUT | {"split": "calibration"} | given), tmp_path / "p.parquet")
    assert words in run(model_dir, "--predictions", path, code=1)
    assert read_calibrator(model_dir) is None
    run(model_dir, "--predictions", path, "--allow-mismatch")
    assert read_calibrator(model_dir) is not None


def test_the_models_own_calibration_split_is_accepted(model_dir, tmp_path, run):
    update_card(model_dir, **ABOUT)
    for meta in (ABOUT | {"split": "calibration"}, {}, {"model": str(model_dir)}, {"model": "gone"}):
        run(model_dir, "--predictions", written(rows(meta=meta), tmp_path / "p.parquet"))
    other = write_model(tmp_path / "other", NAMES)
    update_card(other, **ABOUT | {"method": "scalar"})
    path = written(rows(meta={"model": str(other)}), tmp_path / "p.parquet")
    assert "method scalar, not hidden" in run(model_dir, "--predictions", path, code=1)


def test_a_run_directory_stands_for_its_recommended_model(tmp_path, held_out, run):
    directory = RunDir(tmp_path / "run")
    folder = write_model(directory.model(Trial("hidden", 2)), NAMES)
    directory.config.write_text("{}")
    assert "has no recommended model yet" in run(directory.root, "--predictions", held_out, code=1)
    directory.results.write_text(json.dumps({"recommended": {"trial": "hidden-seed2"}}))
    assert f"Stored in {folder}" in run(directory.root, "--predictions", held_out)
    assert read_calibrator(folder) is not None


def test_files_without_a_model(tmp_path, held_out, run):
    """`--predictions theirs.csv --apply new.csv --output out.csv`, for any classifier."""
    (tmp_path / "new.csv").write_text("id,prob_pos,prob_neg,prob_neu,note\n7,0.9,0.05,0.05,hello\n8,0.4,0.3,0.3,\n")
    out, saved = tmp_path / "out.csv", tmp_path / "calibrator.json"
    printed = run("--predictions", held_out, "--apply", tmp_path / "new.csv", "--output", out, "--save", saved)
    assert "2 calibrated rows" in printed
    expected = load_calibrator(saved).predict_proba(np.log([[0.05, 0.05, 0.9], [0.3, 0.3, 0.4]]))
    found = Predictions.read(out, label_names=NAMES, labels_required=False)
    np.testing.assert_allclose(found.probs, expected, atol=1e-12)
    assert found.confidence[0] < 0.9
    assert (found.ids.tolist(), "hello" in out.read_text()) == (["7", "8"], True)
    run("--load", saved, "--apply", tmp_path / "new.csv", "--output", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == out.read_text()


@pytest.mark.parametrize("option", ["--output", "--save"])
def test_existing_files_are_replaced_only_if_asked(tmp_path, held_out, run, option):
    (tmp_path / "new.csv").write_text("id,prob_pos,prob_neg,prob_neu\n7,0.9,0.05,0.05\n")
    files = {"--output": tmp_path / "out.csv", "--save": tmp_path / "calibrator.json"}
    files[option].write_text("mine")
    named = [word for pair in files.items() for word in pair]
    arguments = ["--predictions", held_out, "--apply", tmp_path / "new.csv", *named]
    assert f"{files[option].name} exists already. Choose another name, or pass --overwrite" in run(*arguments, code=1)
    assert files[option].read_text() == "mine"
    run(*arguments, "--overwrite")
    assert files[option].read_text() != "mine"
    arguments[arguments.index("--output") + 1] = tmp_path / "new.csv"
    assert "is also an input" in run(*arguments, "--overwrite", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["MODEL"], "exactly one of --predictions"),
        (["MODEL", "--predictions", "FILE", "--load", "c.json"], "exactly one of --predictions"),
        (["--predictions", "FILE"], "Nothing to write"),
        (["--predictions", "FILE", "--apply", "FILE"], "go together"),
        (["--data", "FILE", "--save", "c.json"], "need a model"),
        (["--predictions", "FILE", "--fold", "--save", "c.json"], "need a model"),
        (["MODEL", "--load", "c.json"], "--load is for prediction files"),
        (["MODEL", "--predictions", "FILE", "--calibrator", "temprature"], "Did you mean 'temperature'"),
        (["MODEL", "--predictions", "FILE", "--calibrator", "platt", "--fold"], "Only a temperature can be folded"),
        (["MODEL", "--predictions", "FILE", "--fold"], "no model.safetensors"),
        (["MODEL", "--predictions", "missing.csv"], "does not exist"),
        (["EMPTY", "--predictions", "FILE"], "no config.json"),
        (["--load", "FILE", "--apply", "FILE", "--output", "EMPTY"], "is a directory"),
    ],
)
def test_mistakes_are_refused(model_dir, tmp_path, held_out, run, arguments, words):
    places = {"MODEL": model_dir, "FILE": held_out, "EMPTY": tmp_path}
    assert words in run(*(places.get(argument, argument) for argument in arguments), code=1)


def test_folding_into_a_real_model(tmp_path, held_out, run):
    torch = pytest.importorskip("torch", reason="folding is tested with a real model")
    transformers = pytest.importorskip("transformers", reason="folding is tested with a real model")
    config = transformers.RobertaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50,
        max_position_embeddings=40, id2label=dict(enumerate(NAMES)), label2id={n: i for i, n in enumerate(NAMES)},
    )  # fmt: skip
    model, folder = transformers.RobertaForSequenceClassification(config).eval(), tmp_path / "roberta"
    model.save_pretrained(folder)
    before = model(torch.arange(2, 12)[None]).logits.detach().numpy()
    printed = run(folder, "--predictions", held_out, "--fold")
    assert "classifier.out_proj.weight and classifier.out_proj.bias" in printed
    folded = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    after = folded(torch.arange(2, 12)[None]).logits.detach().numpy()
    np.testing.assert_allclose(after, before / folded_temperature(folder), rtol=1e-5, atol=1e-7)
    assert read_calibrator(folder) is None
    for options in ((), ("--fold",)):
        assert "a temperature would be applied twice" in run(folder, "--predictions", held_out, *options, code=1)
