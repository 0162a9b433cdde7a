"""Masks and layouts of the modes, and that a layout filled with the original gives the original."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebmcal.errors import EbmcalError
from ebmcal.noise.masking import (
    MODES,
    Piece,
    assemble,
    collapse,
    draw_half,
    draw_rest,
    draw_tokens,
    draw_words,
    find_mode,
    to_sequence,
)
from tiny_models import markers_behind

MARKERS = markers_behind(100)
MASK, SEP, WRITE, END = MARKERS.mask, MARKERS.separator, MARKERS.write, MARKERS.end
PAIR = np.array([1, 2, 3, SEP, 4, 5])


def lay_out(mode, ids, masked):
    return MODES[mode].lay_out(np.array(ids), np.array(masked, dtype=bool), MARKERS, MODES[mode].lookahead)


def test_a_run_of_masked_tokens_becomes_one_mask():
    ids, masked = np.arange(8), np.array([1, 1, 0, 1, 0, 0, 1, 1], dtype=bool)
    assert collapse(ids, masked, MASK) == [MASK, 2, MASK, 4, 5, MASK]
    assert collapse(ids, np.ones(8, dtype=bool), MASK) == [MASK]
    assert collapse(ids, np.zeros(8, dtype=bool), MASK) == list(range(8))


def test_each_token_is_masked_with_the_given_probability():
    rng = np.random.default_rng(0)
    masks = np.array([draw_tokens(np.arange(40), 0.4, rng, MARKERS) for _ in range(2000)])
    np.testing.assert_allclose(masks.mean(axis=0), 0.4, atol=0.05)  # 4.5 standard deviations
    together = (masks[:, 1:] & masks[:, :-1]).mean()
    assert together == pytest.approx(0.16, abs=0.01)  # independent of the neighbour


def test_the_separator_is_never_masked_and_something_always_is():
    rng = np.random.default_rng(0)
    for ratio in (0.001, 0.5, 0.999):
        masks = np.array([draw_tokens(PAIR, ratio, rng, MARKERS) for _ in range(200)])
        assert not masks[:, 3].any()
        assert masks.any(axis=1).all()
    assert not draw_tokens(np.array([SEP]), 0.9, rng, MARKERS).any()


def test_half_hides_one_whole_sentence():
    rng = np.random.default_rng(0)
    seen = {tuple(draw_half(PAIR, 0.4, rng, MARKERS)) for _ in range(100)}
    assert seen == {(True,) * 3 + (False,) * 3, (False,) * 4 + (True,) * 2}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20), st.integers(0, 99))
def test_words_are_hidden_as_a_whole(tokens, seed):
    """Tokens (begins a word, is the separator): the separator is a word of its own and never hidden."""
    begins = np.array([b for b, _ in tokens])
    ids = np.array([SEP if s else i for i, (_, s) in enumerate(tokens)])
    masked = draw_words(MODES["gaps"], ids, begins, 0.4, np.random.default_rng(seed), MARKERS)
    assert masked.shape == ids.shape
    assert not masked[ids == SEP].any()
    assert masked.any() == (ids != SEP).any()
    for i in range(1, len(ids)):
        if not begins[i] and SEP not in ids[i - 1 : i + 1]:
            assert masked[i] == masked[i - 1]


def test_words_are_hidden_with_the_given_probability():
    begins = np.arange(40) % 3 == 0
    rng = np.random.default_rng(0)
    masks = np.array([draw_words(MODES["gaps"], np.arange(40), begins, 0.3, rng, MARKERS) for _ in range(2000)])
    np.testing.assert_allclose(masks.mean(axis=0), 0.3, atol=0.05)


def test_layout_of_infill():
    assert lay_out("infill", [1, 2, 3, SEP, 4], [0, 1, 1, 0, 0]) == [
        Piece([], [1, MASK, SEP, 4, WRITE], [1, 2, 3, SEP, 4])
    ]


def test_continue_rewrites_the_end_and_the_separator_stays():
    rng = np.random.default_rng(0)
    masks = np.array([draw_rest(np.arange(40), 0.4, rng, MARKERS) for _ in range(500)])
    assert masks.mean() == pytest.approx(0.4, abs=0.02)
    assert all(not np.diff(m.astype(int)).min(initial=0) < 0 for m in masks)  # once hidden, hidden to the end
    assert len(set(masks.sum(axis=1))) > 10
    pairs = np.array([draw_rest(PAIR, 0.9, rng, MARKERS) for _ in range(50)])
    assert not pairs[:, :4].any()
    assert pairs[:, 5].all()
    assert draw_rest(np.array([7]), 0.01, rng, MARKERS).tolist() == [True]
    assert not draw_rest(np.array([7, SEP]), 0.9, rng, MARKERS).any()  # there is no second sentence


def test_layout_of_continue():
    assert lay_out("continue", [1, 2, 3], [0, 0, 1]) == [Piece([1, 2], [], [3])]
    ids, learn = to_sequence([Piece([1, 2], [], [3], before=[END])], MARKERS)
    assert ids.tolist() == [END, 1, 2, 3, END]
    assert learn.tolist() == [False, True, True, True, True]


def test_layout_of_plain():
    masked = MODES["plain"].draw(PAIR, 0.4, np.random.default_rng(0), MARKERS)
    assert lay_out("plain", PAIR, masked) == [Piece([], [WRITE], PAIR.tolist())]


def test_layout_of_gaps():
    """The preview is what follows the gap, other gaps as masks, four tokens long."""
    pieces = lay_out("gaps", [1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 1, 0, 0, 1, 0, 0, 0])
    assert pieces == [
        Piece([1], [MASK, 4, 5, MASK, 7, WRITE], [2, 3]),
        Piece([4, 5], [MASK, 7, 8, 9, WRITE], [6]),
        Piece([7, 8, 9], [], None),
    ]


def test_layout_of_gaps_at_both_ends():
    assert lay_out("gaps", [1, 2, 3], [1, 0, 1]) == [
        Piece([], [MASK, 2, MASK, WRITE], [1]),
        Piece([2], [MASK, WRITE], [3]),
        Piece([], [], None),
    ]


def test_layout_of_half_shows_the_whole_kept_sentence():
    first = lay_out("half", PAIR, [1, 1, 1, 0, 0, 0])
    assert first == [Piece([], [MASK, SEP, 4, 5, WRITE], [1, 2, 3]), Piece([SEP, 4, 5], [], None)]
    second = lay_out("half", PAIR, [0, 0, 0, 0, 1, 1])
    assert second == [Piece([1, 2, 3, SEP], [MASK, WRITE], [4, 5]), Piece([], [], None)]


def test_the_loss_is_on_the_text_and_the_end_marks():
    ids, learn = to_sequence(lay_out("gaps", [1, 2, 3, 4], [0, 1, 0, 0]), MARKERS)
    assert ids.tolist() == [1, MASK, 3, 4, WRITE, 2, END, 3, 4]
    assert learn.tolist() == [True, False, False, False, False, True, True, True, True]
    ids, learn = to_sequence(lay_out("infill", [1, 2], [0, 1]), MARKERS)
    assert ids.tolist() == [1, MASK, WRITE, 1, 2, END]
    assert learn.tolist() == [False, False, False, True, True, True]


def texts(pairs):
    sentence = st.lists(st.integers(0, 99), max_size=12)
    return st.tuples(sentence, sentence).map(lambda p: [*p[0], SEP, *p[1]]) if pairs else sentence


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_the_original_in_the_gaps_gives_the_original(mode, pairs, data):
    ids = np.array(data.draw(texts(pairs)), dtype=np.int64)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    masked = MODES[mode].draw(ids, data.draw(st.floats(0.01, 0.99)), rng, MARKERS)
    pieces = MODES[mode].lay_out(ids, masked, MARKERS, MODES[mode].lookahead)
    originals = [p.written for p in pieces if p.written is not None]
    assert assemble(pieces, originals) == ids.tolist()
    assert all(p.written is not None for p in pieces[:-1])  # nothing but the end is without a gap
    sequence, learn = to_sequence(pieces, MARKERS)
    assert len(sequence) == len(learn) > 0
    text = [t for t, wanted in zip(sequence.tolist(), learn, strict=True) if wanted and t != END]
    assert text == ids.tolist()  # every token of the text is learned, once
    assert not learn[(sequence == MASK) | (sequence == WRITE)].any()


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30))
def test_collapsed_text_keeps_the_open_tokens_in_order(tokens):
    ids, masked = np.array([t for t, _ in tokens], dtype=np.int64), np.array([m for _, m in tokens], dtype=bool)
    short = collapse(ids, masked, MASK)
    assert [t for t in short if t != MASK] == ids[~masked].tolist()
    assert not any(a == b == MASK for a, b in itertools.pairwise(short))


def test_unwritten_gaps_stay_empty():
    """A sample that ran out of tokens has not come to its last gaps."""
    pieces = lay_out("gaps", [1, 2, 3, 4, 5], [0, 1, 0, 1, 0])
    assert assemble(pieces, [[9]]) == [1, 9, 3, 5]


def test_an_unknown_mode_names_the_near_ones():
    with pytest.raises(EbmcalError, match=r"Unknown noise mode 'infil'. Did you mean 'infill'"):
        find_mode("infil")
    assert find_mode("half").pairs_only
    assert not any(mode.pairs_only for name, mode in MODES.items() if name != "half")
