"""`load` and `Model`: predicting, calibrating, abstaining, saving; plain checkpoints; errors."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import ebmcal
from ebmcal import EnergyClassifier
from ebmcal.errors import EbmcalError
from tiny_models import SENTENCES, make_encoder, make_wordpiece, save_encoder

NAMES = ("bad", "fair", "good")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plain checkpoint, as transformers saves it."""
    path = tmp_path_factory.mktemp("model") / "plain"
    labels = {"id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)}}
    return save_encoder(path, scale=12.0, **labels)


@pytest.fixture(scope="module")
def model(folder):
    return ebmcal.load(folder)


@pytest.fixture(scope="module")
def held_out(model):
    """Labels drawn from the model's probabilities at temperature 3, so that it is overconfident."""
    texts = [f"{text} {i}" for i in range(10) for text in SENTENCES]
    logits = model.predict(texts).logits / 3
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rng = np.random.default_rng(0)
    return texts, [NAMES[rng.choice(3, p=row / row.sum())] for row in probs.astype(float)]


def test_a_plain_checkpoint_predicts_like_transformers(model, folder):
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    encoded = make_wordpiece()(SENTENCES[:20], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = plain(**encoded).logits.numpy()
    p = model.predict(SENTENCES[:20])
    np.testing.assert_allclose(p.logits, logits, atol=1e-4)
    expected = -(np.log(np.exp(logits.astype(float)).sum(axis=1)) - np.log(3))
    np.testing.assert_allclose(p.energies, expected, atol=1e-4)
    assert p.label_names == NAMES
    assert set(p.predicted_labels) <= set(NAMES)


def test_empty_texts_are_predicted_with_a_warning(model):
    with pytest.warns(UserWarning, match="1 empty text: its prediction means nothing"):
        assert len(model.predict(["", SENTENCES[0]])) == 2


def test_texts_from_lists_files_and_tables(model, tmp_path):
    table = pd.DataFrame({"text": SENTENCES[:5], "label": ["good"] * 5, "key": list("abcde")})
    table.to_csv(tmp_path / "t.csv", index=False)
    a = model.predict(SENTENCES[:5])
    b = model.predict(tmp_path / "t.csv", label_column="label", id_column="key")
    c = model.predict(table)
    np.testing.assert_allclose(a.logits, b.logits, atol=1e-6)
    np.testing.assert_allclose(a.logits, c.logits, atol=1e-6)
    assert b.ids.tolist() == list("abcde")
    assert b.labels.tolist() == [2] * 5


def test_the_label_column_of_the_training_data_is_remembered(model, held_out, tmp_path):
    trained = replace(model, card=model.card | {"label_column": "kind"})
    pd.DataFrame(dict(zip(("text", "kind"), held_out, strict=True))).to_csv(tmp_path / "held_out.csv", index=False)
    found = trained.calibrate(tmp_path / "held_out.csv").calibrator.temperature_
    assert found == pytest.approx(model.calibrate(held_out).calibrator.temperature_, rel=1e-4)
    with pytest.raises(EbmcalError, match="Unknown column 'label'"):
        model.calibrate(tmp_path / "held_out.csv")


def test_calibration_is_saved_applied_on_load_and_can_be_folded(model, held_out, tmp_path):
    calibrated = model.calibrate(held_out)
    assert calibrated.calibrator.temperature_ > 1.5
    saved, folded = calibrated.save(tmp_path / "saved"), calibrated.save(tmp_path / "folded", fold=True)
    texts = SENTENCES[:10]
    expected = calibrated.predict(texts).probs
    np.testing.assert_allclose(ebmcal.load(saved).predict(texts).probs, expected, atol=1e-5)
    again = ebmcal.load(folded)
    np.testing.assert_allclose(again.predict(texts).probs, expected, atol=1e-4)
    np.testing.assert_allclose(again.predict(texts).energies, model.predict(texts).energies, atol=1e-3)
    plain = AutoModelForSequenceClassification.from_pretrained(folded).eval()
    with torch.no_grad():
        logits = plain(**make_wordpiece()(texts, padding=True, return_tensors="pt")).logits
    np.testing.assert_allclose(torch.softmax(logits, -1).numpy(), expected, atol=1e-4)
    np.testing.assert_allclose(
        ebmcal.load(saved).predict(texts, calibrated=False).probs, model.predict(texts).probs, atol=1e-5
    )


def test_a_saved_model_keeps_its_abstention_rule(model, held_out, tmp_path):
    fitted = model.fit_abstention(held_out, coverage=0.9)
    again = ebmcal.load(fitted.save(tmp_path / "model"))
    decisions = again.abstention_rule.apply(again.predict(SENTENCES[:10]))
    assert decisions.label_sets is not None


def test_a_user_may_rename_labels_in_config_json(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "maybe", "2": "yes"}
    (copy / "config.json").write_text(json.dumps(config))
    assert ebmcal.load(copy).label_names == ("no", "maybe", "yes")


def test_the_scalar_energy_is_saved_with_its_head(tmp_path):
    torch.manual_seed(0)
    classifier = EnergyClassifier(make_encoder("bert"), "scalar").eval()
    classifier.save_pretrained(tmp_path / "model")
    make_wordpiece().save_pretrained(tmp_path / "model")
    a = ebmcal.load(tmp_path / "model").energy(SENTENCES[:5])
    b = ebmcal.load(tmp_path / "model").energy(SENTENCES[:5])
    np.testing.assert_array_equal(a, b)
    assert np.std(a) > 0


def edit(folder, file, **entries):
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | entries))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda d: edit(d, "ebmcal.json", max_length="long"), "max_length should be a valid integer, got 'long'"),
        (lambda d: edit(d, "ebmcal.json", energy=["hidden"]), "energy should be a valid string"),
        (lambda d: edit(d, "ebmcal.json", text_column=3), "text_column should be a valid string, got 3"),
        (lambda d: edit(d, "ebmcal.json", folded_temperature="hot"), "folded_temperature should be a valid number"),
        (lambda d: edit(d, "config.json", architectures=5), "is a 5 without a classification head"),
        (lambda d: edit(d, "config.json", id2label=["a", "b", "c"]), "not a usable"),
        (lambda d: edit(d, "config.json", id2label={"0": "a", "1": "b", "7": "c"}), "not a usable model: KeyError"),
        (lambda d: edit(d, "config.json", id2label={"x": "a"}), "not a usable"),
        (lambda d: edit(d, "config.json", hidden_size="wide"), "not a usable"),
        (lambda d: edit(d, "config.json", model_type=7), "not a usable"),
        (lambda d: (d / "tokenizer.json").write_text("[]"), "not a usable model"),
        (lambda d: (d / "config.json").unlink(), "no config.json"),
        (lambda d: (d / "config.json").write_text("[]"), "expected a JSON object"),
        (lambda d: (d / "config.json").write_text("{"), "not valid JSON"),
        (lambda d: (d / "model.safetensors").write_bytes(b"x" * 100), "corrupt weights"),
        (lambda d: (d / "ebmcal.json").write_text("[1]"), "should be a valid dictionary"),
        (lambda d: (d / "ebmcal.json").write_text('{"energy": "odd"}'), "Unknown energy 'odd'"),
        (lambda d: (d / "ebmcal.json").write_text('{"calibrator": 3}'), "calibrator"),
    ],
)
def test_damaged_model_directories_are_explained(folder, tmp_path, break_it, message):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    break_it(copy)
    with pytest.raises(EbmcalError, match=message):
        ebmcal.load(copy)


def test_other_errors(model, tmp_path, held_out):
    with pytest.raises(EbmcalError, match="not a model directory"):
        ebmcal.load(tmp_path / "nothing")
    with pytest.raises(EbmcalError, match="no temperature to fold"):
        model.save(tmp_path / "x", fold=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(EbmcalError, match="not a model directory"):
        model.save(tmp_path / "mine")
    with pytest.raises(EbmcalError, match="already calibrated"):
        calibrated = model.calibrate(held_out)
        model.calibrate(calibrated.predict(held_out[0][:20]))
