"""What chance adds to calibration errors: floors, bounds, and intervals that hold the truth."""

import numpy as np
import pytest
from cases import made
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ebmcal.metrics import METRICS, bootstrap
from ebmcal.metrics.chance import Chance, binned_error, binomial_deviation

NOISY = sorted(name for name, entry in METRICS.items() if entry.noisy_upwards)
SHARES = st.integers(0, 1000).map(lambda part: part / 1000)


def calibrated(n_rows, n_classes=3, seed=0):
    return made(n_rows, n_classes, noise=1.0, seed=seed)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), SHARES)
def test_binomial_deviation_is_the_sum_over_outcomes(count, share):
    hits = np.arange(count + 1)
    expected = (np.abs(hits - count * share) * stats.binom.pmf(hits, count, share)).sum()
    assert binomial_deviation(np.array([float(count)]), np.array([share]))[0] == pytest.approx(expected, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), SHARES, SHARES)
def test_chance_never_adds_more_than_the_floor(count, forecast, share):
    hits, a = np.arange(count + 1), count * forecast
    shown = (np.abs(hits - a) * stats.binom.pmf(hits, count, share)).sum()
    floor = binomial_deviation(np.array([float(count)]), np.array([forecast]))[0]
    assert abs(count * share - a) - 1e-9 <= shown <= abs(count * share - a) + floor + 1e-9


@pytest.mark.parametrize("name", NOISY)
def test_the_floor_is_what_a_calibrated_model_shows(name):
    labels, probs = calibrated(400)
    rng = np.random.default_rng(1)
    drawn = [(rng.gumbel(size=probs.shape) + np.log(probs)).argmax(axis=1) for _ in range(60)]
    floor = bootstrap(name, labels, probs=probs, n_resamples=2).noise_floor
    assert floor == pytest.approx(np.mean([METRICS[name].function(y, probs=probs) for y in drawn]), rel=0.12)


@pytest.mark.parametrize("kind", ["class", "top_label"])
@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_the_standard_error_is_that_of_other_rows(kind, noise):
    name = {"class": "ece_classwise", "top_label": "ece_top_label"}[kind]
    samples = [made(600, noise=noise, seed=s) for s in range(80)]
    truth = np.std([METRICS[name].function(labels, probs=probs) for labels, probs in samples])
    said = np.mean([binned_error(*rows, kind=kind, n_bins=20).standard_error for rows in samples[:20]])
    at_most = 2.2 if noise == 1.0 else 1.35  # too large where all is noise, never too small
    assert 0.85 * truth < said < at_most * truth


@pytest.mark.parametrize("n_classes", [2, 3, 20])
@pytest.mark.parametrize("name", ["ece_classwise", "ece_top_label"])
def test_intervals_hold_zero_for_calibrated_models(name, n_classes):
    for seed in range(20):
        labels, probs = calibrated(300, n_classes, seed)
        assert bootstrap(name, labels, probs=probs, n_resamples=2).low == 0.0


@pytest.mark.parametrize("name", ["ece_classwise", "ece_top_label"])
def test_intervals_hold_the_error_of_an_overconfident_model(name):
    truth = METRICS[name].function(*made(200_000, noise=3.0, seed=99)[:1], probs=made(200_000, noise=3.0, seed=99)[1])
    held = []
    for seed in range(60):
        labels, probs = made(1000, noise=3.0, seed=seed)
        interval = bootstrap(name, labels, probs=probs, n_resamples=2)
        held.append(interval.low <= truth <= interval.high)
    assert np.mean(held) >= 0.9


def test_debiased_and_plain_have_one_interval_but_for_the_value():
    labels, probs = made(1000, noise=3.0)
    plain, debiased = (bootstrap(f"ece_top_label{end}", labels, probs=probs) for end in ("", "_debiased"))
    assert (plain.low, plain.high) == (debiased.low, debiased.high)
    assert debiased.noise_floor is None


def test_a_wider_reach_widens_both_ends():
    narrow, wide = (Chance(0.1, 0.03, 0.02, 0.02, even=True).ends(reach) for reach in (0.01, 0.05))
    assert wide[0] < narrow[0] < 0.1 < narrow[1] < wide[1]


def test_equal_mass_bins_have_intervals_too():
    labels, probs = made(1000, noise=3.0)
    interval = bootstrap("ece_top_label", labels, probs=probs, binning="mass", n_bins=10)
    assert 0 < interval.low < interval.value < interval.high
