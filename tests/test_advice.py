"""The advice at the end of a run, from calibration or out-of-fold rows, for models with different calibration."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from ebmcal import Predictions
from ebmcal.advice import ConfidenceGap, confidence_gap, is_action, recommend
from ebmcal.run_dir import Trial


def draw(scale, n=2000, seed=0, quality=1.0):
    """Rows of a two-class model that is calibrated at scale 1 and overconfident above."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 2, n)
    labels = (rng.random(n) < 1 / (1 + np.exp(-true))).astype(int)
    seen = quality * true + (1 - quality) * rng.normal(0, 2, n)
    logits = np.stack([np.zeros(n), scale * seen], axis=1)
    return Predictions(labels, ("no", "yes"), logits=logits, ids=[f"r{i}" for i in range(n)])


def perfect(n=40):
    """All rows correct, so the temperature goes to its lower bound."""
    rows = draw(1.0, n=n)
    return rows.replace(logits=np.eye(2)[rows.labels])


def advice_for(split="calibration", test=None, **methods):
    """The advice for one seed of each method, or several given as a list."""
    runs = {m: rows if isinstance(rows, list) else [rows] for m, rows in methods.items()}
    trials = {Trial(m, s): {split: rows} for m, seeds in runs.items() for s, rows in enumerate(seeds, start=1)}
    return recommend({t: splits | ({"test": test} if test else {}) for t, splits in trials.items()})


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (3.0, "baseline is overconfident by"),
        (0.3, "baseline is underconfident by"),
        (1.0, "baseline: no clear miscalibration on 2,000 calibration rows"),
    ],
)
def test_the_confidence_of_the_baseline(scale, words):
    use, sentence = advice_for(baseline=draw(scale)).sentences[:2]
    assert use.startswith("Use baseline")
    assert words in sentence
    assert ("With temperature scaling (T = " in sentence) == ("confident by" in sentence)
    assert ("Training longer" in sentence) == ("underconfident" in sentence)


def test_a_temperature_is_used_if_it_lowers_the_nll_even_if_that_is_not_significant():
    advice = advice_for(baseline=draw(2.0, n=100, seed=2))
    plain, scaled = sorted(advice.evidence, key=lambda candidate: candidate["calibrator"] is not None)
    assert scaled["nll"] < plain["nll"]
    assert advice.calibrator == "temperature (dev)"
    unchanged = advice_for(baseline=draw(2.0, n=100, seed=0))
    assert unchanged.calibrator is None, "here it does not"
    assert "A temperature does not lower the NLL." in " ".join(unchanged.sentences)


def test_few_rows_do_not_prove_miscalibration():
    # 26 rows, mean confidence 95%, accuracy 96%: not overconfident, whatever the fitted temperature is.
    labels = np.array([0] * 25 + [1])
    rows = Predictions(labels, ("no", "yes"), probs=np.tile([0.95, 0.05], (26, 1)))
    assert confidence_gap(rows.labels, rows.probs).verdict is None
    sentences = advice_for(baseline=rows).sentences
    assert not any("confident by" in sentence for sentence in sentences)


def test_correct_rows_alone_do_not_prove_underconfidence():
    probs = np.tile([0.97, 0.03], (30, 1))
    assert confidence_gap(np.zeros(30, int), probs).verdict is None
    assert confidence_gap(np.zeros(3000, int), np.tile([0.97, 0.03], (3000, 1))).verdict == "underconfident"


def test_the_verdict_has_its_false_alarm_rate():
    alarms = 0
    for seed in range(400):
        rows = draw(1.0, n=60, seed=seed)
        alarms += confidence_gap(rows.labels, rows.probs).verdict is not None
    assert alarms / 400 < 0.075


def test_verdicts_state_the_size_and_the_rows():
    text = ConfidenceGap(0.953, 0.784, 0.025, 600).describe("mine", "test row")
    assert text == (
        "mine is overconfident by 16.9 ± 2.5 points: mean confidence 95.3%, accuracy 78.4% on 600 test rows."
    )


def test_temperature_is_chosen_if_it_helps_and_the_better_model_wins():
    advice = advice_for(baseline=draw(6.0, quality=0.7), hidden=draw(2.0))
    assert (advice.trial, advice.calibrator) == (Trial("hidden", 1), "temperature (dev)")
    assert advice.evidence[0]["temperature"] == pytest.approx(2.0, rel=0.15)
    assert advice.sentences[0].startswith("Use hidden + temperature (dev). On 2,000 calibration rows")
    assert "it is right in 79.5% (baseline: 76.9%)" in advice.sentences[0]
    assert "with a mean confidence of 79.1% (baseline: 93.9%)" in advice.sentences[0], "that of the calibrated model"
    assert "hidden helped as trained (NLL" in advice.sentences[2]
    assert "on the calibration rows" in advice.sentences[2]
    assert "NLL" not in advice.sentences[0], "words that everyone understands"


