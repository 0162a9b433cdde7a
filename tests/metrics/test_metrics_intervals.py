"""Intervals over rows: exactness against slow resampling, coverage, notes; summaries; the metrics of a Trainer."""

from types import SimpleNamespace

import numpy as np
import pytest
from metric_cases import make_rows

from ebmcal import EbmcalError, Predictions, metrics
from ebmcal.metrics import (
    DEFAULT_METRICS,
    METRICS,
    Interval,
    bootstrap,
    classification,
    compute_metrics,
    find_metric,
    summarize,
)  # fmt: skip
from ebmcal.metrics.intervals import estimate

NAMES = sorted(METRICS)


@pytest.mark.parametrize("name", [name for name in NAMES if METRICS[name].events is None])
def test_fast_resampling_is_slow_resampling(name):
    labels, probs = make_rows(80)
    function = METRICS[name].function
    slow = find_metric(lambda y, probs: function(y, probs=probs))  # an unknown function is called on the drawn rows
    requested = {"fast": (METRICS[name], {}), "slow": (slow, {})}
    found = estimate(requested, labels, probs, n_resamples=20, seed=1)
    np.testing.assert_allclose(found["fast"].resampled, found["slow"].resampled, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_an_interval_contains_the_value_and_repeats(name):
    labels, probs = make_rows(400)
    first = bootstrap(name, labels, probs=probs, n_resamples=100, seed=3)
    assert first.low <= first.value
    assert first.value <= first.high or METRICS[name].is_raised_by_noise  # such a value may lie above
    assert first.low < first.high
    assert first.value == METRICS[name].function(labels, probs=probs)
    assert first == bootstrap(name, labels, probs=probs, n_resamples=100, seed=3)
    other = bootstrap(name, labels, probs=probs, n_resamples=100, seed=4)
    assert (first != other) == (METRICS[name].events is None and name != "accuracy")  # those are in closed form


@pytest.mark.parametrize("name", NAMES)
def test_blocks_give_the_interval_of_rows(name, monkeypatch):
    labels, probs = make_rows(6000)
    rows = bootstrap(name, labels, probs=probs, n_resamples=400)
    monkeypatch.setattr(classification, "MAX_ROWS", 100)
    blocks = bootstrap(name, labels, probs=probs, n_resamples=400)
    assert blocks.value == rows.value
    width = rows.high - rows.low
    assert blocks.high - blocks.low == pytest.approx(width, rel=0.3)
    assert blocks.low == pytest.approx(rows.low, abs=0.25 * width)


def test_functions_and_names_are_interchangeable():
    labels, probs = make_rows(300)
    assert bootstrap(metrics.ece_classwise, labels, probs=probs) == bootstrap("ece_classwise", labels, probs=probs)
    own = bootstrap(lambda y, probs: float((y == 0).mean()), labels, probs=probs, n_resamples=200)
    assert own.low < own.value < own.high


def test_options_reach_the_metric():
    labels, probs = make_rows(300)
    mass = bootstrap("ece_top_label", labels, probs=probs, n_bins=5, binning="mass", n_resamples=50)
    assert mass.value == metrics.ece_top_label(labels, probs=probs, n_bins=5, binning="mass")
    energies = np.random.default_rng(0).normal(size=300)
    by_energy = bootstrap("aurc", labels, probs=probs, scores=-energies, n_resamples=50)
    assert by_energy.value == metrics.aurc(labels, probs=probs, scores=-energies)
    assert by_energy.low < by_energy.value < by_energy.high


def test_the_interval_of_accuracy_is_the_binomial_one():
    labels, probs = make_rows(2000)
    interval = bootstrap("accuracy", labels, probs=probs)
    expected = 1.96 * np.sqrt(interval.value * (1 - interval.value) / 2000)
    assert (interval.high - interval.low) / 2 == pytest.approx(expected, rel=0.1)
    certain = bootstrap("accuracy", [0] * 50, probs=[[0.9, 0.1]] * 50)
    assert certain.low == pytest.approx(0.929, abs=1e-3)  # a width at 1


def test_without_resamples_there_is_a_value_and_no_interval():
    labels, probs = make_rows(300)
    interval = bootstrap("nll", labels, probs=probs, n_resamples=0)
    assert np.isfinite(interval.value)
    assert np.isnan([interval.low, interval.high]).all()


def test_undefined_values_and_resamples():
    undefined = bootstrap("error_auroc", [0] * 5, probs=[[0.9, 0.1]] * 5)
    assert np.isnan([undefined.value, undefined.low, undefined.high]).all()
    some = bootstrap("error_auroc", [0, 0, 0, 1], probs=[[0.9, 0.1]] * 3 + [[0.6, 0.4]])
    assert some == Interval(1.0, 1.0, 1.0)


def test_too_few_rows_for_the_bins_are_noted():
    labels, probs = make_rows(150)
    (note,) = bootstrap("ece_classwise", labels, probs=probs, n_resamples=10).notes
    assert "150 rows are few for 20 bins" in note
    assert "at most 15 bins or smooth_ece" in note
    assert bootstrap("ece_classwise", labels, probs=probs, n_resamples=10, n_bins=15).notes == ()
    assert bootstrap("nll", labels, probs=probs, n_resamples=10).notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accuracy", "nll", "ece_top_label", "smooth_ece", "balanced_brier", "aurc"])
def test_intervals_cover_the_truth(name):
    labels, probs = make_rows(300_000, seed=99)
    truth = METRICS[name].function(labels, probs=probs)
    covered = 0
    for seed in range(100):
        labels, probs = make_rows(1000, seed=seed)
        interval = bootstrap(name, labels, probs=probs, n_resamples=200)
        covered += interval.low <= truth <= interval.high
    assert covered >= 90


def test_ood_intervals():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 400), rng.normal(0, 1, 300)
    found = metrics.ood_bootstrap(inside, outside, n_resamples=300)
    for name, value in metrics.ood_detection(inside, outside).items():
        assert found[name].value == value
        assert found[name].low < value < found[name].high
    drawn = [metrics.ood_detection(rng.choice(inside, 400), rng.choice(outside, 300))["auroc"] for _ in range(300)]
    width = np.quantile(drawn, 0.975) - np.quantile(drawn, 0.025)
    assert found["auroc"].high - found["auroc"].low == pytest.approx(width, rel=0.25)


