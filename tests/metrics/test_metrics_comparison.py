"""Differences between models: interval and p-value agree, over rows and seeds; rows and seeds needed."""

import numpy as np
import pytest
from metric_cases import make_rows

from ebmcal import EbmcalError
from ebmcal.metrics import METRICS, holm, paired_test
from ebmcal.metrics.comparison import StandardError, compare_estimates, mean_over_seeds
from ebmcal.metrics.intervals import estimate
from ebmcal.predictions import softmax

NAMES = sorted(METRICS)


@pytest.mark.parametrize("name", ["ece_classwise", "ece_top_label", "smooth_ece", "nll", "brier"])
def test_a_difference_is_found_with_its_sign(name):
    labels, probs = make_rows(1000, noise=2.0)  # overconfident
    softer = softmax(np.log(probs) / 2)
    test = paired_test(name, labels, probs, softer, n_resamples=200)
    assert 0 < test.low <= test.difference <= test.high
    assert test.p_value < 0.01
    back = paired_test(name, labels, softer, probs, n_resamples=200)
    assert back.difference == -test.difference
    assert back.p_value == pytest.approx(test.p_value)


@pytest.mark.parametrize("name", NAMES)
def test_equal_models_do_not_differ(name):
    labels, probs = make_rows(300)
    test = paired_test(name, labels, probs, probs.copy(), n_resamples=50)
    assert (test.difference, test.p_value) == (0.0, 1.0)
    assert -0.01 < test.low <= 0 <= test.high < 0.01


@pytest.mark.parametrize("name", ["accuracy", "ece_classwise", "ece_top_label", "nll", "aurc"])
def test_p_values_without_a_difference_are_fair(name):
    values = []
    for seed in range(60):
        labels, probs = make_rows(200, seed=seed)
        rng = np.random.default_rng(seed + 1000)
        a, b = (softmax(np.log(probs) + rng.normal(size=probs.shape)) for _ in range(2))
        values.append(paired_test(name, labels, a, b, n_resamples=100).p_value)
    assert np.mean(values) > 0.4
    assert np.mean(np.array(values) < 0.05) < 0.12


def test_interval_and_p_value_never_contradict_each_other():
    rng, excluded = np.random.default_rng(0), []
    for case in range(6 * len(NAMES)):
        n, n_classes = int(rng.integers(3, 400)), int(rng.integers(2, 5))
        labels, probs = make_rows(n, n_classes, seed=case)
        other = softmax(np.log(probs) * rng.uniform(0.3, 1.5) + rng.normal(size=probs.shape) * rng.uniform(0, 1))
        test = paired_test(NAMES[case % len(NAMES)], labels, probs, other, n_resamples=40)
        if np.isnan(test.difference):
            continue
        excludes_zero = test.low > 0 or test.high < 0
        assert (test.p_value < 0.05) == excludes_zero
        assert test.low <= test.difference <= test.high
        assert test.rows_needed is None or not excludes_zero
        excluded.append(excludes_zero)
    assert 15 < sum(excluded) < len(excluded) - 15


def test_three_rows_that_agree_prove_nothing():
    assert paired_test("accuracy", [0] * 3, [[0.9, 0.1]] * 3, [[0.1, 0.9]] * 3).p_value > 0.1
    assert paired_test("accuracy", [0] * 30, [[0.9, 0.1]] * 30, [[0.1, 0.9]] * 30).p_value < 1e-6


def test_models_that_agree_on_few_rows_may_differ_on_others():
    test = paired_test("accuracy", [0] * 33, [[0.9, 0.1]] * 33, [[0.8, 0.2]] * 33)
    assert test.difference == 0
    assert test.high == -test.low == pytest.approx(0.087, abs=0.005)  # 2.04 · √2 / 33


@pytest.mark.parametrize(("n", "accuracy"), [(33, 0.97), (100, 0.97), (200, 0.985), (300, 0.97)])
def test_calibration_errors_of_few_wrong_answers_prove_nothing(n, accuracy):
    """One model is too sure, the other too unsure by as much, so their calibration errors are equal."""
    rng, found = np.random.default_rng(n), []
    for _ in range(150):
        labels = (rng.random(n) > accuracy).astype(int)
        sure, unsure = (np.tile([p, 1 - p], (n, 1)) for p in (accuracy + 0.012, accuracy - 0.012))
        found.append(paired_test("ece_top_label", labels, sure, unsure, n_resamples=100).p_value < 0.05)
    assert np.mean(found) < 0.1


def test_the_standard_error_of_a_mean_is_the_usual_one():
    labels, probs = make_rows(500)
    softer = softmax(np.log(probs) / 2)
    test = paired_test("brier", labels, probs, softer, n_resamples=2000)
    one_hot = np.eye(3)[labels]
    each = ((probs - one_hot) ** 2).sum(axis=1) - ((softer - one_hot) ** 2).sum(axis=1)
    assert test.standard_error == pytest.approx(each.std() / np.sqrt(500), rel=0.06)


