"""`evaluate_trials`: the trials of a run with their calibrators, over seeds, as ensembles, against the baseline."""

import numpy as np
import pytest
from evaluation_cases import make_split

from ebmcal.evaluation import evaluate_trials
from ebmcal.run_dir import Trial

SCALES = {"baseline": 3.0, "hidden": 1.2}


def make_trial(trial, splits=("test", "calibration", "train")):
    return {split: make_split(SCALES[trial.method], trial.seed, draw) for draw, split in enumerate(splits)}


@pytest.fixture(scope="module")
def evaluation():
    trials = [Trial(m, s) for s in (1, 2, 3) for m in ("hidden", "baseline") if (m, s) != ("hidden", 3)]
    predictions = {trial: make_trial(trial) for trial in trials}
    for splits in predictions.values():
        splits["ood_books"] = make_split(0.5, 9, 9)
    return evaluate_trials(predictions, posthoc=["temperature"], n_resamples=100)


def rows_of(evaluation, **wanted):
    frame = evaluation.results
    for column, value in wanted.items():
        frame = frame[frame[column].isna() if value is None else frame[column] == value]
    return frame


def test_every_trial_has_its_rows(evaluation):
    found = rows_of(evaluation, method="hidden", metric="nll", seed=1)
    assert found["model"].tolist() == ["hidden-seed1"] * 3
    assert found["calibrator"].tolist() == [None, "temperature (train)", "temperature (dev)"]
    assert found["note"].tolist()[1].startswith("T = ")


def test_means_over_seeds_have_an_interval(evaluation):
    pooled = rows_of(evaluation, model="hidden", metric="nll", calibrator=None)
    assert pooled["n_seeds"].item() == 2
    assert pooled["seed"].isna().all()
    values = rows_of(evaluation, method="hidden", metric="nll", calibrator=None).dropna(subset=["seed"])["value"]
    assert pooled["value"].item() == pytest.approx(values.mean())
    assert pooled["low"].item() < values.min() < values.max() < pooled["high"].item()
    assert rows_of(evaluation, model="baseline", metric="nll", calibrator="temperature (dev)")["n_seeds"].item() == 3
    assert rows_of(evaluation, model="hidden", metric="ece_classwise", calibrator=None)["noise_floor"].item() > 0


def test_methods_are_compared_with_the_baseline_over_shared_seeds(evaluation):
    frame = evaluation.comparisons
    assert set(zip(frame["model"], frame["reference"], frame["n_seeds"], strict=True)) == {("hidden", "baseline", 2)}
    nll = frame[frame["metric"] == "nll"].iloc[0]
    assert nll["high"] < 0
    assert nll["p_value"] <= nll["p_adjusted"] < 0.05
    excludes_zero = (frame["low"] > 0) | (frame["high"] < 0)
    assert ((frame["p_value"] < 0.05) == excludes_zero).all()


def test_the_seeds_of_a_method_are_an_ensemble(evaluation):
    found = rows_of(evaluation, model="hidden ensemble", metric="nll")
    assert found["calibrator"].tolist() == [None, "temperature (dev)"]
    assert found["note"].iloc[0] == "mean of 2 seeds"
    probs = np.mean([make_split(1.2, seed).probs for seed in (1, 2)], axis=0)
    expected = -np.log(probs[np.arange(400), make_split(1.2, 1).labels]).mean()
    assert found["value"].iloc[0] == pytest.approx(expected)


def test_detection_of_other_texts(evaluation):
    assert set(evaluation.detection["texts"]) == {"ood_books"}
    assert set(evaluation.detection["score"]) == {"energy", "max_prob", "entropy"}
    assert evaluation.detection["seed"].notna().all()


def test_verdicts_are_one_per_method(evaluation):
    hidden, baseline = evaluation.verdicts()
    assert hidden.startswith("hidden")
    assert baseline.startswith("baseline is overconfident")


def test_calibrators_on_out_of_fold_predictions_are_cross_fitted():
    predictions = {Trial("baseline", s): make_trial(Trial("baseline", s), ("test", "out_of_fold")) for s in (1, 2)}
    found = evaluate_trials(predictions, posthoc=["temperature"], n_resamples=10)
    assert set(found.results["calibrator"].dropna()) == {"temperature (cross-fit)"}
    plain, fitted = (rows_of(found, model="baseline-seed1", metric="nll", calibrator=c) for c in (
        None, "temperature (cross-fit)"
    ))  # fmt: skip
    assert fitted["value"].item() < plain["value"].item()
    assert len(rows_of(found, model="baseline ensemble", metric="nll")) == 2


def test_a_calibrator_that_cannot_be_fitted_leaves_the_rest():
    predictions = {Trial("baseline", seed): make_trial(Trial("baseline", seed)) for seed in (1, 2)}
    for splits in predictions.values():
        rows = splits["calibration"]
        splits["calibration"] = rows.rows(rows.labels == 1)
    found = evaluate_trials(predictions, posthoc=["temperature"], n_resamples=10)
    assert set(found.results["calibrator"].dropna()) == {"temperature (train)"}
    assert list(found.meta["not_fitted"]) == ["temperature (dev)"]
    assert "split calibration: all labels are 'yes'" in found.meta["not_fitted"]["temperature (dev)"]


def test_trials_with_other_rows_are_neither_averaged_nor_compared():
    splits = {
        Trial(m, s): {"test": make_split(2.0, s, draw=s + len(m))} for m in ("baseline", "hidden") for s in (1, 2)
    }
    found = evaluate_trials(splits, n_resamples=10)
    assert not len(found.comparisons)
    assert set(found.meta["not_fitted"]) == {"baseline ensemble", "hidden ensemble"}


def test_few_rows_and_test_sets_without_labels():
    rows = make_split(2.0, 1, n=12)
    splits = {"test": rows, "test_other": rows.replace(labels=np.full(12, -1)), "calibration": rows}
    trials = {Trial("baseline", 1): splits, Trial("hidden", 1): splits}
    found = evaluate_trials(trials, posthoc=["temperature", "scaling-binning"], n_resamples=5)
    assert set(found.results["test_set"]) == {"test"}
    notes = rows_of(found, metric="ece_classwise", calibrator=None)["note"]
    assert all("12 rows are few" in note for note in notes)
    assert found.comparisons.empty, "too few rows are not tested"
    assert "Differences were not tested: 12 rows are too few, at least 30 are needed." in found.table().notes
    assert not any(cell.is_best for row in found.table().cells() for cell in row), "nothing is best by chance"
