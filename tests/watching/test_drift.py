"""Drift: if nothing has changed, an alarm is as rare as promised; a real shift is found; Holm by its definition."""

import numpy as np
import pytest
from scipy import stats

from ebmcal.predictions import Predictions
from ebmcal.watching.drift import TESTS, holm, label_test

NAMES = ("a", "b", "c")


def rows(rng, n, shift=0.0):
    logits = rng.normal(size=(n, 3)) * 2 + np.array([shift, 0, -1])
    return Predictions(np.full(n, -1), NAMES, logits=logits, energies=-np.logaddexp.reduce(logits, axis=1))


def any_alarm(seed, shift=0.0, n_windows=4, rate=0.05):
    rng = np.random.default_rng([seed, 7])
    known = rows(rng, 300)
    windows = [rows(rng, 120, shift) for _ in range(n_windows)]
    found = [p for window in windows for test in TESTS.values() if (p := test(known, window)) is not None]
    return any(holm(found, rate))


def test_the_false_alarm_rate_holds():
    alarms = sum(any_alarm(seed, n_windows=3) for seed in range(200))
    assert stats.binomtest(alarms, 200, 0.05, alternative="greater").pvalue > 0.001, alarms


def test_a_shift_is_found():
    assert all(any_alarm(seed, shift=2.0) for seed in range(20))


def test_holm_by_hand():
    assert holm([0.04, 0.001, 0.012], 0.05) == [True, True, True]
    assert holm([0.04, 0.001, 0.03], 0.05) == [False, True, False]
    assert holm([], 0.05) == []
    assert holm([0.01], 0.05, n_tests=10) == [False]
    assert holm([0.004, 0.0055], 0.05, n_tests=10) == [True, True]
    rng = np.random.default_rng(0)
    for _ in range(50):  # the definition: adjusted p = running maximum of (m - i) p
        p = rng.uniform(0, 0.05, size=8)
        order = np.argsort(p)
        adjusted = np.maximum.accumulate((8 - np.arange(8)) * p[order])
        assert [holm(list(p), 0.05)[i] for i in order] == (adjusted <= 0.05).tolist()


def test_labels_with_rare_ones():
    def said(*counts):
        predicted = np.repeat(np.arange(3), counts)
        return Predictions(np.full(len(predicted), -1), NAMES, probs=np.eye(3)[predicted] * 0.9 + 0.1 / 3)

    assert label_test(said(50, 50, 0), said(50, 50, 0)) == pytest.approx(1)
    assert label_test(said(50, 50, 1), said(10, 90, 0)) < 1e-6
    assert label_test(said(100, 0, 0), said(99, 1, 0)) is None
    assert label_test(said(60, 60, 60), said(20, 20, 20)) == pytest.approx(1)
