"""Binned calibration errors: hand-worked cases, plain loops, bin edges."""

import numpy as np
import pytest
from metric_cases import bin_by_definition, ece_by_loops, make_rows

from ebmcal import EbmcalError, metrics
from ebmcal.metrics import ece_classwise, ece_top_label, mce_classwise, mce_top_label, reliability_bins
from ebmcal.metrics.calibration import assign_bins

BINNED = [metric.function for metric in metrics.METRICS.values() if metric.is_binned]


def test_two_classes_by_hand():
    # P(1): .1 .3 | .8 .9 in 2 bins; labels 0 1 | 1 1. Gaps: |.5 − .2| and |1 − .85|, half of the rows each.
    probs = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9]])
    labels = [0, 1, 1, 1]
    assert ece_classwise(labels, probs=probs, n_bins=2) == pytest.approx((0.3 + 0.15) / 2)
    # Confidences .9 .7 .8 .9, all in the upper bin, correct except the second: |3/4 − .825|.
    assert ece_top_label(labels, probs=probs, n_bins=2) == pytest.approx(0.075)
    assert mce_classwise(labels, probs=probs, n_bins=2) == pytest.approx(0.3)
    assert mce_top_label(labels, probs=probs, n_bins=2) == pytest.approx(0.075)
    # With 10 bins: .7 (wrong), .8 (correct), .9 .9 (correct): gaps .7, .2, .1.
    assert ece_top_label(labels, probs=probs, n_bins=10) == pytest.approx(0.25 * 0.7 + 0.25 * 0.2 + 0.5 * 0.1)
    assert mce_top_label(labels, probs=probs, n_bins=10) == pytest.approx(0.7)


def test_classwise_and_top_label_differ():
    # All rows have (.6, .3, .1) and the labels are 60% class 0, 40% class 1: only the top label is calibrated.
    probs = np.tile([0.6, 0.3, 0.1], (10, 1))
    labels = [0] * 6 + [1] * 4
    assert ece_top_label(labels, probs=probs) == pytest.approx(0.0, abs=1e-15)
    assert ece_classwise(labels, probs=probs) == pytest.approx((0.0 + 0.1 + 0.1) / 3)


def test_zero_and_one_fall_into_the_outer_bins():
    bins = reliability_bins([0, 0, 1], probs=[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], class_index=0)
    assert bins.counts.tolist() == [1] + [0] * 8 + [2]
    for metric in BINNED:
        assert metric([0, 1], probs=[[1.0, 0.0], [0.0, 1.0]]) == 0.0
    for metric in (ece_classwise, ece_top_label, mce_classwise, mce_top_label):
        assert metric([1, 0], probs=[[1.0, 0.0], [0.0, 1.0]]) == 1.0


def test_a_class_without_rows_counts():
    probs = np.tile([0.0, 1.0, 0.0], (5, 1))
    assert ece_top_label([0] * 5, probs=probs) == 1.0  # not zero because class 1 never occurs
    assert ece_classwise([0] * 5, probs=probs) == pytest.approx(2 / 3)


@pytest.mark.parametrize("n_bins", [10, 20, 25, 100, 300])
def test_a_probability_slightly_above_one_is_in_the_last_bin(n_bins):
    for metric in BINNED:
        assert metric([0, 1], probs=[[1.0000001, 0.0], [0.0, 1.0078]], n_bins=n_bins) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 10, 15, 20, 49, 100, 279, 1000])
def test_values_at_and_next_to_every_edge(n_bins):
    edges = np.arange(n_bins + 1) / n_bins
    values = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)]).clip(0, 1)
    expected = np.searchsorted(edges[1:-1], values, side="right")
    np.testing.assert_array_equal(assign_bins(values, n_bins, "width"), expected)
    if n_bins <= 100:
        assert expected.tolist() == [bin_by_definition(v, n_bins) for v in values]


@pytest.mark.parametrize("n_bins", [1, 5, 20])
@pytest.mark.parametrize("n_classes", [2, 3, 20])
def test_equal_to_loops(n_bins, n_classes):
    labels, probs = make_rows(300, n_classes)
    classes = [ece_by_loops(probs[:, y], labels == y, n_bins) for y in range(n_classes)]
    top = ece_by_loops(probs.max(axis=1), probs.argmax(axis=1) == labels, n_bins)
    assert ece_classwise(labels, probs=probs, n_bins=n_bins) == pytest.approx(np.mean(classes), abs=1e-14)
    assert ece_top_label(labels, probs=probs, n_bins=n_bins) == pytest.approx(top, abs=1e-14)