def test_rows_needed_would_settle_it():
    labels, probs = make_rows(20_000, noise=1.2)
    other = softmax(np.log(probs) / 1.15)
    few = paired_test("nll", labels[:100], probs[:100], other[:100], n_resamples=500)
    assert few.p_value >= 0.05
    assert 100 < few.rows_needed < 20_000
    assert paired_test("nll", labels, probs, other, n_resamples=100).rows_needed is None
    for metric in ("accuracy", "ece_classwise"):  # no difference, and one that is probably noise
        test = paired_test(metric, labels[:100], probs[:100], other[:100], n_resamples=500)
        assert test.p_value > 0.5
        assert test.rows_needed is None


def estimates(seeds, name="nll", spread=0.0, n=300):
    """The same rows, evaluated by models that differ by seed: noise on the logits, and a temperature of their own."""
    labels, probs = make_rows(n)
    found = []
    for seed in seeds:
        noise = np.random.default_rng(seed).normal(size=probs.shape) * 0.1
        logits = (np.log(probs) + noise) * np.exp((seed % 4 - 1) * spread)
        found.append(estimate({"it": (METRICS[name], {})}, labels, softmax(logits), n_resamples=300, seed=0)["it"])
    return found


@pytest.mark.parametrize("name", ["nll", "ece_classwise", "smooth_ece"])
def test_the_interval_of_a_mean_over_seeds_widens_if_seeds_disagree(name):
    alike, apart = (mean_over_seeds(estimates(range(4), name, spread)) for spread in (0.0, 0.5))
    single = estimates([0], name)[0].interval()
    assert mean_over_seeds(estimates([0], name)) == single
    assert apart.high - apart.low > 1.2 * (alike.high - alike.low)
    assert alike.high - alike.low > 0.7 * (single.high - single.low)  # the rows are the same for every seed


def test_the_interval_of_a_mean_over_seeds_covers_seeds_and_rows():
    labels, probs = make_rows(4000, seed=12345)
    shifts = np.random.default_rng(1).normal(size=200)[:, None] * np.array([1.0, 0.0, 0.0])  # a bias per seed
    brier = METRICS["brier"]
    truth = np.mean([brier.function(labels, probs=softmax(np.log(probs) + shift)) for shift in shifts])
    covered, rng = 0, np.random.default_rng(0)
    for trial in range(100):
        labels, probs = make_rows(150, seed=trial)
        runs = [softmax(np.log(probs) + rng.normal() * np.array([1.0, 0.0, 0.0])) for _ in range(4)]
        found = [estimate({"it": (brier, {})}, labels, p, n_resamples=60, seed=trial)["it"] for p in runs]
        interval = mean_over_seeds(found)
        covered += interval.low <= truth <= interval.high
    assert covered >= 90


def test_seeds_that_disagree_are_weak_evidence():
    ours, theirs = estimates(range(3), spread=0.6, n=3000), estimates(range(8, 11), spread=0.1, n=3000)
    single, test = compare_estimates(ours[:1], theirs[:1]), compare_estimates(ours, theirs)
    assert test.df < 10 < single.df
    assert test.p_value >= 0.05
    assert test.seeds_needed > 3
    assert test.rows_needed is None


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
@pytest.mark.parametrize("seeds_over_rows", [0.3, 3.0, 10.0])
def test_the_margin_over_few_seeds_covers(n_seeds, seeds_over_rows):
    """Normal means with a truth of 0: a single number of degrees of freedom would cover 87% with two seeds."""
    rng, n_draws = np.random.default_rng(0), 1500
    deviation = np.sqrt(seeds_over_rows * n_seeds)  # of a seed; the rows have a variance of 1
    covered = 0
    for rows, values in zip(rng.normal(size=n_draws), rng.normal(0, deviation, (n_draws, n_seeds)), strict=True):
        error = StandardError.from_variances(1.0, values.tolist(), n_rows=300)
        covered += abs(rows + values.mean()) <= error.margin
    assert covered / n_draws > 0.945


def test_holm_by_hand():
    assert holm([0.01, 0.02, 0.5]) == pytest.approx([0.03, 0.04, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_what_cannot_be_compared_is_rejected():
    labels, probs = make_rows(50)
    with pytest.raises(EbmcalError, match="same classes for both models, got 3 and 4"):
        paired_test("nll", labels, probs, make_rows(50, 4)[1])
    with pytest.raises(EbmcalError, match="labels has 50 rows"):
        paired_test("nll", labels, make_rows(40)[1], make_rows(40)[1])
