"""Properties of every entry of METRICS, over shapes, dtypes and degenerate rows."""

import hypothesis
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from metric_cases import make_rows

from ebmcal import EbmcalError
from ebmcal.metrics import METRICS, find_metric, reliability_bins
from ebmcal.predictions import softmax

NAMES = sorted(METRICS)
UNDEFINED = ("error_auroc", "balanced_brier", "confidence_on_errors")  # NaN without errors


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_probabilities_agree(name):
    logits = np.random.default_rng(0).normal(size=(200, 3))
    labels = np.random.default_rng(1).integers(0, 3, 200)
    value = METRICS[name].function(labels, probs=softmax(logits))
    assert METRICS[name].function(labels, logits=logits) == value
    assert type(value) is float


@pytest.mark.parametrize("name", NAMES)
def test_order_and_memory_layout_do_not_matter_and_inputs_are_not_modified(name):
    labels, probs = make_rows(300)
    before, shuffled = (labels.copy(), probs.copy()), np.random.default_rng(0).permutation(300)
    expected = METRICS[name].function(labels, probs=probs)
    assert METRICS[name].function(labels[shuffled], probs=probs[shuffled]) == pytest.approx(expected, abs=1e-12)
    for layout in (np.asfortranarray(probs), np.repeat(probs, 2, axis=0)[::2], probs.tolist()):
        assert METRICS[name].function(labels, probs=layout) == pytest.approx(expected, abs=1e-15)
    np.testing.assert_array_equal(labels, before[0])
    np.testing.assert_array_equal(probs, before[1])


@pytest.mark.parametrize("name", sorted({*NAMES} - {"aurc", "ece_top_label_debiased", "ece_classwise_debiased"}))
def test_rows_twice_change_nothing(name):  # the others depend on the number of rows by definition
    labels, probs = make_rows(100)
    expected = METRICS[name].function(labels, probs=probs)
    twice = METRICS[name].function(np.tile(labels, 2), probs=np.tile(probs, (2, 1)))
    assert twice == pytest.approx(expected, abs=1e-12)


def test_titles_are_unique_and_qualified():
    titles = [metric.title for metric in METRICS.values()]
    assert len(set(titles)) == len(METRICS)
    assert all("class-wise" in t or "top-label" in t for t in titles if "ECE" in t or "MCE" in t)


def test_unknown_metric():
    with pytest.raises(EbmcalError, match=r"Unknown metric 'ece_claswise'. Did you mean 'ece_classwise'"):
        find_metric("ece_claswise")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("labels", "given"),
    [
        ([0], {}),
        ([0], {"probs": [[0.5, 0.6]]}),
        ([0], {"probs": [[np.nan, 1]]}),
        ([0], {"logits": [[np.inf, 1]]}),
        ([0], {"probs": [0.5]}),
        ([2], {"probs": [[0.5, 0.5]]}),
    ],
)
def test_invalid_input_is_rejected(name, labels, given):
    with pytest.raises(EbmcalError):
        METRICS[name].function(labels, **given)


degenerate = st.sampled_from([0.0, 1e-300, 0.05, 0.15, 0.45, 0.5, 1.0])


@st.composite
def rows(draw):
    n_rows, n_classes = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 3, 17]))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    row = st.lists(degenerate | st.floats(0, 1), min_size=n_classes, max_size=n_classes)
    weights = np.array(draw(st.lists(row, min_size=n_rows, max_size=n_rows)))
    weights[weights.sum(axis=1) < 1e-3, 0] = 1.0
    labels = draw(st.lists(st.integers(0, n_classes - 1), min_size=n_rows, max_size=n_rows))
    return np.array(labels), (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)


@settings(max_examples=100)
@hypothesis.given(rows())
def test_every_metric_is_in_its_range_on_any_rows(case):
    labels, probs = case
    for name, metric in METRICS.items():
        value = metric.function(labels, probs=probs)
        low, high = metric.bounds
        undefined = name in UNDEFINED and np.isnan(value)
        assert undefined or low - 1e-9 <= value <= high + 0.02, name  # float16 rows sum to one only nearly
    assert reliability_bins(labels, probs=probs).counts.sum() == len(labels)


@settings(max_examples=30)
@hypothesis.given(rows())
def test_low_precision_input_is_computed_in_float64(case):
    labels, probs = case
    for metric in METRICS.values():
        low, high = metric.function(labels, probs=probs), metric.function(labels, probs=probs.astype(np.float64))
        assert low == high or (np.isnan(low) and np.isnan(high))
