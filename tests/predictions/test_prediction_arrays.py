"""Array checks: what passes unchanged, what is refused, and that the message names the place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ebmcal.errors import EbmcalError
from ebmcal.predictions import CHUNK_ENTRIES, SUM_TOLERANCE, as_labels_and_probs, as_probs, softmax

GOOD = [[0.2, 0.8], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (None, r"exactly one of logits= and probs=.*neither"),
        ([[0.2, 0.8], [np.nan, 0.5]], r"probs\[1, 0\] is nan"),
        ([[0.2, 0.8], [0.5, np.inf]], r"probs\[1, 1\] is inf"),
        ([[0.2, 0.8], [-1.5, 2.5]], r"probs\[1, 0\] is -1.5.*pass logits as logits="),
        ([[0.2, 0.8], [-0.5, 1.5]], r"probs\[1, 0\] is -0.5"),
        ([[0.2, 0.8], [0.5, 1.0]], r"probs\[1\] sums to 1.5"),
        ([[0.2, 0.8], [0.2, 0.2]], r"probs\[1\] sums to 0.4"),
        ([0.2, 0.8], r"expected shape \(n_rows, n_classes\).*np.stack"),
        ([[[0.2, 0.8]]], r"expected shape \(n_rows, n_classes\), got float64 of shape \(1, 1, 2\)"),
        (np.zeros((0, 2)), "at least one row"),
        (np.zeros((2, 0)), "at least one row and one class"),
        ([["a", "b"]], "expected numbers"),
        ([[0.2, 0.8], [1.0]], "not an array|expected"),
        ([[1 + 1j, 0]], "expected numbers"),
        ([[True, False]], "expected numbers"),
    ],
)
def test_bad_probs_are_refused_by_place(probs, message):
    with pytest.raises(EbmcalError, match=message):
        as_probs(probs=probs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_are_refused_by_place(value):
    with pytest.raises(EbmcalError, match=r"logits\[2, 1\] is"):
        as_probs(logits=[[0.0, 0.0], [1.0, 0.0], [0.0, value]])


def test_rows_count_through_chunks():
    rows = 3 * CHUNK_ENTRIES
    probs = np.full((rows, 2), 0.5)
    probs[rows - 2, 1] = 0.7
    with pytest.raises(EbmcalError, match=rf"probs\[{rows - 2}\] sums to 1.2"):
        as_probs(probs=probs)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 2], r"labels\[1\] is 2; with 2 columns a label must be 0..1"),
        ([0, -1], r"labels\[1\] is -1.*without a label"),
        ([-100, 0], r"labels\[0\] is -100"),
        ([0], "labels has 1 row, the predictions have 2"),
        ([0.0, 1.0], "expected integers"),
        ([[0], [1]], "expected integers"),
        (["no", "yes"], "Map class names"),
        ([None, 1], "expected integers"),
    ],
)
def test_bad_labels_are_refused_by_place(labels, message):
    with pytest.raises(EbmcalError, match=message):
        as_labels_and_probs(labels, probs=GOOD)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_probabilities_written_in_low_precision_pass(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    rng = np.random.default_rng(0)
    for n_classes in (2, 3, 50, 1000):
        probs = softmax(rng.normal(size=(200, n_classes)) * 3)
        rounded = probs.astype(dtype)
        np.testing.assert_array_equal(as_probs(probs=rounded), rounded.astype(np.float64))


def test_tensor_that_numpy_cannot_hold_is_explained():
    torch = pytest.importorskip("torch")
    with pytest.raises(EbmcalError, match=r"x.detach\(\).float\(\)"):
        as_probs(logits=torch.zeros(2, 2, requires_grad=True))
    np.testing.assert_array_equal(as_probs(logits=torch.zeros(1, 2)), [[0.5, 0.5]])


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
        elements={"allow_nan": True, "allow_infinity": True},
    )
)
def test_any_array_is_checked_or_refused_never_a_number_from_garbage(array):
    for name in ("logits", "probs"):
        try:
            probs = as_probs(**{name: array})
        except EbmcalError:
            continue
        assert probs.shape == array.shape
        assert np.isfinite(probs).all()
        assert (probs >= 0).all()
        assert abs(probs.sum(axis=1) - 1).max() <= SUM_TOLERANCE * 1.001


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=20),
        elements=st.floats(-6e4, 6e4, width=16),
    )
)
def test_softmax_rows_sum_to_one_and_keep_the_order(logits):
    probs = softmax(logits)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-12)
    best = np.take_along_axis(probs, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(best, probs.max(axis=1))
