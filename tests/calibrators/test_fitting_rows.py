"""The guard against judging a calibrator on its fitting rows, and calibrators on `Predictions`."""

import json
import warnings

import numpy as np
import pytest
from scipy.special import softmax

from ebmcal.calibrators import CALIBRATORS, FittedOnJudgedRows, TemperatureScaling, make_calibrator
from ebmcal.calibrators.fitting_rows import KEPT, FittingRows, row_hashes
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions


def predictions(logits, y, *, prefix=None, names=("a", "b", "c"), **changes):
    ids = None if prefix is None else np.array([f"{prefix}-{i}" for i in range(len(y))])
    given = {"logits": logits, **changes}
    return Predictions(labels=y, label_names=names, ids=ids, **given)


def silent(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args)


@pytest.mark.parametrize("prefix", [None, "row"])
def test_the_fitting_rows_themselves_warn(prefix, calibrated_rows):
    rows = predictions(*calibrated_rows(500, 3), prefix=prefix)
    with pytest.warns(FittedOnJudgedRows, match="About 100%") as caught:
        TemperatureScaling().fit_predictions(rows).apply(rows)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("prefix", [None, "row"])
def test_other_rows_do_not_warn(prefix, calibrated_rows):
    fitted = TemperatureScaling().fit_predictions(predictions(*calibrated_rows(500, 3), prefix=prefix))
    silent(fitted.apply, predictions(*calibrated_rows(500, 3, seed=1), prefix=prefix))


def test_the_guard_outlives_the_file(calibrated_rows, tmp_path):
    from ebmcal.calibrators import load_calibrator

    rows = predictions(*calibrated_rows(500, 3), prefix="row")
    TemperatureScaling().fit_predictions(rows).save(tmp_path / "c.json")
    with pytest.warns(FittedOnJudgedRows):
        load_calibrator(tmp_path / "c.json").apply(rows)


def test_a_part_of_the_fitting_rows_warns_with_its_share(calibrated_rows):
    logits, y = calibrated_rows(800, 3)
    fitted = TemperatureScaling().fit(logits[:400], y[:400])
    with pytest.warns(FittedOnJudgedRows, match="About 50%"):
        fitted.apply(predictions(logits, y))


def test_one_shared_row_is_enough_when_ids_are_known(calibrated_rows):
    logits, y = calibrated_rows(600, 3)
    ids = np.array([f"id-{i}" for i in range(600)])
    first = Predictions(labels=y[:301], label_names=("a", "b", "c"), logits=logits[:301], ids=ids[:301])
    second = Predictions(labels=y[300:], label_names=("a", "b", "c"), logits=logits[300:], ids=ids[300:])
    with pytest.warns(FittedOnJudgedRows):
        TemperatureScaling().fit_predictions(first).apply(second)


@pytest.mark.parametrize("n", [150, 3000, 20_000])
@pytest.mark.parametrize("steps", [2, 8, 32])
def test_rounded_logits_that_repeat_by_chance_do_not_warn(n, steps, calibrated_rows):
    """Two classes in steps of 1/2 to 1/32: a few to nearly all rows occur in both files."""
    for seed in range(1, 6):
        (first, y), (second, other_y) = calibrated_rows(n, 2), calibrated_rows(n, 2, seed=seed)
        fitted = TemperatureScaling().fit((steps * first).round() / steps, y)
        silent(fitted.apply, predictions((steps * second).round() / steps, other_y, names=("a", "b")))


def test_rounded_fitting_rows_are_still_recognised(calibrated_rows):
    logits, y = calibrated_rows(3000, 2)
    rows = predictions((8 * logits).round() / 8, y, names=("a", "b"))
    with pytest.warns(FittedOnJudgedRows):
        TemperatureScaling().fit_predictions(rows).apply(rows)


def test_rows_that_are_all_equal_tell_nothing():
    fitted = FittingRows.of(np.zeros((50, 2)))
    assert fitted.share_among(np.zeros((50, 2))) == 0.0