def predictions(n_rows=400):
    labels, probs = make_rows(n_rows)
    return Predictions(labels, ("a", "b", "c"), probs=probs)


def test_a_summary_has_every_default_metric_and_agrees_with_bootstrap():
    p = predictions()
    summary = summarize(p, n_resamples=50, seed=2)
    assert tuple(summary) == DEFAULT_METRICS
    for name, interval in summary.items():
        assert interval == bootstrap(name, p.labels, probs=p.probs, n_resamples=50, seed=2)


def test_a_summary_uses_labelled_rows():
    p = predictions()
    partly = Predictions(np.where(np.arange(400) < 100, -1, p.labels), p.label_names, probs=p.probs)
    assert summarize(partly, ["nll"], n_resamples=0)["nll"].value == metrics.nll(p.labels[100:], probs=p.probs[100:])
    with pytest.raises(EbmcalError, match="No row has a label"):
        summarize(Predictions([-1], ("a",), probs=[[1.0]]))
    with pytest.raises(EbmcalError, match="Unknown metric 'ece'"):
        summarize(p, ["ece"])


@pytest.mark.parametrize(
    ("labels", "probs"),
    [([0], [[1.0]]), ([0], [[0.5, 0.5]]), ([0, 0], [[1.0, 0.0]] * 2), ([1, 1], [[1.0, 0.0]] * 2)],
)
def test_degenerate_rows_have_a_summary(labels, probs):
    p = Predictions(labels, tuple(map(str, range(len(probs[0])))), probs=probs)
    summary = summarize(p, NAMES, n_resamples=20)
    for name, interval in summary.items():
        ends = (interval.low, interval.high)
        assert np.isnan(ends).all() or ends[0] <= ends[1], name


def test_compute_metrics_of_a_trainer():
    labels, probs = make_rows(300)
    out = compute_metrics(SimpleNamespace(predictions=np.log(probs).astype(np.float32), label_ids=labels))
    assert tuple(out) == DEFAULT_METRICS
    assert out["accuracy"] == metrics.accuracy(labels, probs=probs)
    with_hidden = compute_metrics(SimpleNamespace(predictions=(np.log(probs), np.zeros(3)), label_ids=labels))
    assert with_hidden["nll"] == pytest.approx(metrics.nll(labels, probs=probs))
