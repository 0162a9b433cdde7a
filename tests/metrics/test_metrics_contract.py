"""What holds for every entry of METRICS, over shapes, dtypes and degenerate rows."""

import numpy as np
import pytest
from cases import made
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmcal.errors import EbmcalError
from ebmcal.metrics import METRICS, reliability_bins
from ebmcal.metrics.registry import metric
from ebmcal.predictions.arrays import softmax

NAMES = sorted(METRICS)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_probabilities_agree(name):
    logits = np.random.default_rng(0).normal(size=(200, 3))
    labels = np.random.default_rng(1).integers(0, 3, 200)
    value = METRICS[name].function(labels, probs=softmax(logits))
    assert METRICS[name].function(labels, logits=logits) == value
    assert type(value) is float


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_as_they_were(name):
    labels, probs = made(50)
    before = labels.copy(), probs.copy()
    METRICS[name].function(labels, probs=probs)
    np.testing.assert_array_equal(labels, before[0])
    np.testing.assert_array_equal(probs, before[1])


@pytest.mark.parametrize("name", NAMES)
def test_order_of_rows_does_not_matter(name):
    labels, probs = made(300)
    shuffled = np.random.default_rng(0).permutation(300)
    expected = METRICS[name].function(labels, probs=probs)
    assert METRICS[name].function(labels[shuffled], probs=probs[shuffled]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_rows_twice_change_nothing(name):
    labels, probs = made(100)
    if name in ("aurc", "ece_top_label_debiased", "ece_classwise_debiased"):
        pytest.skip("depends on the number of rows by definition")
    expected = METRICS[name].function(labels, probs=probs)
    twice = METRICS[name].function(np.tile(labels, 2), probs=np.tile(probs, (2, 1)))
    assert twice == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [np.asfortranarray, lambda p: np.repeat(p, 2, axis=0)[::2], lambda p: p.tolist()])
def test_memory_layout_does_not_matter(name, make):
    labels, probs = made(40)
    assert METRICS[name].function(labels, probs=make(probs)) == METRICS[name].function(labels, probs=probs)


@pytest.mark.parametrize("name", NAMES)
def test_sums_make_the_metric(name):
    labels, probs = made(300)
    sums = METRICS[name].sums(labels, probs)
    assert sums.value() == pytest.approx(METRICS[name].function(labels, probs=probs), abs=1e-12)
    columns, values = sums.entries(slice(0, 300))
    by_entries = np.bincount(columns.ravel(), values.ravel(), minlength=sums.n_sums)
    np.testing.assert_allclose(by_entries, sums.totals(), atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_resampled_sums_are_the_metric_of_resampled_rows(name):
    labels, probs = made(60)
    weights = np.bincount(np.random.default_rng(0).integers(0, 60, 60), minlength=60)
    sums = METRICS[name].sums(labels, probs)
    columns, values = sums.entries(slice(0, 60))
    weighed = np.bincount(columns.ravel(), (values * weights).ravel(), minlength=sums.n_sums)
    rows = np.repeat(np.arange(60), weights)
    expected = METRICS[name].function(labels[rows], probs=probs[rows])
    assert sums.finish(weighed, np.float64(60)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_display_names_are_qualified(name):
    display = METRICS[name].display
    if "ECE" in display or "MCE" in display:
        assert "class-wise" in display or "top-label" in display
        assert "20 bins" in display or "smooth" in display
    assert "{" not in display


def test_display_names_differ_and_follow_options():
    assert len({m.display for m in METRICS.values()}) == len(METRICS)
    shown = METRICS["ece_classwise"].display_with(n_bins=15, binning="mass")
    assert shown == "ECE class-wise (15 equal-mass bins)"


def test_unknown_metric():
    with pytest.raises(EbmcalError, match=r"Unknown metric 'ece_claswise'. Did you mean 'ece_classwise'"):
        metric("ece_claswise")


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_refused(name):
    for bad in ({}, {"probs": [[0.5, 0.6]]}, {"probs": [[np.nan, 1]]}, {"logits": [[np.inf, 1]]}, {"probs": [0.5]}):
        with pytest.raises(EbmcalError):
            METRICS[name].function([0], **bad)
    with pytest.raises(EbmcalError):
        METRICS[name].function([2], probs=[[0.5, 0.5]])


degenerate = st.sampled_from([0.0, 1e-300, 0.05, 0.15, 0.45, 0.5, 1.0])


@st.composite
def rows(draw):
    n_rows, n_classes = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 3, 17]))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    weights = draw(
        st.lists(
            st.lists(degenerate | st.floats(0, 1), min_size=n_classes, max_size=n_classes),
            min_size=n_rows,
            max_size=n_rows,
        )
    )
    weights = np.array(weights)
    weights[weights.sum(axis=1) < 1e-3, 0] = 1.0
    labels = draw(st.lists(st.integers(0, n_classes - 1), min_size=n_rows, max_size=n_rows))
    return np.array(labels), (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)


@settings(max_examples=100, deadline=None)
@given(rows())
def test_every_metric_is_in_its_range_on_any_rows(case):
    labels, probs = case
    for name, entry in METRICS.items():
        value = entry.function(labels, probs=probs)
        low, high = entry.bounds
        undefined = name == "error_auroc" and np.isnan(value)
        assert undefined or low - 1e-9 <= value <= high + 0.02, name  # float16 rows sum to one only nearly
    counts = reliability_bins(labels, probs=probs).counts
    assert counts.sum() == len(labels)


@settings(max_examples=30, deadline=None)
@given(rows())
def test_low_precision_input_is_computed_in_float64(case):
    labels, probs = case
    for entry in METRICS.values():
        low, high = entry.function(labels, probs=probs), entry.function(labels, probs=probs.astype(np.float64))
        assert low == high or (np.isnan(low) and np.isnan(high))


def test_bfloat16_rows():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    labels, probs = made(200)
    rounded = probs.astype(ml_dtypes.bfloat16)
    for entry in METRICS.values():
        assert entry.function(labels, probs=rounded) == entry.function(labels, probs=rounded.astype(np.float64))
