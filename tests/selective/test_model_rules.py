"""Rules of a model: bound to weights and calibrator, stored with it, with distances measured by the model."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

import ebmcal
from ebmcal import EbmcalError, Predictions, fit_abstention
from ebmcal.calibration import Isotonic, TemperatureScaling, save_calibrator
from ebmcal.run_dir import CARD_FILE, RULE_ARRAYS_FILE, RunDir, Trial, read_card
from ebmcal.selective import DISTANCES, fit_distance, read_rule, save_rule
from ebmcal.selective.ood import TrainingFeatures
from tiny_models import SENTENCES, save_encoder

NAMES = ("bad", "fine", "good")
TRAINING, HELD_OUT, NEW = SENTENCES[:60], SENTENCES[60:], ["a joy", "broken phone novel", "the the the the song"]
LABELS = [NAMES[i % 3] for i in range(60)]


def save_classifier(folder):
    names = dict(enumerate(NAMES))
    return save_encoder(folder, id2label=names, label2id={name: i for i, name in names.items()})


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A model, its training texts as a file, and its predictions for held-out rows."""
    place = tmp_path_factory.mktemp("rules")
    model = ebmcal.load(save_classifier(place / "model"))
    lines = [f'"{text}",{label}' for text, label in zip(TRAINING, LABELS, strict=True)]
    (place / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    rows = model.predict({"text": HELD_OUT, "label": LABELS}, label_column="label", calibrated=False)
    rows.write(place / "held_out.parquet")
    return place


@pytest.fixture
def model_dir(original, tmp_path):
    import shutil

    return shutil.copytree(original / "model", tmp_path / "model")


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_are_measured_stored_and_used(original, model_dir, tmp_path, name):
    options = {"ood_score": name, "training": original / "train.csv"}
    rule = fit_abstention(original / "held_out.parquet", model=model_dir, **options)
    model = ebmcal.load(model_dir)
    known = TrainingFeatures.of(model.features(TRAINING), np.arange(60) % 3)
    far = fit_distance(name, known.features, known.labels)(model.features([*HELD_OUT, *NEW]))
    np.testing.assert_allclose(rule.ood.ranking[0], np.sort(far[:60]), rtol=1e-5)
    save_rule(model_dir, rule)
    stored = read_rule(model_dir)
    assert stored.to_json() == rule.to_json()
    assert (model_dir / RULE_ARRAYS_FILE).stat().st_size < 20_000
    found = ebmcal.load(model_dir).predict(NEW)
    np.testing.assert_allclose(found.distances[name], far[60:], rtol=1e-4)
    expected = np.array([(1 + (far[:60] >= one).sum()) / 61 for one in far[60:]])
    np.testing.assert_allclose(stored.apply(found).p_values, expected)
    fitted = model.fit_abstention({"text": HELD_OUT, "label": LABELS}, **options)
    np.testing.assert_allclose(fitted.abstention_rule.apply(fitted.predict(NEW)).p_values, expected)
    assert ebmcal.load(fitted.save(tmp_path / "saved")).abstention_rule.ood.score == name
    assert "training texts" in " ".join(stored.describe())


def test_distances_of_other_features_are_refused(original, model_dir):
    rule = fit_abstention(original / "held_out.parquet", model=model_dir, training=original / "train.csv")
    save_rule(model_dir, rule)
    found = ebmcal.load(model_dir).predict(NEW)
    with pytest.raises(EbmcalError, match="were not measured by this rule"):
        rule.apply(found.replace(meta=found.meta | {"distances": "of a run"}))
    with pytest.raises(EbmcalError, match="distance_knn"):
        rule.apply(found.replace(distances=None))
    without_origin = found.replace(meta={})  # a CSV has no metadata
    np.testing.assert_array_equal(rule.apply(without_origin).p_values, rule.apply(found).p_values)
    with pytest.raises(EbmcalError, match="features of size 16, the model of size 8: it is for another model"):
        rule.add_distances(found, np.zeros((3, 8)))


@pytest.mark.filterwarnings("ignore:.*training texts")
def test_the_default_score_is_combined_if_the_training_texts_are_known(original, tmp_path):
    rows, run, trial = Predictions.read(original / "held_out.parquet"), RunDir(tmp_path / "run"), Trial("hidden", 1)
    folder = save_classifier(run.model(trial))
    rows = rows.replace(meta={})
    assert fit_abstention(rows, model=folder).ood.score == "energy"
    assert fit_abstention(rows, model=folder, training=original / "train.csv").ood.score == "combined"
    with pytest.raises(EbmcalError, match="--training FILE"):
        fit_abstention(rows, model=folder, ood_score="knn")
    model = ebmcal.load(folder)
    model.predict({"text": TRAINING, "label": LABELS}, label_column="label").write(run.predictions(trial, "train"))
    assert len(fit_abstention(rows, model=folder).ood.training.features) == 60
    assert fit_abstention(rows, model=folder, ood_score="energy").ood.score == "energy"
    with pytest.warns(UserWarning, match=r"have none.* The OOD score is the energy instead"):
        assert fit_abstention(rows.replace(texts=None), model=folder).ood.score == "energy"
    with pytest.raises(EbmcalError, match="rows are training rows of the model"):
        fit_abstention(model.predict({"text": TRAINING, "label": LABELS}, label_column="label"), model=folder, ood=0.1)


def test_too_few_rows_are_reported_before_distances_are_measured(original, model_dir, monkeypatch):
    monkeypatch.setattr("ebmcal.selective.measure_distances", lambda *arguments: pytest.fail("measured"))
    with pytest.raises(EbmcalError, match="60 rows do not support an error of at most 0.01"):
        fit_abstention(original / "held_out.parquet", model=model_dir, max_error=0.01, training=TRAINING)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ood_score": "energy", "training": TRAINING}, "goes with the OOD scores combined, knn"),
        ({"ood_score": "knn", "training": "absent.csv"}, "absent.csv"),
        ({"ood_score": "knn", "training": HELD_OUT}, "60 of the 60 held-out texts are training texts"),
        ({"ood_score": "mahalanobis", "training": TRAINING}, "label"),
        ({"ood_score": "knn", "training": TRAINING[:9]}, "9 training texts are too few"),
    ],
)
def test_training_texts_that_do_not_fit_are_refused(original, model_dir, options, words):
    with pytest.raises(EbmcalError, match=words):
        fit_abstention(original / "held_out.parquet", model=model_dir, **options)