def test_many_rows_are_summed_exactly():
    labels, probs = make_rows(50_000, 3)
    total = 0.0
    for y in range(3):
        bins = np.digitize(probs[:, y], np.arange(1, 20) / 20)
        for b in range(20):
            total += abs((probs[bins == b, y] - (labels[bins == b] == y)).sum()) / len(labels)
    assert ece_classwise(labels, probs=probs) == pytest.approx(total / 3, abs=1e-12)


def test_equal_mass_bins():
    labels, probs = make_rows(1000)
    assert reliability_bins(labels, probs=probs, n_bins=8, binning="mass").counts.tolist() == [125] * 8
    # Uneven: bin i starts at row ⌊i·n/B⌋ of the sorted values.
    assert np.bincount(assign_bins(np.arange(10) / 10, 3, "mass")).tolist() == [3, 3, 4]
    # Confidences .6 .7 | .8 .9, correct: no yes | yes yes. Gaps |.5 − .65|, |1 − .85|.
    probs = [[0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.9, 0.1]]
    assert ece_top_label([1, 0, 0, 0], probs=probs, n_bins=2, binning="mass") == pytest.approx(0.15)


def test_equal_values_are_never_split():
    probs = np.tile([0.8, 0.2], (10, 1))
    labels = [0] * 8 + [1] * 2
    assert reliability_bins(labels, probs=probs, n_bins=5, binning="mass").counts.tolist() == [10]
    assert ece_top_label(labels, probs=probs, n_bins=5, binning="mass") == pytest.approx(0.0, abs=1e-15)


def test_more_mass_bins_than_rows():
    labels, probs = make_rows(5)
    for metric in BINNED:
        assert 0 <= metric(labels, probs=probs, n_bins=50, binning="mass") <= 1


def test_debiasing_removes_what_noise_adds():
    plain, debiased = [], []
    for seed in range(40):
        labels, probs = make_rows(300, noise=1.0, seed=seed)  # calibrated by construction: the truth is 0
        plain.append(ece_top_label(labels, probs=probs))
        debiased.append(metrics.ece_top_label_debiased(labels, probs=probs))
    assert np.mean(plain) > 0.05
    assert np.mean(debiased) < 0.7 * np.mean(plain)


def test_reliability_bins():
    labels, probs = make_rows(2000)
    bins = reliability_bins(labels, probs=probs, n_bins=10)
    filled = bins.counts > 0
    assert bins.counts.sum() == 2000
    np.testing.assert_array_equal(bins.edges, np.arange(11) / 10)
    np.testing.assert_allclose(bins.gap, bins.accuracy - bins.confidence, atol=1e-12)
    assert np.isnan(bins.accuracy[~filled]).all()
    assert ((bins.low <= bins.accuracy) & (bins.accuracy <= bins.high))[filled].all()
    ece = (bins.counts[filled] / 2000 * abs(bins.gap[filled])).sum()
    assert ece == pytest.approx(ece_top_label(labels, probs=probs, n_bins=10), abs=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 0}, "n_bins is 0"),
        ({"n_bins": 2.5}, "n_bins is 2.5"),
        ({"n_bins": True}, "n_bins is True"),
        ({"n_bins": 10**6}, "from 1 to 10,000"),
        ({"binning": "widht"}, "Unknown binning 'widht'. Did you mean 'width'"),
        ({"class_index": 3}, "class_index is 3"),
    ],
)
def test_invalid_options(options, message):
    labels, probs = make_rows(10)
    with pytest.raises(EbmcalError, match=message):
        reliability_bins(labels, probs=probs, **options)


def test_wilson_interval_of_scipy():
    from scipy.stats import binomtest

    labels, probs = make_rows(200)
    bins = reliability_bins(labels, probs=probs, n_bins=5)
    for count, share, low, high in zip(bins.counts, bins.accuracy, bins.low, bins.high, strict=True):
        if count:
            expected = binomtest(round(share * count), int(count)).proportion_ci(method="wilson")
            assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
