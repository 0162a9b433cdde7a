"""Masks and layouts of the modes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise_models import MARKERS

from ebmcal.noise.causal_lm import MODES, Layout, mask_end, mask_sentence, mask_tokens, merge_masks
from ebmcal.noise.setting import LM_MODES

MASK, SEP, WRITE, END = MARKERS.mask, MARKERS.separator, MARKERS.write, MARKERS.end
PAIR = np.array([1, 2, 3, SEP, 4, 5])


def lay_out(mode, ids, masked):
    return MODES[mode].lay_out(np.array(ids), np.array(masked, dtype=bool), MARKERS, [END])


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


def test_half_masks_one_whole_sentence():
    rng = np.random.default_rng(0)
    seen = {tuple(mask_sentence(PAIR, 0.4, rng, SEP)) for _ in range(100)}
    assert seen == {(True,) * 3 + (False,) * 3, (False,) * 4 + (True,) * 2}


def test_continue_masks_the_end_of_the_last_sentence():
    rng = np.random.default_rng(0)
    masks = np.array([mask_end(np.arange(40), 0.4, rng, SEP) for _ in range(500)])
    assert masks.mean() == pytest.approx(0.4, abs=0.02)
    assert all(np.diff(m.astype(int)).min(initial=0) == 0 for m in masks)  # masked up to the end
    assert len(set(masks.sum(axis=1))) > 10
    pairs = np.array([mask_end(PAIR, 0.9, rng, SEP) for _ in range(50)])
    assert not pairs[:, :4].any()
    assert pairs[:, 5].all()
    assert mask_end(np.array([7]), 0.01, rng, SEP).tolist() == [True]
    assert not mask_end(np.array([7, SEP]), 0.9, rng, SEP).any()  # there is no second sentence


@pytest.mark.parametrize(
    ("mode", "ids", "masked", "expected"),
    [
        ("infill", [1, 2, 3, SEP, 4], [0, 1, 1, 0, 0], Layout([END, 1, MASK, SEP, 4, WRITE], [1, 2, 3, SEP, 4])),
        ("continue", [1, 2, 3], [0, 0, 1], Layout([END, 1, 2], [3], before=[1, 2], learn_from=1)),
        ("plain", PAIR, [0] * 6, Layout([END, WRITE], PAIR.tolist())),
        ("half", PAIR, [1, 1, 1, 0, 0, 0], Layout([END, MASK, SEP, 4, 5, WRITE], [1, 2, 3], after=[SEP, 4, 5])),
        ("half", PAIR, [0, 0, 0, 0, 1, 1], Layout([END, 1, 2, 3, SEP, MASK, WRITE], [4, 5], before=[1, 2, 3, SEP])),
    ],
)
def test_layouts(mode, ids, masked, expected):
    assert lay_out(mode, ids, masked) == expected


def test_the_loss_is_on_the_target_and_the_end_of_text():
    ids, has_loss = lay_out("infill", [1, 2], [0, 1]).to_sequence(END)
    assert ids.tolist() == [END, 1, MASK, WRITE, 1, 2, END]
    assert has_loss.tolist() == [False] * 4 + [True] * 3
    ids, has_loss = lay_out("continue", [1, 2, 3], [0, 0, 1]).to_sequence(END)
    assert ids.tolist() == [END, 1, 2, 3, END]
    assert has_loss.tolist() == [False, True, True, True, True]


def texts(pairs):
    sentence = st.lists(st.integers(0, 99), max_size=12)
    return st.tuples(sentence, sentence).map(lambda p: [*p[0], SEP, *p[1]]) if pairs else sentence


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_a_layout_with_its_own_target_is_the_original_text(mode, pairs, data):
    ids = np.array(data.draw(texts(pairs)), dtype=np.int64)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    masked = MODES[mode].draw_mask(ids, data.draw(st.floats(0.01, 0.99)), rng, SEP)
    layout = MODES[mode].lay_out(ids, masked, MARKERS, [END])
    assert layout.before + layout.target + layout.after == ids.tolist()
    sequence, has_loss = layout.to_sequence(END)
    assert len(sequence) == len(has_loss) > 0
    assert has_loss[-1]
    assert not has_loss[(sequence == MASK) | (sequence == WRITE)].any()
    assert sequence[has_loss][-1 - len(layout.target) :].tolist() == [*layout.target, END]


def test_modes_have_the_names_of_the_setting():
    assert tuple(MODES) == LM_MODES
    assert [name for name, mode in MODES.items() if mode.pairs_only] == ["half"]
