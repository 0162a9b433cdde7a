"""The noise floor of calibration errors, its bounds, and intervals that contain the true error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import make_rows
from scipy import stats

from ebmcal.metrics import METRICS, bootstrap, paired_test
from ebmcal.metrics.calibration import binned_error, binomial_deviation
from ebmcal.predictions import softmax

RAISED = sorted(name for name, metric in METRICS.items() if metric.is_raised_by_noise)
SHARES = st.integers(0, 1000).map(lambda part: part / 1000)


def calibrated(n_rows, n_classes=3, seed=0):
    return make_rows(n_rows, n_classes, noise=1.0, seed=seed)


@settings(max_examples=60)
@given(st.integers(1, 60), SHARES)
def test_binomial_deviation_is_the_sum_over_outcomes(count, share):
    hits = np.arange(count + 1)
    expected = (np.abs(hits - count * share) * stats.binom.pmf(hits, count, share)).sum()
    assert binomial_deviation(np.array([float(count)]), np.array([share]))[0] == pytest.approx(expected, abs=1e-9)


@settings(max_examples=60)
@given(st.integers(1, 40), SHARES, SHARES)
def test_noise_never_adds_more_than_the_floor(count, forecast, share):
    hits, a = np.arange(count + 1), count * forecast
    observed = (np.abs(hits - a) * stats.binom.pmf(hits, count, share)).sum()
    floor = binomial_deviation(np.array([float(count)]), np.array([forecast]))[0]
    assert abs(count * share - a) - 1e-9 <= observed <= abs(count * share - a) + floor + 1e-9


@pytest.mark.parametrize("name", RAISED)
def test_the_floor_is_the_mean_error_of_a_calibrated_model(name):
    labels, probs = calibrated(400)
    rng = np.random.default_rng(1)
    drawn = [(rng.gumbel(size=probs.shape) + np.log(probs)).argmax(axis=1) for _ in range(60)]
    floor = bootstrap(name, labels, probs=probs, n_resamples=2).noise_floor
    assert floor == pytest.approx(np.mean([METRICS[name].function(y, probs=probs) for y in drawn]), rel=0.12)


@pytest.mark.parametrize("name", ["ece_classwise", "ece_top_label"])
@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_the_standard_error_is_that_of_other_rows(name, noise):
    samples = [make_rows(600, noise=noise, seed=s) for s in range(80)]
    truth = np.std([METRICS[name].function(labels, probs=probs) for labels, probs in samples])
    kind = METRICS[name].events
    found = np.mean([binned_error(*rows, kind=kind, n_bins=20).standard_error for rows in samples[:20]])
    largest = 2.2 if noise == 1.0 else 1.35  # too large if all is noise, never too small
    assert 0.85 * truth < found < largest * truth


@pytest.mark.parametrize("n_classes", [2, 3, 20])
@pytest.mark.parametrize("name", ["ece_classwise", "ece_top_label"])
def test_intervals_of_calibrated_models_contain_zero(name, n_classes):
    for seed in range(20):
        labels, probs = calibrated(300, n_classes, seed)
        assert bootstrap(name, labels, probs=probs, n_resamples=2).low == 0.0


@pytest.mark.parametrize("name", ["ece_classwise", "ece_top_label"])
def test_intervals_of_an_overconfident_model_contain_its_error(name):
    labels, probs = make_rows(200_000, noise=3.0, seed=99)
    truth = METRICS[name].function(labels, probs=probs)
    covered = []
    for seed in range(60):
        labels, probs = make_rows(1000, noise=3.0, seed=seed)
        interval = bootstrap(name, labels, probs=probs, n_resamples=2)
        covered.append(interval.low <= truth <= interval.high)
    assert np.mean(covered) >= 0.9


def test_debiased_and_plain_errors_share_their_interval():
    labels, probs = make_rows(1000, noise=3.0)
    plain, debiased = (bootstrap(f"ece_top_label{end}", labels, probs=probs) for end in ("", "_debiased"))
    assert (plain.low, plain.high) == (debiased.low, debiased.high)
    assert debiased.noise_floor is None


def test_equal_mass_bins_have_intervals_too():
    labels, probs = make_rows(1000, noise=3.0)
    interval = bootstrap("ece_top_label", labels, probs=probs, binning="mass", n_bins=10)
    assert 0 < interval.low < interval.value < interval.high


# Value, low, high and noise floor of `bootstrap`; low, high and p-value of `paired_test`. The coverage of these
# intervals was measured (benchmarks/coverage.py): measure it again before changing a number.
PINNED = {
    "accuracy": (0.654000000, 0.611272935, 0.694378768, None, -0.005557094, 0.005557094, 1),
    "macro_f1": (0.651526791, 0.600958969, 0.697798086, None, 0.000000000, 0.000000000, 1),
    "ece_classwise": (0.076723030, 0.000000000, 0.095426612, 0.054206439, -0.006039436, 0.077469747, 0.13911),
    "ece_top_label": (0.104326638, 0.015799969, 0.143734988, 0.051501109, -0.012900821, 0.121325807, 0.155),
    "ece_top_label_debiased": (0.092084733, 0.015799969, 0.143734988, None, -0.010309423, 0.092760495, 0.11666),
    "mce_top_label": (0.651548774, 0.000000000, 0.970048475, 0.449483742, -0.087881503, 0.852440727, 0.12685),
    "smooth_ece": (0.093365580, 0.028176694, 0.124432472, 0.034121994, 0.027160366, 0.081478256, 9.5475e-05),
    "nll": (0.806811520, 0.738471954, 0.881522847, None, 0.008553493, 0.059590412, 0.0089752),
    "aurc": (0.214573004, 0.172881647, 0.256335783, None, -0.003231203, 0.001879518, 0.60355),
}


@pytest.mark.parametrize("name", PINNED)
def test_intervals_and_tests_do_not_drift(name):
    labels, probs = make_rows(500)
    value, low, high, floor, *test = PINNED[name]
    found = bootstrap(name, labels, probs=probs, n_resamples=200, seed=3)
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high), abs=1e-9)
    assert found.noise_floor == (None if floor is None else pytest.approx(floor, abs=1e-9))
    compared = paired_test(name, labels, probs, softmax(np.log(probs) / 1.5), n_resamples=200, seed=3)
    assert [compared.low, compared.high, compared.p_value] == pytest.approx(test, rel=1e-4, abs=1e-9)
