"""Binned calibration errors: hand-worked cases, plain loops, and the libraries that are right."""

import numpy as np
import pytest
from cases import bin_of, ece_by_loops, made
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmcal.errors import EbmcalError
from ebmcal.metrics import (
    ece_classwise,
    ece_classwise_debiased,
    ece_top_label,
    ece_top_label_debiased,
    mce_classwise,
    mce_top_label,
    reliability_bins,
)
from ebmcal.metrics.bins import edge_codes, width_codes

BINNED = [
    ece_classwise,
    ece_top_label,
    ece_classwise_debiased,
    ece_top_label_debiased,
    mce_classwise,
    mce_top_label,
]


def test_by_hand_two_classes():
    # P(1): .1 .3 | .8 .9 in 2 bins; labels 0 1 | 1 1. Gaps: |.5 − .2| and |1 − .85|, half of the rows each.
    probs = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9]])
    labels = [0, 1, 1, 1]
    assert ece_classwise(labels, probs=probs, n_bins=2) == pytest.approx((0.3 + 0.15) / 2)
    # Confidences .9 .7 .8 .9, all in the upper bin, right but for the second: |3/4 − .825|.
    assert ece_top_label(labels, probs=probs, n_bins=2) == pytest.approx(0.075)
    assert mce_classwise(labels, probs=probs, n_bins=2) == pytest.approx(0.3)
    assert mce_top_label(labels, probs=probs, n_bins=2) == pytest.approx(0.075)
    # With 10 bins: .7 (wrong), .8 (right), .9 .9 (right): gaps .7, .2, .1.
    assert ece_top_label(labels, probs=probs, n_bins=10) == pytest.approx(0.25 * 0.7 + 0.25 * 0.2 + 0.5 * 0.1)
    assert mce_top_label(labels, probs=probs, n_bins=10) == pytest.approx(0.7)


def test_the_papers_definition_differs_from_the_scripts():
    # All rows say (.6, .3, .1) and the labels are 60% class 0, 40% class 1: the top label is calibrated, the rest not.
    probs = np.tile([0.6, 0.3, 0.1], (10, 1))
    labels = [0] * 6 + [1] * 4
    assert ece_top_label(labels, probs=probs) == pytest.approx(0.0, abs=1e-15)
    assert ece_classwise(labels, probs=probs) == pytest.approx((0.0 + 0.1 + 0.1) / 3)


def test_probabilities_of_exactly_zero_and_one_fall_into_the_outer_bins():
    bins = reliability_bins([0, 0, 1], probs=[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], kind="class", class_index=0)
    assert bins.counts.tolist() == [1] + [0] * 8 + [2]
    assert len(bins.counts) == 10  # no extra bin for 1.0
    for metric in BINNED:
        assert metric([0, 1], probs=[[1.0, 0.0], [0.0, 1.0]]) == 0.0
    for metric in (ece_classwise, ece_top_label, mce_classwise, mce_top_label):
        assert metric([1, 0], probs=[[1.0, 0.0], [0.0, 1.0]]) == 1.0


def test_one_row():
    assert ece_classwise([0], probs=[[0.7, 0.2, 0.1]]) == pytest.approx((0.3 + 0.2 + 0.1) / 3)
    assert ece_top_label([0], probs=[[0.7, 0.2, 0.1]]) == pytest.approx(0.3)
    assert ece_top_label([1], probs=[[0.7, 0.2, 0.1]]) == pytest.approx(0.7)


def test_one_class_only():
    for metric in BINNED:
        assert metric([0, 0], probs=[[1.0], [1.0]]) == 0.0


def test_a_class_absent_from_the_labels_counts():
    probs = np.tile([0.0, 1.0, 0.0], (5, 1))
    assert ece_top_label([0] * 5, probs=probs) == 1.0  # all wrong at 1.0: not zero because class 1 never occurs
    assert ece_classwise([0] * 5, probs=probs) == pytest.approx(2 / 3)


@pytest.mark.parametrize("n_bins", [10, 20, 25, 100, 300])
def test_a_probability_a_hair_above_one_is_in_the_last_bin(n_bins):
    probs = [[1.0000001, 0.0], [0.0, 1.0078]]
    for metric in BINNED:
        assert metric([0, 1], probs=probs, n_bins=n_bins) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 10, 15, 20, 49, 100, 279, 1000])
def test_values_at_and_beside_every_edge_fall_where_comparison_puts_them(n_bins):
    edges = np.arange(n_bins + 1) / n_bins
    values = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)]).clip(0, 1)
    expected = [bin_of(v, n_bins) for v in values] if n_bins <= 100 else edge_codes(values, edges)
    np.testing.assert_array_equal(width_codes(values, n_bins), expected)


def test_the_edge_of_twenty_bins_that_rounding_gets_wrong():
    below = np.nextafter(9 / 20, 0)  # times 20 it rounds to 9.0
    assert int(below * 20) == 9
    assert width_codes(np.array([below, 9 / 20, 0.15]), 20).tolist() == [8, 9, 3]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 150))
