"""Intervals over rows: exactness against slow resampling, coverage, notes."""

import json

import numpy as np
import pytest
from cases import made

from ebmcal.errors import EbmcalError
from ebmcal.metrics import (
    METRICS,
    FewRowsWarning,
    Interval,
    accuracy,
    bootstrap,
    ece_classwise,
    ood_bootstrap,
    ood_detection,
    resampling,
)
from ebmcal.metrics.intervals import resample
from ebmcal.metrics.registry import metric

NAMES = sorted(METRICS)


@pytest.mark.parametrize("name", NAMES)
def test_quick_resampling_is_slow_resampling(name):
    labels, probs = made(80)
    quick = resample({"it": (METRICS[name], {})}, labels, probs, 20, seed=1)["it"]
    function = METRICS[name].function
    # A function that is not in the table is called on the drawn rows themselves.
    slow = resample({"it": (metric(lambda y, probs: function(y, probs=probs)), {})}, labels, probs, 20, seed=1)["it"]
    assert quick[0] == pytest.approx(slow[0], abs=1e-12)
    np.testing.assert_allclose(quick[1], slow[1], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_interval_holds_the_value_and_repeats(name):
    labels, probs = made(400)
    first = bootstrap(name, labels, probs=probs, n_resamples=100, seed=3)
    assert first.low <= first.value
    assert first.value <= first.high or METRICS[name].noisy_upwards  # what noise has pushed up may lie above
    assert first.low < first.high
    assert first.value == METRICS[name].function(labels, probs=probs)
    assert first == bootstrap(name, labels, probs=probs, n_resamples=100, seed=3)
    other = bootstrap(name, labels, probs=probs, n_resamples=100, seed=4)
    assert (first != other) == (METRICS[name].events is None and name != "accuracy")  # those are in closed form


@pytest.mark.parametrize("name", NAMES)
def test_blocks_give_the_interval_of_rows(name, monkeypatch):
    labels, probs = made(6000)
    rows = bootstrap(name, labels, probs=probs, n_resamples=400)
    monkeypatch.setattr(resampling, "MAX_ROWS", 100)
    blocks = bootstrap(name, labels, probs=probs, n_resamples=400)
    assert blocks.value == rows.value
    width = rows.high - rows.low
    assert blocks.high - blocks.low == pytest.approx(width, rel=0.3)
    assert blocks.low == pytest.approx(rows.low, abs=0.25 * width)


def test_by_function_and_by_name_are_the_same():
    labels, probs = made(300)
    assert bootstrap(ece_classwise, labels, probs=probs) == bootstrap("ece_classwise", labels, probs=probs)


def test_a_function_of_ones_own():
    labels, probs = made(300)
    interval = bootstrap(lambda y, probs: float((y == 0).mean()), labels, probs=probs, n_resamples=200)
    assert interval.low < interval.value < interval.high


def test_options_reach_the_metric():
    labels, probs = made(300)
    mass = bootstrap("ece_top_label", labels, probs=probs, n_bins=5, binning="mass", n_resamples=50)
    assert mass.value == METRICS["ece_top_label"].function(labels, probs=probs, n_bins=5, binning="mass")
    energies = np.random.default_rng(0).normal(size=300)
    by_energy = bootstrap("aurc", labels, probs=probs, scores=-energies, n_resamples=50)
    assert by_energy.value == METRICS["aurc"].function(labels, probs=probs, scores=-energies)
    assert by_energy.low < by_energy.value < by_energy.high


def test_accuracy_interval_is_the_binomial_one():
    labels, probs = made(2000)
    interval = bootstrap("accuracy", labels, probs=probs)
    share = accuracy(labels, probs=probs)
    expected = 1.96 * np.sqrt(share * (1 - share) / 2000)
    assert (interval.high - interval.low) / 2 == pytest.approx(expected, rel=0.1)


def test_level_widens_and_is_checked():
    labels, probs = made(300)
    narrow = bootstrap("nll", labels, probs=probs, level=0.5)
    wide = bootstrap("nll", labels, probs=probs, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    with pytest.raises(EbmcalError, match="level is 95"):
        bootstrap("nll", labels, probs=probs, level=95)


def test_without_resamples_there_is_a_value_and_no_interval():
    labels, probs = made(300)
    interval = bootstrap("nll", labels, probs=probs, n_resamples=0)
    assert np.isnan([interval.low, interval.high]).all()
    assert interval.to_json() == {"value": interval.value, "low": None, "high": None}
    json.dumps(interval.to_json(), allow_nan=False)


def test_undefined_values_are_null():
    interval = bootstrap("error_auroc", [0] * 5, probs=[[0.9, 0.1]] * 5)
    assert interval.to_json() == {"value": None, "low": None, "high": None}


def test_undefined_resamples_are_left_out():
    interval = bootstrap("error_auroc", [0, 0, 0, 1], probs=[[0.9, 0.1]] * 3 + [[0.6, 0.4]])
    assert interval == Interval(1.0, 1.0, 1.0)


def test_too_few_rows_for_the_bins_are_noted():
    labels, probs = made(150)
    with pytest.warns(FewRowsWarning, match="150 rows are few for 20 bins.*15 bins or fewer"):
        interval = bootstrap("ece_classwise", labels, probs=probs, n_resamples=10)
    assert "150 rows" in interval.notes[0]
    assert interval.to_json()["notes"] == list(interval.notes)
    assert bootstrap("ece_classwise", labels, probs=probs, n_resamples=10, n_bins=15).notes == ()
    assert bootstrap("nll", labels, probs=probs, n_resamples=10).notes == ()
    assert bootstrap("ece_classwise", labels, probs=probs, n_resamples=10, warn=False).notes != ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accuracy", "nll", "ece_top_label", "smooth_ece", "aurc"])
def test_intervals_cover_the_truth(name):
    truth = METRICS[name].function(*made(300_000, seed=99)[:1], probs=made(300_000, seed=99)[1])
    held = 0
    for seed in range(100):
        labels, probs = made(1000, seed=seed)
        interval = bootstrap(name, labels, probs=probs, n_resamples=200)
        held += interval.low <= truth <= interval.high
    assert held >= 90


def test_out_of_domain_intervals():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 400), rng.normal(0, 1, 300)
    found = ood_bootstrap(inside, outside, n_resamples=300)
    for name, value in ood_detection(inside, outside).items():
        assert found[name].value == value
        assert found[name].low < value < found[name].high
    rows = [ood_detection(rng.choice(inside, 400), rng.choice(outside, 300))["auroc"] for _ in range(300)]
    width = np.quantile(rows, 0.975) - np.quantile(rows, 0.025)
    assert found["auroc"].high - found["auroc"].low == pytest.approx(width, rel=0.25)
