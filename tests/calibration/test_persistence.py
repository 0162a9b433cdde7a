"""Calibrators in JSON files and model directories; damaged files; predictions that do not fit the model."""

import json

import numpy as np
import pytest

from ebmcal import EbmcalError, Predictions
from ebmcal.calibration import (
    Platt,
    TemperatureScaling,
    apply_to_file,
    load_calibrator,
    read_calibrator,
    read_held_out,
    save_calibrator,
)
from ebmcal.run_dir import CARD_FILE, read_card, update_card


@pytest.fixture
def fitted(calibrated_rows):
    logits, y = calibrated_rows(500, 3)
    return TemperatureScaling().fit(2 * logits, y)


@pytest.fixture
def model_dir(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def rows(calibrated_rows, **changes):
    logits, y = calibrated_rows(500, 3)
    return Predictions(y, ("a", "b", "c"), logits=3 * logits, **changes)


def test_a_model_directory_keeps_the_calibrator_and_its_other_entries(model_dir, fitted, calibrated_rows):
    update_card(model_dir, method="hidden")
    assert read_calibrator(model_dir) is None
    save_calibrator(model_dir, fitted)
    np.testing.assert_array_equal(read_calibrator(model_dir).predict_proba(np.eye(3)), fitted.predict_proba(np.eye(3)))
    save_calibrator(model_dir, Platt().fit(*calibrated_rows(500, 3)))
    assert isinstance(read_calibrator(model_dir), Platt)
    assert read_card(model_dir)["method"] == "hidden"


def test_only_a_temperature_folds(model_dir, calibrated_rows):
    with pytest.raises(EbmcalError, match=r"Only a temperature can be folded .*, got platt"):
        save_calibrator(model_dir, Platt().fit(*calibrated_rows(500, 3)), fold=True)


def test_already_calibrated_predictions_are_refused(model_dir, calibrated_rows):
    with pytest.raises(EbmcalError, match="already calibrated"):
        read_held_out(rows(calibrated_rows, meta={"calibrator": {"name": "temperature"}}), model_dir)


def test_probabilities_without_metadata_are_refused_if_the_model_has_a_calibrator(model_dir, fitted, calibrated_rows):
    """A CSV file of `predict` has calibrated probabilities, but does not say so."""
    given = rows(calibrated_rows)
    given = given.replace(logits=None, probs=given.probs)
    assert read_held_out(given, model_dir).n_rows == 500
    save_calibrator(model_dir, fitted)
    with pytest.raises(EbmcalError, match="applied twice. Pass the output of `ebmcal predict --raw`"):
        read_held_out(given, model_dir)


def test_calibrated_files_are_not_calibrated_again(tmp_path, calibrated_rows):
    rows(calibrated_rows).write(tmp_path / "raw.parquet")
    fitted = TemperatureScaling().fit_predictions(Predictions.read(tmp_path / "raw.parquet"))
    new = rows(calibrated_rows).replace(labels=np.full(500, -1))
    new.write(tmp_path / "new.parquet")
    apply_to_file(fitted, tmp_path / "new.parquet", tmp_path / "once.parquet")
    with pytest.raises(EbmcalError, match="rows that are not calibrated, these are calibrated by temperature"):
        apply_to_file(fitted, tmp_path / "once.parquet", tmp_path / "twice.parquet")
    raw = rows(calibrated_rows)
    once = raw.with_probs(fitted.predict_proba(raw.logits), calibrator=fitted.description)
    second = TemperatureScaling().fit_predictions(once)
    second.save(tmp_path / "second.json")
    with pytest.raises(EbmcalError, match="rows that are calibrated by temperature, these are not calibrated"):
        load_calibrator(tmp_path / "second.json").apply(new.replace(logits=None, probs=new.probs))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: [], "does not contain a calibrator"),
        (lambda v: {}, "does not contain a calibrator"),
        (lambda v: {**v, "calibrator": "temprature"}, "Did you mean 'temperature'"),
        (lambda v: {**v, "calibrator": ["temperature"]}, "Unknown calibrator"),
        (lambda v: {**v, "settings": {"nonsense": 1}}, "damaged"),
        (lambda v: {k: x for k, x in v.items() if k != "checksum"}, "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, fitted, change, words):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(change(fitted.to_json())))
    with pytest.raises(EbmcalError, match=words):
        load_calibrator(path)
    path.write_text('{"calibrator": ')
    with pytest.raises(EbmcalError, match=r"c\.json is not valid JSON"):
        load_calibrator(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [("learned", {"temperature_": 0.5}), ("learned", {"temperature_": None}), ("n_classes", 2), ("label_names", ["a"])],
)
def test_a_changed_calibrator_is_never_applied(model_dir, fitted, place, value):
    save_calibrator(model_dir, fitted)
    card = read_card(model_dir)
    card["calibrator"][place] = value
    (model_dir / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(EbmcalError, match=r"ebmcal\.json is damaged or was edited: the checksum differs"):
        read_calibrator(model_dir)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_applying_to_a_file_keeps_its_other_columns(suffix, tmp_path, calibrated_rows):
    calibrator = TemperatureScaling().fit_predictions(rows(calibrated_rows))
    content = "note,id,prob_b,prob_a,confidence,prob_c\nfirst,007,0.2,0.7,0.7,0.1\n,008,0.5,0.25,0.5,0.25\n"
    (tmp_path / "new.csv").write_text(content)
    done = apply_to_file(calibrator, tmp_path / "new.csv", tmp_path / f"out.{suffix}")
    assert done.label_names == ("a", "b", "c")
    found = Predictions.read(tmp_path / f"out.{suffix}", labels_required=False)
    np.testing.assert_allclose(found.probs, calibrator.predict_proba(np.log([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]])))
    assert found.ids.tolist() == ["007", "008"]
    from ebmcal.predictions.files import read_columns

    columns = read_columns(tmp_path / f"out.{suffix}").columns
    assert list(columns) == ["note", "id", "prob_a", "prob_b", "prob_c", "confidence"]
    assert columns["note"] == ["first", ""]
    np.testing.assert_allclose(np.asarray(columns["confidence"], dtype=float), found.confidence)