def test_ids_that_count_the_rows_of_a_file_do_not_warn(calibrated_rows):
    places = np.array([str(i) for i in range(500)])
    (first, y), (second, other_y) = calibrated_rows(500, 3), calibrated_rows(500, 3, seed=1)
    fitted = TemperatureScaling().fit_predictions(Predictions(y, ("a", "b", "c"), logits=first, ids=places))
    silent(fitted.apply, Predictions(other_y, ("a", "b", "c"), logits=second, ids=places))


def test_unlabelled_rows_are_not_judged(calibrated_rows):
    logits, y = calibrated_rows(500, 3)
    fitted = TemperatureScaling().fit(logits, y)
    silent(fitted.apply, predictions(logits, np.full(500, -1)))


def test_many_rows_are_sampled_and_still_recognised(calibrated_rows):
    logits, _ = calibrated_rows(20 * KEPT, 3)
    seen = FittingRows.of(logits[: 10 * KEPT])
    assert len(seen.rows.hashes) == KEPT
    assert seen.share_among(logits[: 10 * KEPT]) == 1.0
    assert seen.share_among(logits) == pytest.approx(0.5, abs=0.03)
    assert seen.share_among(logits[10 * KEPT :]) == 0.0
    assert len(json.dumps(seen.to_json())) < 50_000


def test_hashes_do_not_depend_on_the_number_type_or_the_sign_of_zero(calibrated_rows):
    single = calibrated_rows(100, 3)[0].astype(np.float32)
    np.testing.assert_array_equal(row_hashes(single), row_hashes(single.astype(np.float64)))
    assert row_hashes(np.array([[0.0, -0.0]])) == row_hashes(np.zeros((1, 2)))
    assert row_hashes(np.zeros((1, 2))) != row_hashes(np.zeros((1, 3)))


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_apply_carries_the_rows_and_says_by_what(name, calibrated_rows):
    held_out = predictions(*calibrated_rows(2000, 3), prefix="fit", energies=np.linspace(0.0, 50.0, 2000))
    fitted = make_calibrator(name).fit_predictions(held_out)
    rows = predictions(*calibrated_rows(50, 3, seed=1), prefix="test", energies=np.arange(50.0), meta={"seed": 7})
    done = silent(fitted.apply, rows)
    np.testing.assert_array_equal(done.probabilities(), fitted.predict_proba(rows.logits, rows.energies))
    np.testing.assert_array_equal(done.energies, rows.energies)
    assert list(done.ids) == list(rows.ids)
    assert done.meta["seed"] == 7
    assert done.meta["calibrator"]["name"] == name
    assert done.meta["calibrator"]["n_rows"] == 2000
    json.dumps(done.meta)


def test_probabilities_serve_as_logits(calibrated_rows):
    logits, y = calibrated_rows(1000, 3)
    by_logits = TemperatureScaling().fit_predictions(predictions(logits, y))
    by_probs = TemperatureScaling().fit_predictions(
        Predictions(labels=y, label_names=("a", "b", "c"), probs=softmax(logits, axis=1))
    )
    assert by_probs.temperature_ == pytest.approx(by_logits.temperature_, rel=1e-9)


def test_rows_without_a_label_are_left_out_of_the_fit(calibrated_rows):
    logits, y = calibrated_rows(600, 3)
    partly = np.where(np.arange(600) < 300, y, -1)
    fitted = TemperatureScaling().fit_predictions(predictions(logits, partly))
    assert fitted.n_rows_ == 300
    assert fitted.temperature_ == TemperatureScaling().fit(logits[:300], y[:300]).temperature_


def test_other_label_names_are_refused(calibrated_rows):
    fitted = TemperatureScaling().fit_predictions(predictions(*calibrated_rows(500, 3)))
    with pytest.raises(EbmcalError, match="same order"):
        fitted.apply(predictions(*calibrated_rows(50, 3), names=("b", "a", "c")))