def test_the_effect_of_the_energy_is_also_told_with_temperature():
    # The energy does here what the temperature does, so that nothing is left of it.
    advice = advice_for(baseline=draw(3.0), hidden=draw(1.0))
    assert (advice.trial.method, advice.calibrator) == ("baseline", "temperature (dev)")
    assert re.search(
        r"hidden helped as trained \(NLL 0\.4\d\d instead of 0\.6\d\d\), but made no clear difference with temperature",
        advice.sentences[2],
    )


def test_out_of_fold_rows_are_preferred_and_named():
    advice = advice_for("out_of_fold", baseline=draw(3.0))
    assert (advice.calibrator, advice.rows) == ("temperature (cross-fit)", "out-of-fold")
    assert "on 2,000 out-of-fold rows" in advice.sentences[1]
    both = {Trial("baseline", 1): {"calibration": draw(1.0), "out_of_fold": draw(3.0), "test": draw(1.0)}}
    assert recommend(both).calibrator == "temperature (cross-fit)"


def test_the_chosen_method_is_compared_with_the_baseline():
    # mixup is the worst as trained and the best with a temperature
    advice = advice_for(baseline=draw(2.0, quality=0.5), hidden=draw(2.0, quality=0.6), mixup=draw(20.0))
    assert advice.trial.method == "mixup"
    assert re.search(r"mixup hurt as trained \(NLL .*\), but helped with temperature \(NLL", advice.sentences[2])


def test_the_simpler_of_two_equals_is_chosen():
    rows = draw(1.5)
    advice = advice_for(baseline=rows, hidden=rows)
    assert advice.trial.method == "baseline"
    assert "made no clear difference" in advice.sentences[2]
    advice = advice_for(**{"hidden": rows, "label-smoothing": rows})
    assert advice.trial.method == "label-smoothing", "it needs no noise"
    assert "No baseline was trained" in " ".join(advice.sentences)


def test_the_frozen_probe_is_recommended_only_if_it_is_clearly_better():
    good, bad = draw(1.0), draw(1.0, quality=0.3)
    advice = advice_for(baseline=bad, hidden=bad, **{"frozen-probe": good})
    assert advice.trial.method == "frozen-probe"
    assert "finetuning was not worth it" in advice.sentences[1]
    advice = advice_for(baseline=good, **{"frozen-probe": good})
    assert advice.trial.method == "baseline"
    assert not any("frozen-probe" in sentence for sentence in advice.sentences), "it is not right more often"
    flipped = good.labels.copy()
    flipped[:2] = good.predicted[:2]  # the probe may be right more often, by too few rows to be better
    rows = good.replace(labels=flipped)
    logits = rows.logits.copy()
    logits[2:40] *= np.where(rows.predicted[2:40] == rows.labels[2:40], 1, -0.01)[:, None]
    advice = advice_for(baseline=rows, **{"frozen-probe": rows.replace(logits=logits)})
    assert advice.trial.method == "baseline"
    assert "frozen-probe, a logistic regression on the encoder as it is, is right in" in advice.sentences[1]
    assert "not clearly better" in advice.sentences[1]


def test_seeds_that_disagree_are_no_evidence():
    base, runs = [draw(2.0, seed=3)] * 3, [draw(scale, seed=3) for scale in (1.0, 2.0, 4.0)]
    advice = advice_for(baseline=base, hidden=runs)
    assert "made no clear difference" in advice.sentences[2]
    assert advice.trial.seed == 1


def test_rows_are_matched_by_id():
    rows = draw(3.0)
    shuffled = rows.rows(np.random.default_rng(0).permutation(1500))
    advice = advice_for(baseline=rows, hidden=shuffled)
    assert advice.n_rows == 1500
    shown = "hidden made no clear difference as trained and with temperature."
    assert advice.sentences[2] == f"Compared with baseline on the calibration rows, {shown}", "no equal numbers"


def test_a_temperature_at_its_bound_is_not_recommended():
    advice = advice_for(baseline=perfect())
    assert advice.calibrator is None
    assert "the fit reached its bound" in advice.sentences[1]
    assert sum("bound" in sentence for sentence in advice.sentences) == 1
    both = advice_for(baseline=draw(1.0, n=40), hidden=perfect())
    assert any("The temperature of hidden reached its bound" in s for s in both.sentences)


