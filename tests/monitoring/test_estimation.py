"""Accuracy estimation: by hand, and its coverage over redrawn samples."""

import numpy as np
import pytest
from scipy import stats

from ebmcal import EbmcalError, Predictions
from ebmcal.monitoring.statistics import ESTIMATORS, estimate_accuracy

NAMES = ("a", "b", "c")


def predict(rng, n, sharpness=1.0):
    """Calibrated at sharpness 1: labels are drawn from the probabilities; harder texts have higher energies."""
    scale = rng.uniform(0.5, 3, size=(n, 1))
    logits = rng.normal(size=(n, 3)) * scale
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions(drawn, NAMES, logits=logits * sharpness, energies=-scale[:, 0])


def accuracy(predictions):
    return (predictions.predicted == predictions.labels).mean()


def test_by_hand():
    probs = [[0.9, 0.1]] * 5 + [[0.6, 0.4]] * 5
    known = Predictions([0] * 6 + [1] * 4, NAMES[:2], probs=probs, energies=np.arange(10.0))
    new = Predictions([-1] * 4, NAMES[:2], probs=[[0.9, 0.1]] * 3 + [[0.6, 0.4]], energies=[0.0, 0.0, 9.0, 99.0])
    found = estimate_accuracy(known, new)
    assert found["confidence"]["value"] == pytest.approx(0.825 - 0.15)  # overconfident by .75 − .6
    assert found["threshold"]["value"] in (0.75, 1.0)  # six of ten are correct; the sixth confidence is a tie
    assert found["energy"]["value"] == pytest.approx(0.5)  # two rows in the first fifth (all correct), two in the last


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_interval_covers_the_accuracy_without_drift(name, sharpness):
    n_draws, n_covered = 300, 0
    for seed in range(n_draws):
        rng = np.random.default_rng([seed, 1])
        known, new = predict(rng, 300, sharpness), predict(rng, 200, sharpness)
        found = ESTIMATORS[name](known, new)
        n_covered += found["low"] <= accuracy(new) <= found["high"]
    assert stats.binomtest(n_covered, n_draws, 0.93, alternative="less").pvalue > 0.001, n_covered / n_draws


def test_the_estimate_by_confidence_follows_harder_texts():
    rng = np.random.default_rng(0)
    known = predict(rng, 2000)
    hard = rng.normal(size=(2000, 3)) * 0.5
    new = Predictions((hard + rng.gumbel(size=hard.shape)).argmax(axis=1), NAMES, logits=hard)
    found = estimate_accuracy(known, new)
    assert "energy" not in found
    assert accuracy(new) < accuracy(known) - 0.1
    assert found["confidence"]["low"] <= accuracy(new) <= found["confidence"]["high"]


def test_one_labelled_row_is_too_few():
    one = Predictions([0, -1], NAMES[:2], probs=[[0.9, 0.1]] * 2)
    with pytest.raises(EbmcalError, match="at least 2 labelled"):
        estimate_accuracy(one, one)
