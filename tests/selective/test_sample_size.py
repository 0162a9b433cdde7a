"""What refused rows are told: about how many more are needed, or which larger error they support."""

import re

import numpy as np
import pytest

from ebmcal import EbmcalError, Predictions, fit_abstention
from ebmcal.selective.risk_control import fit_threshold


def sample(n, seed, noise=0.0):
    """Scores of a calibrated model, and which answers are wrong."""
    rng = np.random.default_rng(seed)
    confidence = 1 / (1 + np.exp(-rng.exponential(3.0, n)))
    return confidence, (rng.random(n) > confidence) ^ (rng.random(n) < noise)


def refused(labels, logits, max_error):
    with pytest.raises(EbmcalError) as error:
        fit_abstention(Predictions(labels, ("a", "b"), logits=logits), max_error=max_error, ood=0)
    return str(error.value)


def test_a_model_that_is_wrong_everywhere_gets_no_number():
    rng = np.random.default_rng(3)
    message = refused(rng.integers(0, 2, 400), rng.normal(size=(400, 2)), 0.1)
    assert "Even many more rows are unlikely to be enough" in message
    assert "labelled rows" not in message


def test_too_few_rows_are_told_how_many_may_be_enough_and_what_they_support():
    confidence, wrong = sample(150, seed=1)
    logits = np.c_[np.log(confidence), np.log(1 - confidence)]
    message = refused(wrong.astype(int), logits, 0.02)
    assert "These 150 rows do not support an error of at most 0.02 at confidence 0.9. " in message
    n_rows = int(re.search(r"About ([\d,]+) labelled rows like these may be enough", message)[1].replace(",", ""))
    error = float(re.search(r"These rows probably support --max-error ([\d.]+)\.", message)[1])
    assert 150 < n_rows <= 32 * 150
    for n, e in ((n_rows, 0.02), (150, error)):
        found = [fit_threshold(*sample(n, seed), np.arange(n), e, 0.9, seed) for seed in range(2, 22)]
        assert sum(guarantee is not None for guarantee in found) >= 8, "of 20"
