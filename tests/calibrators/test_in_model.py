"""Calibrators in files and model folders, and damaged files."""

import json
import warnings

import numpy as np
import pytest

from ebmcal.calibrators import (
    CALIBRATORS,
    Platt,
    TemperatureScaling,
    attach,
    attached,
    load_calibrator,
    make_calibrator,
)
from ebmcal.calibrators.in_model import attach_folded
from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import CHECK


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


DAMAGE = [float("nan"), None, "abc", -1, 1e300, [], {}, True]


def places(value, here=()):
    """Where the numbers of a JSON value are, as keys one after the other; of a long list the first."""
    if isinstance(value, dict):
        return [place for key in value for place in places(value[key], (*here, key))]
    if isinstance(value, list):
        return places(value[0], (*here, 0)) if value else []
    return [] if isinstance(value, bool) or value is None else [here]


def with_value(value, place, new):
    changed = json.loads(json.dumps(value))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return changed


def learned_by(name, calibrated_rows):
    logits, y = calibrated_rows(400, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_calibrator(name).fit(2 * logits, y, np.arange(400.0))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_calibrator_changed_by_hand_is_damaged(name, tmp_path, calibrated_rows):
    path = tmp_path / "c.json"
    learned_by(name, calibrated_rows).save(path)
    whole = json.loads(path.read_text())
    for place in [("learned", *p) for p in places(whole["learned"])] + [("settings", k) for k in whole["settings"]]:
        path.write_text(json.dumps(with_value(whole, place, 0.123)))
        with pytest.raises(EbmcalError, match=r"c\.json is damaged or was changed by hand"):
            load_calibrator(path)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_values_that_no_fit_learns_are_damage_even_without_a_checksum(name, tmp_path, calibrated_rows):
    """Files of 0.1 have none."""
    path, whole = tmp_path / "c.json", learned_by(name, calibrated_rows).to_json()
    for place in places(whole["learned"], ("learned",)):
        for bad in DAMAGE[:3]:
            path.write_text(json.dumps(with_value(whole, place, bad)))
            with pytest.raises(EbmcalError, match=r"c\.json is damaged"):
                load_calibrator(path)


@pytest.mark.parametrize("bad", DAMAGE)
@pytest.mark.parametrize(
    "place", [("learned", "temperature_"), ("n_classes",), ("label_names",), ("fitted_on", "n_rows")]
)
def test_a_damaged_temperature_is_never_applied(model_dir, fitted, place, bad):
    if (place, bad) == (("label_names",), None):
        pytest.skip("no names are learned from arrays")
    path = attach(model_dir, fitted)
    whole = {key: value for key, value in json.loads(path.read_text()).items() if key != CHECK}
    path.write_text(json.dumps(with_value(whole, place, bad)))
    with pytest.raises(EbmcalError, match=r"calibrator\.json is damaged"):
        attached(model_dir)


def test_what_the_logits_were_divided_by_is_checked_too(model_dir, fitted):
    path = attach(model_dir, fitted)
    path.write_text(path.read_text().replace('"logits_divided_by": null', '"logits_divided_by": "abc"'))
    with pytest.raises(EbmcalError, match=r"calibrator\.json is damaged"):
        attached(model_dir)


def test_truncated_and_missing_files_are_refused(tmp_path, fitted):
    fitted.save(tmp_path / "c.json")
    (tmp_path / "c.json").write_bytes((tmp_path / "c.json").read_bytes()[:100])
    with pytest.raises(EbmcalError, match=r"c\.json"):
        load_calibrator(tmp_path / "c.json")
    with pytest.raises(EbmcalError, match="does not exist"):
        load_calibrator(tmp_path / "other.json")
