"""The accuracy to expect: by hand, and as statistics over redrawn samples."""

import numpy as np
import pytest
from scipy import stats

from ebmcal.predictions import Predictions
from ebmcal.watching.expecting import ESTIMATES, expect

NAMES = ("a", "b", "c")


def rows(rng, n, sharpness=1.0, labels=True):
    """Calibrated at sharpness 1: labels are drawn from the probabilities; harder texts have higher energies."""
    hardness = rng.uniform(0.5, 3, size=(n, 1))
    logits = rng.normal(size=(n, 3)) * hardness
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions(drawn if labels else np.full(n, -1), NAMES, logits=logits * sharpness, energies=-hardness[:, 0])


def test_by_hand():
    probs = [[0.9, 0.1]] * 5 + [[0.6, 0.4]] * 5
    known = Predictions([0] * 6 + [1] * 4, NAMES[:2], probs=probs, energies=np.arange(10.0))
    new = Predictions([-1] * 4, NAMES[:2], probs=[[0.9, 0.1]] * 3 + [[0.6, 0.4]], energies=[0.0, 0.0, 9.0, 99.0])
    found = expect(known, new)
    assert found["confidence"].value == pytest.approx(0.825 - 0.15)  # overconfident by .75 - .6
    assert found["threshold"].value in (0.75, 1.0)  # six of ten are right; the sixth confidence is a tie
    assert found["energy"].value == pytest.approx(0.5)  # two of the first fifth, all right; two of the last, all wrong


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
@pytest.mark.parametrize("name", ESTIMATES)
def test_the_interval_holds_the_accuracy_when_nothing_has_changed(name, sharpness):
    n_draws, held = 300, 0
    for seed in range(n_draws):
        rng = np.random.default_rng([seed, 1])
        known, new = rows(rng, 300, sharpness), rows(rng, 200, sharpness)
        found = ESTIMATES[name](known, new)
        held += found.low <= (new.predicted() == new.labels).mean() <= found.high
    assert stats.binomtest(held, n_draws, 0.93, alternative="less").pvalue > 0.001, held / n_draws


def test_the_estimate_by_confidence_follows_harder_texts():
    """Texts get harder and the confidences say so: the accuracy to expect falls as the accuracy does."""
    rng = np.random.default_rng(0)
    known = rows(rng, 2000)
    hard = rng.normal(size=(2000, 3)) * 0.5
    drawn = (hard + rng.gumbel(size=hard.shape)).argmax(axis=1)
    new = Predictions(drawn, NAMES, logits=hard)
    found = expect(known, new)
    assert "energy" not in found
    right = (new.predicted() == new.labels).mean()
    assert right < (known.predicted() == known.labels).mean() - 0.1
    assert found["confidence"].low <= right <= found["confidence"].high
