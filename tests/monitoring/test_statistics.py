"""Statistics of a window: the accuracy estimate covers the truth, drift tests keep their rate and find a real shift."""

import numpy as np
import pytest
from scipy import stats

from ebmcal import Predictions
from ebmcal.monitoring import MIN_ROWS, compare_labels, estimate_accuracy, p_values, significant

NAMES = ("a", "b", "c")


def predict(rng, n, sharpness=1.0, scale=None):
    """Calibrated at sharpness 1: labels are drawn from the probabilities."""
    logits = rng.normal(size=(n, 3)) * (rng.uniform(0.5, 3, size=(n, 1)) if scale is None else scale)
    return Predictions((logits + rng.gumbel(size=logits.shape)).argmax(axis=1), NAMES, logits=logits * sharpness)


def accuracy(predictions):
    return (predictions.predicted == predictions.labels).mean()


def test_the_estimate_by_hand():
    known = Predictions([0] * 6 + [1] * 4, NAMES[:2], probs=[[0.9, 0.1]] * 5 + [[0.6, 0.4]] * 5)
    new = Predictions([-1] * 4, NAMES[:2], probs=[[0.9, 0.1]] * 3 + [[0.6, 0.4]])
    assert estimate_accuracy(known, new)["value"] == pytest.approx(0.825 - 0.15)  # overconfident by .75 − .6


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
def test_the_interval_covers_the_accuracy_without_drift(sharpness):
    n_draws, n_covered = 300, 0
    for seed in range(n_draws):
        rng = np.random.default_rng([seed, 1])
        known, new = predict(rng, 300, sharpness), predict(rng, 200, sharpness)
        found = estimate_accuracy(known, new)
        n_covered += found["low"] <= accuracy(new) <= found["high"]
    assert stats.binomtest(n_covered, n_draws, 0.93, alternative="less").pvalue > 0.001, n_covered / n_draws


def shifted(rng, n, shift=0.0):
    logits = rng.normal(size=(n, 3)) * 2 + np.array([shift, 0, -1])
    return Predictions(np.full(n, -1), NAMES, logits=logits, energies=-np.logaddexp.reduce(logits, axis=1))


def has_alarm(seed, shift=0.0, n_windows=4, rate=0.05):
    rng = np.random.default_rng([seed, 7])
    known = shifted(rng, 300)
    found = [p for _ in range(n_windows) for p in p_values(known, shifted(rng, 120, shift)).values()]
    return any(significant(found, rate))


def test_the_false_alarm_rate_holds_and_a_shift_is_detected():
    n_alarms = sum(has_alarm(seed, n_windows=2) for seed in range(150))
    assert stats.binomtest(n_alarms, 150, 0.05, alternative="greater").pvalue > 0.001, n_alarms
    assert all(has_alarm(seed, shift=2.0) for seed in range(10))


def test_small_windows_are_not_tested_and_energies_are_optional():
    rng = np.random.default_rng(0)
    known, window = shifted(rng, 300), shifted(rng, 100)
    assert p_values(known, shifted(rng, MIN_ROWS - 1)) == {}
    assert set(p_values(known, window)) == {"energy", "confidence", "predicted labels"}
    assert set(p_values(known, window.replace(energies=None))) == {"confidence", "predicted labels"}


@pytest.mark.parametrize(
    ("p", "n_tests", "expected"),
    [
        ([0.04, 0.001, 0.012], None, [True, True, True]),
        ([0.04, 0.001, 0.03], None, [False, True, False]),
        ([], None, []),
        ([0.01], 10, [False]),
        ([0.004, 0.0055], 10, [True, True]),
    ],
)
def test_holm_over_all_tests_including_planned_ones(p, n_tests, expected):
    assert significant(p, 0.05, n_tests) == expected


@pytest.mark.parametrize(
    ("reference", "window", "expected"),
    [
        ((50, 50, 0), (50, 50, 0), 1),
        ((50, 50, 1), (10, 90, 0), 0),  # the rare label is pooled
        ((60, 60, 60), (20, 20, 20), 1),
        ((100, 0, 0), (99, 1, 0), None),  # nothing to compare
    ],
)
def test_predicted_labels_by_hand(reference, window, expected):
    def predicted(counts):
        classes = np.repeat(np.arange(3), counts)
        return Predictions(np.full(len(classes), -1), NAMES, probs=np.eye(3)[classes] * 0.9 + 0.1 / 3)

    p = compare_labels(predicted(reference), predicted(window))
    assert p is None if expected is None else p == pytest.approx(expected, abs=1e-6)


def test_the_estimate_follows_harder_texts():
    rng = np.random.default_rng(0)
    known, new = predict(rng, 2000), predict(rng, 2000, scale=0.5)
    found = estimate_accuracy(known, new)
    assert accuracy(new) < accuracy(known) - 0.1
    assert found["low"] <= accuracy(new) <= found["high"]