def held_out(n=800, seed=0, **changes):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3)) * 2
    y = (logits + 0.5 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions(y, NAMES, **{"logits": 3 * logits, "energies": rng.normal(size=n)} | changes)


def test_another_calibrator_or_other_weights_make_the_rule_invalid(model_dir):
    save_calibrator(model_dir, TemperatureScaling().fit_predictions(held_out(seed=1)))
    rule = fit_abstention(held_out(), model=model_dir, max_error=0.1)
    save_rule(model_dir, rule)
    assert rule.calibrated_by["name"] == "temperature"
    other = TemperatureScaling().fit_predictions(held_out(seed=3))
    assert read_rule(model_dir, calibrator=other) is None  # a model that was calibrated again in memory
    card = read_card(model_dir)
    (model_dir / CARD_FILE).write_text(json.dumps(card | {"calibrator": other.to_json()}))
    with pytest.raises(EbmcalError, match=r"fitted for another calibrator.*ebmcal abstain"):
        read_rule(model_dir)
    (model_dir / CARD_FILE).write_text(json.dumps(card))
    weights = (model_dir / "model.safetensors").read_bytes()
    (model_dir / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(EbmcalError, match="fitted for another model"):
        read_rule(model_dir)


def test_a_new_calibrator_removes_the_rule_and_the_same_one_keeps_it(model_dir):
    first = TemperatureScaling().fit_predictions(held_out(seed=1))
    save_calibrator(model_dir, first)
    save_rule(model_dir, fit_abstention(held_out(), model=model_dir, max_error=0.1))
    save_calibrator(model_dir, first)
    assert read_rule(model_dir) is not None
    save_calibrator(model_dir, TemperatureScaling().fit_predictions(held_out(seed=3)))
    assert read_rule(model_dir) is None


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_rows_that_the_calibrator_was_fitted_on(model_dir):
    save_calibrator(model_dir, TemperatureScaling().fit_predictions(held_out()))
    assert "with one parameter this is harmless" in fit_abstention(held_out(), model=model_dir, max_error=0.1).notes[0]
    save_calibrator(model_dir, Isotonic().fit_predictions(held_out()))
    again = held_out(ids=[f"again-{i}" for i in range(800)], logits=held_out().logits.round(3))
    for rows in (held_out(), again):
        with pytest.raises(EbmcalError, match="were used to fit the model's isotonic calibrator"):
            fit_abstention(rows, model=model_dir, max_error=0.1)


def test_arrays_that_are_missing_or_damaged_are_refused(model_dir):
    save_rule(model_dir, fit_abstention(held_out(), model=model_dir, max_error=0.1))
    whole = (model_dir / RULE_ARRAYS_FILE).read_bytes()
    for content in (whole[:50], whole[:-1] + b"x", b""):
        (model_dir / RULE_ARRAYS_FILE).write_bytes(content)
        with pytest.raises(EbmcalError, match="is damaged or was edited"):
            read_rule(model_dir)
    (model_dir / RULE_ARRAYS_FILE).unlink()
    with pytest.raises(EbmcalError, match="is damaged or was edited"):
        read_rule(model_dir)
    save_rule(model_dir, None)
    assert read_rule(model_dir) is None
