"""Leakage checks: fitting rows, training rows and duplicates are recognised by content, chance matches are not."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import softmax

from ebmcal import EbmcalError, Predictions, evaluate
from ebmcal.calibration import (
    CALIBRATORS,
    FewRowsWarning,
    LeakageWarning,
    TemperatureScaling,
    check_held_out,
    load_calibrator,
    make_calibrator,
)
from ebmcal.calibration.leakage import N_SAMPLED, TRAINING_ROWS, FittingRows, distinct_rows
from ebmcal.run_dir import RunDir, Trial, update_card


def predictions(logits, y, *, prefix=None, names=("a", "b", "c"), **changes):
    ids = None if prefix is None else np.array([f"{prefix}-{i}" for i in range(len(y))])
    return Predictions(y, names[: np.shape(logits)[1]], logits=logits, ids=ids, **changes)


def texts(first, last):
    return [f"This is text number {i}." for i in range(first, last)]


def silent(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args)


#: What may be done to the fitting rows without making them new rows.
DISGUISES = {
    "nothing": lambda logits, y, rng: (logits, y),
    "shuffled": lambda logits, y, rng: (lambda order: (logits[order], y[order]))(rng.permutation(len(y))),
    "predicted again": lambda logits, y, rng: (logits + 1e-6 * rng.normal(size=logits.shape), y),
    "half precision": lambda logits, y, rng: (logits.astype(np.float16), y),
    "shifted": lambda logits, y, rng: (logits + rng.normal(size=(len(y), 1)), y),
    "four decimals": lambda logits, y, rng: (logits.round(4), y),
    "two decimals": lambda logits, y, rng: (logits.round(2), y),
}


@pytest.mark.parametrize("n_classes", [2, 3, 20])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_fitting_rows_are_recognised_without_texts(disguise, n_classes, calibrated_rows):
    logits, y = calibrated_rows(800, n_classes)
    names = tuple(f"c{i}" for i in range(n_classes))
    fitted = TemperatureScaling().fit_predictions(predictions(logits, y, prefix="fit", names=names))
    changed, labels = DISGUISES[disguise](logits, y, np.random.default_rng(1))
    with pytest.warns(LeakageWarning, match=r"About \d+% of these rows were used to fit") as caught:
        fitted.apply(predictions(changed, labels, prefix="other", names=names))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_fitting_rows_are_recognised_as_rounded_probabilities(decimals, n_classes, calibrated_rows):
    logits, y = calibrated_rows(800, n_classes)
    fitted = TemperatureScaling().fit(logits, y)
    probs = softmax(logits, axis=1).round(decimals)
    probs /= probs.sum(axis=1, keepdims=True)
    with pytest.warns(LeakageWarning):
        fitted.apply(predictions(logits, y).replace(probs=probs))


def test_texts_decide_if_both_sides_have_them(calibrated_rows):
    logits, y = calibrated_rows(500, 3)
    fitted = TemperatureScaling().fit_predictions(predictions(logits, y, texts=texts(0, 500)))
    other = np.random.default_rng(0).normal(size=logits.shape)  # of another model
    again = [f"  {text.upper()}\n" for text in texts(0, 500)]
    with pytest.warns(LeakageWarning, match="About 100%"):
        fitted.apply(predictions(other, y, texts=again))
    silent(fitted.apply, predictions(logits, y, texts=texts(500, 1000)))


def test_a_part_of_the_fitting_rows_warns_with_its_share(calibrated_rows):
    logits, y = calibrated_rows(800, 3)
    fitted = TemperatureScaling().fit(logits[:400], y[:400])
    with pytest.warns(LeakageWarning, match=r"About (4[5-9]|5\d)%"):
        fitted.apply(predictions(logits, y))


@pytest.mark.parametrize("prefix", [None, "row"])
@pytest.mark.parametrize("n", [30, 500, 20_000])
def test_other_rows_do_not_warn(n, prefix, calibrated_rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)
        fitted = TemperatureScaling().fit_predictions(predictions(*calibrated_rows(n, 3), prefix=prefix))
    silent(fitted.apply, predictions(*calibrated_rows(n, 3, seed=1), prefix=prefix))


@pytest.mark.parametrize("n", [150, 3000, 20_000])
@pytest.mark.parametrize("steps", [2, 8, 32, 1000])
def test_rounded_logits_that_repeat_by_chance_do_not_warn(n, steps, calibrated_rows):
    """Two classes in steps of 1/2 to 1/1000: a few to nearly all rows occur in both files."""
    for seed in range(1, 6):
        (first, y), (second, other_y) = calibrated_rows(n, 2), calibrated_rows(n, 2, seed=seed)
        fitted = TemperatureScaling().fit((steps * first).round() / steps, y)
        silent(fitted.apply, predictions((steps * second).round() / steps, other_y))


def test_a_shift_to_saturated_rows_does_not_warn(calibrated_rows):
    """Other rows may be far more confident, and then repeat values that are rare among the fitting rows."""
    (first, y), (second, other_y) = calibrated_rows(2000, 2), calibrated_rows(2000, 2, seed=1)
    fitted = TemperatureScaling().fit(first.round(2), y)
    silent(fitted.apply, predictions((10 * second).round(2), other_y))


def test_texts_that_repeat_in_both_files_by_chance_do_not_warn(calibrated_rows):
    rng = np.random.default_rng(0)
    frequent = [f"frequent {i}" for i in range(300)]

    def file(first):
        drawn = rng.choice(300, 500, p=np.arange(300, 0, -1) / 45150)
        return [frequent[i] if rng.random() < 0.4 else f"rare {first + k}" for k, i in enumerate(drawn)]

    fitted = TemperatureScaling().fit_predictions(predictions(*calibrated_rows(500, 3), texts=file(0)))
    for seed in range(5):
        silent(fitted.apply, predictions(*calibrated_rows(500, 3, seed=seed + 1), texts=file(1000 * (seed + 1))))


def test_rows_that_are_all_equal_tell_nothing():
    rows = predictions(np.zeros((50, 2)), np.arange(50) % 2)
    assert FittingRows.of(rows).share_among(predictions(np.zeros((50, 2)), np.zeros(50, dtype=int))) == 0.0


def test_unlabelled_rows_are_not_checked(calibrated_rows):
    logits, y = calibrated_rows(500, 3)
    silent(TemperatureScaling().fit(logits, y).apply, predictions(logits, np.full(500, -1)))


def test_the_check_survives_a_file_which_stays_small(calibrated_rows, tmp_path):
    rows = predictions(*calibrated_rows(50 * N_SAMPLED, 3), prefix="row", texts=texts(0, 50 * N_SAMPLED))
    TemperatureScaling().fit_predictions(rows).save(tmp_path / "c.json")
    assert (tmp_path / "c.json").stat().st_size < 40_000
    loaded = load_calibrator(tmp_path / "c.json")
    for again in (rows, rows.replace(texts=None), rows.rows(np.arange(0, rows.n_rows, 7))):
        with pytest.warns(LeakageWarning):
            loaded.apply(again)


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_apply_keeps_the_rows_and_describes_the_calibrator(name, calibrated_rows):
    fitted = make_calibrator(name).fit_predictions(predictions(*calibrated_rows(2000, 3), prefix="fit"))
    rows = predictions(*calibrated_rows(50, 3, seed=1), prefix="test", energies=np.arange(50.0), meta={"seed": 7})
    done = silent(fitted.apply, rows)
    np.testing.assert_array_equal(done.probs, fitted.predict_proba(rows.logits))
    np.testing.assert_array_equal(done.energies, rows.energies)
    assert list(done.ids) == list(rows.ids)
    assert done.meta["seed"] == 7
    assert (done.meta["calibrator"]["name"], done.meta["calibrator"]["n_rows"]) == (name, 2000)
    json.dumps(done.meta)


def test_probabilities_serve_as_logits(calibrated_rows):
    logits, y = calibrated_rows(1000, 3)
    by_logits = TemperatureScaling().fit_predictions(predictions(logits, y))
    by_probs = TemperatureScaling().fit_predictions(predictions(logits, y).replace(probs=softmax(logits, axis=1)))
    assert by_probs.temperature_ == pytest.approx(by_logits.temperature_, rel=1e-9)


def test_rows_without_a_label_are_left_out_of_the_fit(calibrated_rows):
    logits, y = calibrated_rows(600, 3)
    fitted = TemperatureScaling().fit_predictions(predictions(logits, np.where(np.arange(600) < 300, y, -1)))
    assert fitted.n_rows_ == 300
    assert fitted.temperature_ == TemperatureScaling().fit(logits[:300], y[:300]).temperature_


def test_other_label_names_are_refused(calibrated_rows):
    fitted = TemperatureScaling().fit_predictions(predictions(*calibrated_rows(500, 3)))
    with pytest.raises(EbmcalError, match="same order"):
        fitted.apply(predictions(*calibrated_rows(50, 3), names=("b", "a", "c")))


def test_copies_of_few_rows_are_still_few_rows(calibrated_rows):
    rows = predictions(*calibrated_rows(50, 3)).rows(np.tile(np.arange(50), 10))
    with pytest.warns(FewRowsWarning, match="50 different rows are few for temperature"):
        TemperatureScaling().fit_predictions(rows.replace(ids=[f"copy {i}" for i in range(500)]))


@pytest.mark.parametrize("decimals", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["logits", "float16", "probs", "normalised probs"])
def test_duplicates_without_texts(kind, decimals, calibrated_rows):
    logits, y = calibrated_rows(300, 2)
    probs = softmax(logits, axis=1)
    if decimals is not None:
        logits, probs = logits.round(decimals), probs.round(decimals)
    rows = predictions(logits.astype(np.float16) if kind == "float16" else logits, y)
    if "probs" in kind:
        rows = rows.replace(probs=probs / probs.sum(axis=1, keepdims=True) if kind == "normalised probs" else probs)
    assert len(np.unique(distinct_rows(rows))) == 300  # equal values of different rows are no duplicates
    tiled = rows.rows(np.tile(np.arange(300), 3))
    assert distinct_rows(tiled).tolist() == np.tile(np.arange(300), 3).tolist()


@pytest.mark.parametrize("n_votes", [7, 300, 501])
def test_equal_shares_of_votes_are_not_copies(n_votes):
    votes = np.random.default_rng(0).binomial(n_votes, 0.7, 2000) / n_votes
    given = Predictions([0, 1] * 1000, ("a", "b"), probs=np.c_[votes, 1 - votes])
    assert distinct_rows(given).max() == 1999


def test_equal_values_of_bins_are_not_copies():
    bins = np.random.default_rng(0).random(20)[np.arange(2000) % 20]
    given = Predictions([0, 1] * 1000, ("a", "b"), probs=np.c_[bins, 1 - bins])
    assert distinct_rows(given).max() == 1999


def test_duplicates_by_text_have_the_same_label(calibrated_rows):
    logits, _ = calibrated_rows(4, 2)
    rows = predictions(logits, np.array([0, 1, 0, 0]), texts=["x", "x", "y", "x"])
    assert distinct_rows(rows).tolist() == [0, 1, 2, 0]
    pairs = rows.replace(text_pairs=["p", "p", "p", "q"])
    assert distinct_rows(pairs).tolist() == [0, 1, 2, 3]


@pytest.fixture
def model_dir(tmp_path):
    folder = RunDir(tmp_path / "run").model(Trial("hidden", 1))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def write_training_rows(model_dir, rows):
    rows.write(RunDir(model_dir.parents[2]).predictions(Trial("hidden", 1), "train"))


@pytest.mark.parametrize("with_texts", [True, False])
def test_training_rows_of_a_run_are_refused_however_they_are_given(with_texts, model_dir, calibrated_rows):
    train = predictions(*calibrated_rows(1000, 3), texts=texts(0, 1000))
    write_training_rows(model_dir, train)
    given = predictions(train.logits.round(3), train.labels, prefix="mine", texts=texts(0, 1000))
    with pytest.raises(EbmcalError, match=r"\d+% of the 1,000 rows are training rows of the model"):
        check_held_out(given if with_texts else given.replace(texts=None), model_dir)
    assert check_held_out(given, model_dir, allow_mismatch=True).n_rows == 1000
    fresh = predictions(*calibrated_rows(500, 3, seed=1), texts=texts(2000, 2500))
    assert silent(check_held_out, fresh if with_texts else fresh.replace(texts=None), model_dir).n_rows == 500


def test_evaluating_training_rows_warns(model_dir, calibrated_rows):
    rows = predictions(*calibrated_rows(1000, 3), texts=texts(0, 1000))
    write_training_rows(model_dir, rows)
    given = rows.replace(meta={"model": str(model_dir)})
    with pytest.warns(LeakageWarning, match="mine: about 100% of the 1,000 rows are training rows"):
        evaluate({"mine": given}, n_resamples=0)
    for other in (given.replace(texts=texts(5000, 6000)), given.replace(meta=given.meta | {"split": "train"}), rows):
        silent(evaluate, {"mine": other})
    (model_dir / "ebmcal.json").write_text("damaged")
    silent(evaluate, {"mine": given.replace(meta=given.meta | {"weights": "unknown"})})


def test_the_refusal_names_the_share_and_what_to_do(model_dir, calibrated_rows):
    """A run with cross-fitting has no calibration split that could be passed instead."""
    write_training_rows(model_dir, predictions(*calibrated_rows(1000, 3), texts=texts(0, 1000)))
    rows = predictions(*calibrated_rows(500, 3, seed=1), texts=texts(785, 1285))
    with pytest.raises(EbmcalError, match="43% of the 500 rows are training rows") as refused:
        check_held_out(rows, model_dir, where="held.csv")
    for words in ("held.csv: ", "less than 10%", "rows that are not in its training file", "--calibration holdout"):
        assert words in str(refused.value)


def test_a_few_training_texts_are_left_out(model_dir, calibrated_rows):
    write_training_rows(model_dir, predictions(*calibrated_rows(1000, 3), texts=texts(0, 1000)))
    rows = predictions(*calibrated_rows(500, 3, seed=1), texts=texts(980, 1480))
    with pytest.warns(LeakageWarning, match="20 of 500 rows have training texts"):
        assert check_held_out(rows, model_dir).texts == texts(1000, 1480)


def test_out_of_fold_predictions_of_training_rows_may_calibrate(model_dir, calibrated_rows):
    train = predictions(*calibrated_rows(1000, 3), texts=texts(0, 1000))
    write_training_rows(model_dir, train)
    assert silent(check_held_out, train.replace(meta={"split": "out_of_fold"}), model_dir).n_rows == 1000


def test_a_model_elsewhere_remembers_its_training_texts(tmp_path, calibrated_rows):
    update_card(tmp_path, **{TRAINING_ROWS: FittingRows.of_texts(texts(0, 3000)).to_json()})
    rows = predictions(*calibrated_rows(1000, 3), texts=texts(500, 1500))
    with pytest.raises(EbmcalError, match=r"rows are training rows"):
        check_held_out(rows, tmp_path)
    assert silent(check_held_out, rows.replace(texts=texts(5000, 6000)), tmp_path).n_rows == 1000
    update_card(tmp_path, **{TRAINING_ROWS: {"sketches": 3}})
    with pytest.raises(EbmcalError, match=r"'training_rows' in ebmcal.json .* is damaged"):
        check_held_out(rows, tmp_path)


def test_rows_of_one_class_are_refused(model_dir, calibrated_rows):
    rows = predictions(calibrated_rows(50, 3)[0], np.full(50, 2))
    for allow_mismatch in (True, False):
        with pytest.raises(EbmcalError, match="all labels are 'c'"):
            check_held_out(rows, model_dir, allow_mismatch=allow_mismatch)


def test_a_model_is_calibrated_without_its_few_training_rows(model_dir, calibrated_rows):
    pytest.importorskip("torch", reason="a Model needs torch")
    from ebmcal.model import Model

    write_training_rows(model_dir, predictions(*calibrated_rows(1000, 3), texts=texts(0, 1000)))
    rows = predictions(*calibrated_rows(500, 3, seed=1), texts=texts(970, 1470))
    model = Model(model_dir, SimpleNamespace(label_names=("a", "b", "c")), {})
    with pytest.warns(LeakageWarning, match="30 of 500 rows have training texts of the model; they are left out"):
        fitted = model.calibrate(rows).calibrator
    assert fitted.n_rows_ == 470
    assert fitted.temperature_ == TemperatureScaling().fit(rows.logits[30:], rows.labels[30:]).temperature_
    with pytest.raises(EbmcalError, match="rows are training rows of the model"):
        model.calibrate(rows.replace(texts=texts(900, 1400)))
