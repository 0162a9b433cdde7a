"""Masks and layouts of the modes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise_models import MARKERS

from ebmcal.noise.causal_lm import Layout, NoiseLm, mask_tokens, merge_masks

MASK, SEP, WRITE, END = MARKERS.mask, MARKERS.separator, MARKERS.write, MARKERS.end
PAIR = np.array([1, 2, 3, SEP, 4, 5])


def make_lm(mode):
    model = SimpleNamespace(config=SimpleNamespace(n_positions=1000))
    return NoiseLm(model, None, MARKERS, mode, mask_ratio=0.4)


def test_a_run_of_masked_tokens_becomes_one_mask():
    ids, masked = np.arange(8), np.array([1, 1, 0, 1, 0, 0, 1, 1], dtype=bool)
    assert merge_masks(ids, masked, MASK) == [MASK, 2, MASK, 4, 5, MASK]
    assert merge_masks(ids, np.ones(8, dtype=bool), MASK) == [MASK]
    assert merge_masks(ids, np.zeros(8, dtype=bool), MASK) == list(range(8))


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30))
def test_merging_keeps_the_unmasked_tokens_in_order(tokens):
    ids, masked = np.array([t for t, _ in tokens], dtype=np.int64), np.array([m for _, m in tokens], dtype=bool)
    merged = merge_masks(ids, masked, MASK)
    assert [t for t in merged if t != MASK] == ids[~masked].tolist()
    assert not any(a == b == MASK for a, b in itertools.pairwise(merged))


def test_each_token_is_masked_independently_with_the_given_probability():
    rng = np.random.default_rng(0)
    masks = np.array([mask_tokens(np.arange(40), 0.4, rng, SEP) for _ in range(2000)])
    np.testing.assert_allclose(masks.mean(axis=0), 0.4, atol=0.05)  # 4.5 standard deviations
    assert (masks[:, 1:] & masks[:, :-1]).mean() == pytest.approx(0.16, abs=0.01)


def test_the_separator_is_never_masked_and_something_always_is():
    rng = np.random.default_rng(0)
    for ratio in (0.001, 0.5, 0.999):
        masks = np.array([mask_tokens(PAIR, ratio, rng, SEP) for _ in range(200)])
        assert not masks[:, 3].any()
        assert masks.any(axis=1).all()
    assert not mask_tokens(np.array([SEP]), 0.9, rng, SEP).any()


@pytest.mark.parametrize(
    ("mode", "masked", "expected"),
    [
        ("infill", [0, 1, 1, 0, 0, 0], Layout([END, 1, MASK, SEP, 4, 5, WRITE], PAIR.tolist())),
        ("plain", [0] * 6, Layout([END, WRITE], PAIR.tolist())),
    ],
)
def test_layouts(mode, masked, expected):
    assert make_lm(mode).lay_out(PAIR, np.array(masked, dtype=bool)) == expected


def test_the_loss_is_on_the_target_and_the_end_of_text():
    lm = make_lm("infill")
    ids, has_loss = lm.training_sequence(lm.lay_out(np.array([1, 2]), np.array([False, True])))
    assert ids.tolist() == [END, 1, MASK, WRITE, 1, 2, END]
    assert has_loss.tolist() == [False] * 4 + [True] * 3