def test_models_that_learned_nothing_do_not_become_more_confident():
    rng = np.random.default_rng(1)
    labels, logits = rng.integers(150, size=20), rng.normal(0, 0.01, (20, 150))
    logits[np.arange(1), labels[:1]] += 1.0  # one row of twenty is right
    advice = advice_for(baseline=Predictions(labels, tuple(map(str, range(150))), logits=logits))
    assert advice.calibrator is None


def test_models_that_learned_nothing():
    rows = draw(1.0)
    advice = advice_for(baseline=rows.replace(logits=np.zeros_like(rows.logits)))
    assert "No model is more accurate than always predicting the most frequent class" in advice.sentences[0]
    assert not any(line.startswith("Use ") for line in advice.sentences)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (draw(1.0, n=4), "4 calibration rows: too few to recommend a model"),
        (draw(1.0, n=300).rows(draw(1.0, n=300).labels == 1), "All calibration rows have the label yes"),
        (draw(1.0, n=30).replace(labels=np.full(30, -1)), "No calibration row has a label"),
    ],
)
def test_rows_that_allow_no_recommendation(rows, words):
    advice = advice_for(baseline=rows, hidden=rows)
    assert words in advice.sentences[0]
    assert (advice.trial, advice.calibrator, advice.evidence) == (Trial("baseline", 1), None, ())


def test_without_calibration_rows_there_is_no_recommendation():
    advice = advice_for("train", baseline=draw(1.0))
    assert "There are no calibration rows" in advice.sentences[0]
    assert advice.calibrator is None


def test_a_trial_without_calibration_rows_does_not_prevent_a_recommendation():
    rows = draw(2.0)
    found = recommend({Trial("baseline", 1): {"out_of_fold": rows, "test": rows}, Trial("hidden", 1): {"test": rows}})
    assert (found.trial.method, found.calibrator) == ("baseline", "temperature (cross-fit)")


def test_cautions():
    few = advice_for(baseline=draw(1.0, n=60), test=draw(1.0, n=90)).sentences
    assert sum("Only 60 calibration rows and 90 test rows" in sentence for sentence in few) == 1
    (caution,) = (sentence for sentence in few if "Only" in sentence)
    assert caution.endswith("Give at least 100 calibration rows (--calibration FILE) and 200 test rows (--test FILE).")
    assert is_action(caution), "it is shown under what to do"
    (caution,) = (s for s in advice_for("out_of_fold", baseline=draw(1.0, n=60)).sentences if "Only" in s)
    assert caution.endswith("Give at least 100 training rows (--train FILE).")
    rows = draw(1.0)
    three = Predictions(rows.labels, ("no", "yes", "maybe"), probs=np.c_[rows.probs * 0.9, np.full(2000, 0.1)])
    assert any("No calibration row has the label maybe" in s for s in advice_for(baseline=three).sentences)
    enough = advice_for(baseline=rows, test=draw(1.0, n=5000)).sentences
    assert not any("Only" in sentence for sentence in enough)


def test_at_most_six_sentences_and_none_twice():
    rows = draw(0.3, n=90)
    three = Predictions(rows.labels, ("no", "yes", "maybe"), probs=np.c_[rows.probs * 0.9, np.full(90, 0.1)])
    advice = advice_for(baseline=three, hidden=three)
    first = ("These labels may be the same: 'a' and 'A'.", "The frozen probe is better.")
    found = replace(advice, sentences=(*first, first[0], *advice.sentences)).sentences
    assert found[:2] == first
    assert found[2].startswith("Use baseline")
    assert "underconfident" in found[3]
    assert len(found) == 6
    assert len(advice.sentences) <= 6
    assert "Only 90 calibration rows" in advice.sentences[2], "more important than the effect of the energy"


def test_the_advice_is_json():
    advice = advice_for(baseline=draw(3.0))
    document = json.loads(json.dumps(advice.to_json(), allow_nan=False))
    assert document["trial"] == "baseline-seed1"
    assert document["evidence"][0]["calibrator"] == "temperature (dev)"
    assert (document["rows"], document["n_rows"]) == ("calibration", 2000)


def test_a_single_row_has_no_verdict():
    assert confidence_gap(np.array([1]), np.array([[0.99, 0.01]])).verdict is None


def test_rows_with_repeated_ids_are_all_used():
    rows = draw(3.0).replace(ids=["same"] * 2000)
    advice = advice_for(baseline=rows)
    assert advice.n_rows == 2000
    assert advice.evidence[-1]["nll"] == pytest.approx(advice_for(baseline=draw(3.0)).evidence[-1]["nll"])
