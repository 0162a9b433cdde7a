"""Differences between models: interval and p-value that agree, over rows, seeds and tasks; what would settle them."""

import numpy as np
import pytest
from cases import made

from ebmcal.errors import EbmcalError
from ebmcal.metrics import METRICS, holm, paired_test, resampling
from ebmcal.metrics.comparing import Spread, compare_measured, mean_of_tests, mean_over_seeds
from ebmcal.metrics.intervals import measure
from ebmcal.predictions.arrays import softmax

NAMES = sorted(METRICS)


def test_paired_test_finds_a_difference_and_its_sign():
    labels, probs = made(1000, noise=2.0)  # overconfident
    softer = softmax(np.log(probs) / 2)
    for name in ("ece_classwise", "ece_top_label", "smooth_ece", "nll", "brier"):
        test = paired_test(name, labels, probs, softer, n_resamples=200)
        assert test.low > 0, name
        assert test.difference > 0
        assert test.low <= test.difference <= test.high
        assert test.p_value < 0.01
        back = paired_test(name, labels, softer, probs, n_resamples=200)
        assert back.difference == -test.difference
        assert back.p_value == pytest.approx(test.p_value)
    same_order = paired_test("accuracy", labels, probs, softer, n_resamples=200)
    assert (same_order.difference, same_order.p_value) == (0.0, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_paired_test_of_equal_methods(name):
    labels, probs = made(300)
    test = paired_test(name, labels, probs, probs.copy(), n_resamples=50)
    assert (test.difference, test.low, test.high, test.p_value) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("name", ["accuracy", "ece_classwise", "ece_top_label", "nll", "aurc"])
def test_p_values_are_fair_when_there_is_no_difference(name):
    values = []
    for seed in range(60):
        labels, probs = made(200, seed=seed)
        rng = np.random.default_rng(seed + 1000)
        a, b = (softmax(np.log(probs) + rng.normal(size=probs.shape)) for _ in range(2))
        values.append(paired_test(name, labels, a, b, n_resamples=100).p_value)
    assert np.mean(values) > 0.4
    assert np.mean(np.array(values) < 0.05) < 0.12


def test_interval_and_p_value_never_contradict_each_other():
    rng, seen = np.random.default_rng(0), []
    for case in range(192):
        n, n_classes = int(rng.integers(3, 400)), int(rng.integers(2, 5))
        labels, probs = made(n, n_classes, seed=case)
        other = softmax(np.log(probs) * rng.uniform(0.3, 1.5) + rng.normal(size=probs.shape) * rng.uniform(0, 1))
        test = paired_test(NAMES[case % len(NAMES)], labels, probs, other, n_resamples=40, warn=False)
        if np.isnan(test.difference):
            continue
        excludes_zero = test.low > 0 or test.high < 0
        assert (test.p_value < 0.05) == excludes_zero
        assert test.low <= test.difference <= test.high
        assert (test.rows_needed is None) or not excludes_zero
        seen.append(excludes_zero)
    assert 30 < sum(seen) < 160


def test_three_rows_that_agree_prove_nothing():
    assert paired_test("accuracy", [0] * 3, [[0.9, 0.1]] * 3, [[0.1, 0.9]] * 3, warn=False).p_value > 0.1
    assert paired_test("accuracy", [0] * 30, [[0.9, 0.1]] * 30, [[0.1, 0.9]] * 30, warn=False).p_value < 1e-6


def test_the_standard_error_of_a_mean_is_the_usual_one():
    labels, probs = made(500)
    softer = softmax(np.log(probs) / 2)
    test = paired_test("brier", labels, probs, softer, n_resamples=2000)
    onehot = np.eye(3)[labels]
    each = ((probs - onehot) ** 2).sum(axis=1) - ((softer - onehot) ** 2).sum(axis=1)
    assert test.standard_error == pytest.approx(each.std() / np.sqrt(500), rel=0.06)


def test_rows_needed_would_settle_it():
    labels, probs = made(20_000, noise=1.2)
    other = softmax(np.log(probs) / 1.15)
    few = paired_test("nll", labels[100:140], probs[100:140], other[100:140], n_resamples=500)
    assert few.p_value >= 0.05
    assert 40 < few.rows_needed < 20_000
    assert paired_test("nll", labels, probs, other, n_resamples=100).rows_needed is None


def measured(seeds, name="nll", spread=0.0, n=300):
    """The same rows judged by models that differ by seed: noise on the logits, and a temperature of their own."""
    labels, probs = made(n)
    out = []
    for seed in seeds:
        noise = np.random.default_rng(seed).normal(size=probs.shape) * 0.1
        logits = (np.log(probs) + noise) * np.exp((seed % 4 - 1) * spread)
        out.append(measure({"it": (METRICS[name], {})}, labels, softmax(logits), n_resamples=300, seed=0)["it"])
    return out


@pytest.mark.parametrize("name", ["nll", "ece_classwise", "smooth_ece"])
def test_mean_over_seeds_widens_with_seeds_that_disagree(name):
    alike, apart = (mean_over_seeds(measured(range(4), name, spread)) for spread in (0.0, 0.5))
    single = measured([0], name)[0].interval()
    assert mean_over_seeds(measured([0], name)) == single
    assert apart.high - apart.low > 1.2 * (alike.high - alike.low)
    assert alike.high - alike.low > 0.7 * (single.high - single.low)  # the rows are the same for every seed


def test_mean_over_seeds_covers_seeds_and_rows_together():
    held, rng = 0, np.random.default_rng(0)
    for trial in range(100):
        labels, probs = made(150, seed=trial)
        runs = [softmax(np.log(probs) + rng.normal() * np.array([1.0, 0.0, 0.0])) for _ in range(4)]  # a bias a seed
        wanted = {"it": (METRICS["brier"], {})}
        interval = mean_over_seeds([measure(wanted, labels, p, n_resamples=60, seed=trial)["it"] for p in runs])
        held += interval.low <= BRIER_OF_THE_ABOVE <= interval.high
    assert held >= 90


def _brier_of_many():
    labels, probs = made(4000, seed=12345)
    biases = np.random.default_rng(1).normal(size=200)
    runs = [softmax(np.log(probs) + bias * np.array([1.0, 0.0, 0.0])) for bias in biases]
    return float(np.mean([METRICS["brier"].function(labels, probs=p) for p in runs]))


BRIER_OF_THE_ABOVE = _brier_of_many()


def test_seeds_that_disagree_are_no_evidence_and_more_of_them_are_asked_for():
    ours, theirs = measured(range(3), spread=0.6, n=3000), measured(range(8, 11), spread=0.1, n=3000)
    single = compare_measured(ours[:1], theirs[:1])
    test = compare_measured(ours, theirs)
    assert test.df < 10 < single.df
    if test.p_value >= 0.05:
        assert test.seeds_needed is None or test.seeds_needed > 3


def test_mean_over_tasks_is_surer_than_each():
    one = compare_measured(measured([1], spread=0.3), measured([2], spread=0.3)).to_json()
    both = mean_of_tests([one, one])
    assert both.difference == pytest.approx(one["difference"])
    assert both.standard_error == pytest.approx(one["standard_error"] / np.sqrt(2))
    assert both.p_value < one["p_value"]


def test_holm_by_hand():
    assert holm([0.01, 0.02, 0.5]) == pytest.approx([0.03, 0.04, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_ranking_is_compared_by_rank_and_not_by_scale():
    labels, probs = made(500)
    flat = softmax(np.log(probs) * 0.1)  # nearly the same order on another scale
    test = paired_test("aurc", labels, probs, flat, n_resamples=200)
    binary_labels, binary = made(500, n_classes=2)
    assert paired_test("aurc", binary_labels, binary, softmax(np.log(binary) * 0.1), n_resamples=50).p_value == 1.0
    assert abs(test.difference) < 0.05


def test_two_scores_of_one_method_can_be_compared():
    labels, probs = made(500)
    wrong = probs.argmax(axis=1) != labels
    energies = wrong + np.random.default_rng(0).normal(size=500)
    test = paired_test("error_auroc", labels, probs, probs, scores_b=-energies, n_resamples=100)
    by_energy = METRICS["error_auroc"].function(labels, probs=probs, scores=-energies)
    by_confidence = METRICS["error_auroc"].function(labels, probs=probs)
    assert test.difference == pytest.approx(by_confidence - by_energy)
    with pytest.raises(EbmcalError, match="scores_a= and scores_b="):
        paired_test("aurc", labels, probs, probs, scores=energies)


def test_paired_test_by_blocks(monkeypatch):
    labels, probs = made(6000, noise=2.0)
    softer = softmax(np.log(probs) / 1.1)
    rows = paired_test("ece_classwise", labels, probs, softer, n_resamples=200)
    monkeypatch.setattr(resampling, "MAX_ROWS", 100)
    blocks = paired_test("ece_classwise", labels, probs, softer, n_resamples=200)
    assert blocks.difference == rows.difference
    assert blocks.low == pytest.approx(rows.low, abs=0.3 * (rows.high - rows.low))


def test_paired_test_refuses_what_it_cannot_compare():
    labels, probs = made(50)
    with pytest.raises(EbmcalError, match="same classes; 3 and 4"):
        paired_test("nll", labels, probs, made(50, 4)[1])
    with pytest.raises(EbmcalError, match="labels has 50 rows"):
        paired_test("nll", labels, made(40)[1], made(40)[1])


def test_a_function_of_ones_own_can_be_compared():
    labels, probs = made(200)
    softer = softmax(np.log(probs) / 2)
    own = paired_test(lambda y, probs: METRICS["nll"].function(y, probs=probs), labels, probs, softer, n_resamples=50)
    named = paired_test("nll", labels, probs, softer, n_resamples=50)
    assert own.p_value == pytest.approx(named.p_value)


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
@pytest.mark.parametrize("seeds_over_rows", [0.3, 3.0, 10.0])
def test_the_reach_over_few_seeds_covers(n_seeds, seeds_over_rows):
    """Normal means whose truth is 0: one degree of freedom for all would hold it in 87% of draws with two seeds."""
    rng, n_draws = np.random.default_rng(0), 1500
    deviation = np.sqrt(seeds_over_rows * n_seeds)  # of a seed; the rows have a variance of 1
    held = 0
    for rows, values in zip(rng.normal(size=n_draws), rng.normal(0, deviation, (n_draws, n_seeds)), strict=True):
        spread = Spread.of_variances(1.0, values.tolist(), n_rows=300)
        held += abs(rows + values.mean()) <= spread.reach(0.95)
    assert held / n_draws > 0.945
