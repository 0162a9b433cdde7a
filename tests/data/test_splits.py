"""Splits: published halves, stratification, independence of the row order, no text in two parts, stable for ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmcal.data import stratified_folds, stratified_split, stratified_subset
from ebmcal.errors import EbmcalError

KEYS = np.random.default_rng(0).integers(0, 2**63, 5000).astype(np.uint64)
LABELS = np.random.default_rng(1).choice(4, 5000, p=[0.6, 0.3, 0.08, 0.02])


def test_a_split_keeps_every_row_once_and_the_label_shares():
    parts = stratified_split(KEYS, LABELS, (0.1, 0.1), seed=0)
    assert sorted(np.concatenate(parts)) == list(range(5000))
    assert [len(p) for p in parts] == [4000, 500, 500]
    for part in parts:
        shares = np.bincount(LABELS[part], minlength=4) / len(part)
        np.testing.assert_allclose(shares, np.bincount(LABELS) / 5000, atol=0.003)


def test_a_split_depends_on_the_seed_and_not_on_the_row_order():
    order = np.random.default_rng(2).permutation(5000)
    test = stratified_split(KEYS, LABELS, (0.1,), seed=3)[1]
    moved = stratified_split(KEYS[order], LABELS[order], (0.1,), seed=3)[1]
    assert set(KEYS[test]) == set(KEYS[order][moved])
    other = stratified_split(KEYS, LABELS, (0.1,), seed=4)[1]
    assert len(set(test) & set(other)) < 100


def test_splits_never_change():
    keys, labels = np.arange(20, dtype=np.uint64), np.arange(20) % 2
    assert [p.tolist() for p in stratified_split(keys, labels, (0.1, 0.1), seed=0)[1:]] == [[3, 10], [11, 18]]


def test_equal_texts_stay_in_one_part():
    keys = KEYS[np.random.default_rng(5).integers(0, 800, 5000)]
    parts = [set(keys[p]) for p in stratified_split(keys, LABELS, (0.2, 0.2), seed=0)]
    assert sum(len(part) for part in parts) == len(set.union(*parts))


def test_a_subset_is_stratified_nested_and_in_order():
    small = stratified_subset(KEYS, LABELS, 100, seed=0)
    large = stratified_subset(KEYS, LABELS, 1000, seed=0)
    assert (len(small), len(large)) == (100, 1000)
    assert set(small) <= set(large)
    assert (np.diff(large) > 0).all()
    np.testing.assert_allclose(np.bincount(LABELS[large]) / 1000, np.bincount(LABELS) / 5000, atol=0.002)


def test_a_subset_keeps_every_class_or_refuses():
    labels = np.array([0] * 997 + [1, 2, 3])
    assert set(labels[stratified_subset(KEYS[:1000], labels, 4, seed=0)]) == {0, 1, 2, 3}
    with pytest.raises(EbmcalError, match="3 rows cannot hold 4 classes"):
        stratified_subset(KEYS[:1000], labels, 3, seed=0)
    assert len(stratified_subset(KEYS[:1000], labels, 3, seed=0, every_class=False)) == 3


def test_folds_are_balanced_in_size_and_in_every_class():
    folds = stratified_folds(KEYS, LABELS, 5, seed=0)
    for labels in (LABELS >= 0, *(c == LABELS for c in range(4))):
        counts = np.bincount(folds[labels], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert (folds == stratified_folds(KEYS, LABELS, 5, seed=0)).all()
    assert (folds != stratified_folds(KEYS, LABELS, 5, seed=1)).mean() > 0.5


def test_folds_keep_copies_together_and_do_not_depend_on_the_row_order():
    keys = KEYS[np.random.default_rng(5).integers(0, 800, 5000)]
    folds = stratified_folds(keys, LABELS, 5, seed=0)
    assert all(len(set(folds[keys == key])) == 1 for key in set(keys[:300]))
    order = np.random.default_rng(2).permutation(5000)
    assert (stratified_folds(keys[order], LABELS[order], 5, seed=0) == folds[order]).all()


@pytest.mark.parametrize(
    ("n_folds", "n_distinct", "words"),
    [
        (1, 10, "n_folds is 1; expected at least 2"),
        (-2, 10, "n_folds is -2; expected at least 2"),
        (11, 10, "11 folds need at least 11 different training texts, got 10"),
        (5, 2, "5 folds need at least 5 different training texts, got 2"),
    ],
)
def test_impossible_numbers_of_folds(n_folds, n_distinct, words):
    keys = np.arange(30, dtype=np.uint64) % n_distinct
    with pytest.raises(EbmcalError, match=words):
        stratified_folds(keys, np.zeros(30, np.int64), n_folds, seed=0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=1, max_size=80), st.integers(0, 5))
def test_any_split_is_a_partition(rows, seed):
    keys = np.array([key for key, _ in rows], dtype=np.uint64)
    labels = np.array([label for _, label in rows])
    parts = stratified_split(keys, labels, (0.2, 0.3), seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(rows)))
    assert len(parts[0]) > 0
    for size in (1, len(rows) // 2, len(rows)):
        if size >= len(set(labels.tolist())):
            chosen = stratified_subset(keys, labels, size, seed)
            assert len(set(chosen.tolist())) == len(chosen) == size
            assert set(labels[chosen]) == set(labels)
