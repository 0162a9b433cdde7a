"""Calibrators in files and model folders, and damaged files."""

import json

import numpy as np
import pytest

from ebmcal.calibrators import Platt, TemperatureScaling, attach, attached, load_calibrator
from ebmcal.calibrators.storage import attach_folded
from ebmcal.errors import EbmcalError


@pytest.fixture
def fitted(calibrated_rows):
    logits, y = calibrated_rows(500, 3)
    return TemperatureScaling().fit(2 * logits, y)


@pytest.fixture
def model_dir(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_attach_and_attached(model_dir, fitted, calibrated_rows):
    assert attached(model_dir) is None
    assert attach(model_dir, fitted) == model_dir / "calibrator.json"
    np.testing.assert_array_equal(attached(model_dir).predict_proba(np.eye(3)), fitted.predict_proba(np.eye(3)))
    attach(model_dir, Platt().fit(*calibrated_rows(500, 3)))
    assert isinstance(attached(model_dir), Platt)


def test_a_folder_without_a_model_is_refused(tmp_path, fitted):
    with pytest.raises(EbmcalError, match=r"config\.json"):
        attach(tmp_path, fitted)


def test_only_temperature_folds(model_dir, calibrated_rows):
    with pytest.raises(EbmcalError, match="platt"):
        attach_folded(model_dir, Platt().fit(*calibrated_rows(500, 3)))


def test_an_unfitted_calibrator_is_not_stored(model_dir):
    with pytest.raises(EbmcalError, match="not fitted"):
        attach(model_dir, TemperatureScaling())
    with pytest.raises(EbmcalError, match="not fitted"):
        attach_folded(model_dir, TemperatureScaling())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: [], "does not hold a calibrator"),
        (lambda v: {}, "does not hold a calibrator"),
        (lambda v: {**v, "calibrator": "temprature"}, "Did you mean 'temperature'"),
        (lambda v: {**v, "format": 99}, "format 99"),
        (lambda v: {**v, "learned": {}}, "damaged"),
        (lambda v: {**v, "settings": {"nonsense": 1}}, "damaged"),
        (lambda v: {k: x for k, x in v.items() if k != "fitted_on"}, "damaged"),
        (lambda v: {**v, "fitted_on": 3}, "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, fitted, change, words):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(change(fitted.to_json())))
    with pytest.raises(EbmcalError, match=words):
        load_calibrator(path)


def test_truncated_and_missing_files_are_refused(tmp_path, fitted):
    fitted.save(tmp_path / "c.json")
    (tmp_path / "c.json").write_bytes((tmp_path / "c.json").read_bytes()[:100])
    with pytest.raises(EbmcalError, match=r"c\.json"):
        load_calibrator(tmp_path / "c.json")
    with pytest.raises(EbmcalError, match="does not exist"):
        load_calibrator(tmp_path / "other.json")