def test_quick_bins_are_the_bins_of_comparison(values, n_bins):
    values = np.array(values)
    np.testing.assert_array_equal(width_codes(values, n_bins), edge_codes(values, np.arange(n_bins + 1) / n_bins))


@pytest.mark.parametrize("n_bins", [1, 5, 20])
@pytest.mark.parametrize("n_classes", [2, 3, 20])
def test_against_loops(n_bins, n_classes):
    labels, probs = made(300, n_classes)
    classes = [ece_by_loops(probs[:, y], labels == y, n_bins) for y in range(n_classes)]
    top = ece_by_loops(probs.max(axis=1), probs.argmax(axis=1) == labels, n_bins)
    assert ece_classwise(labels, probs=probs, n_bins=n_bins) == pytest.approx(np.mean(classes), abs=1e-14)
    assert ece_top_label(labels, probs=probs, n_bins=n_bins) == pytest.approx(top, abs=1e-14)


def test_equal_to_a_float64_reference_over_many_chunks():
    labels, probs = made(50_000, 3)
    edges = np.arange(1, 20) / 20
    total = 0.0
    for y in range(3):
        codes = np.digitize(probs[:, y], edges)
        for b in range(20):
            total += abs((probs[codes == b, y] - (labels[codes == b] == y)).sum()) / len(labels)
    assert ece_classwise(labels, probs=probs) == pytest.approx(total / 3, abs=1e-12)


def test_equal_mass_bins_hold_equal_shares():
    labels, probs = made(1000)
    bins = reliability_bins(labels, probs=probs, n_bins=8, binning="mass")
    assert bins.counts.tolist() == [125] * 8


def test_equal_mass_by_hand():
    # Confidences .6 .7 | .8 .9, right: no yes | yes yes. Gaps |.5 − .65|, |1 − .85|.
    probs = [[0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.9, 0.1]]
    assert ece_top_label([1, 0, 0, 0], probs=probs, n_bins=2, binning="mass") == pytest.approx(0.15)


def test_equal_numbers_are_never_parted():
    probs = np.tile([0.8, 0.2], (10, 1))
    bins = reliability_bins([0] * 8 + [1] * 2, probs=probs, n_bins=5, binning="mass")
    assert bins.counts.tolist() == [10]
    assert ece_top_label([0] * 8 + [1] * 2, probs=probs, n_bins=5, binning="mass") == pytest.approx(0.0, abs=1e-15)


def test_more_mass_bins_than_rows():
    labels, probs = made(5)
    for metric in BINNED:
        assert 0 <= metric(labels, probs=probs, n_bins=50, binning="mass") <= 1


def test_debiasing_takes_off_what_noise_adds():
    plain, debiased = [], []
    for seed in range(40):
        labels, probs = made(300, noise=1.0, seed=seed)  # calibrated by construction: the truth is 0
        plain.append(ece_top_label(labels, probs=probs))
        debiased.append(ece_top_label_debiased(labels, probs=probs))
    assert np.mean(plain) > 0.05
    assert np.mean(debiased) < 0.7 * np.mean(plain)


def test_bins_as_data():
    labels, probs = made(2000)
    bins = reliability_bins(labels, probs=probs, n_bins=10)
    full = bins.counts > 0
    assert bins.counts.sum() == 2000
    np.testing.assert_array_equal(bins.edges, np.arange(11) / 10)
    np.testing.assert_allclose(bins.gap, bins.accuracy - bins.confidence, atol=1e-12)
    assert np.isnan(bins.accuracy[~full]).all()
    assert ((bins.low <= bins.accuracy) & (bins.accuracy <= bins.high))[full].all()
    ece = (bins.counts[full] / 2000 * abs(bins.gap[full])).sum()
    assert ece == pytest.approx(ece_top_label(labels, probs=probs, n_bins=10), abs=1e-14)


def test_bins_of_a_class_and_of_all_classes():
    labels, probs = made(300)
    per_class = [reliability_bins(labels, probs=probs, kind="class", class_index=y).counts for y in range(3)]
    assert [c.sum() for c in per_class] == [300] * 3
    pooled = reliability_bins(labels, probs=probs, kind="class").counts
    np.testing.assert_array_equal(pooled, sum(per_class))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 0}, "n_bins is 0"),
        ({"n_bins": 2.5}, "n_bins is 2.5"),
        ({"n_bins": True}, "n_bins is True"),
        ({"binning": "widht"}, "Unknown binning 'widht'. Did you mean 'width'"),
        ({"kind": "classwise"}, "Unknown kind"),
        ({"kind": "class", "class_index": 3}, "class_index is 3"),
    ],
)
def test_bad_options(options, message):
    labels, probs = made(10)
    with pytest.raises(EbmcalError, match=message):
        reliability_bins(labels, probs=probs, **options)


def test_wilson_against_scipy():
    from scipy.stats import binomtest

    labels, probs = made(200)
    bins = reliability_bins(labels, probs=probs, n_bins=5)
    for count, share, low, high in zip(bins.counts, bins.accuracy, bins.low, bins.high, strict=True):
        if count:
            expected = binomtest(round(share * count), int(count)).proportion_ci(method="wilson")
            assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
