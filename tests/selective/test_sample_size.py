"""The suggested number of rows is enough in nine of ten cases, over refused calibration sets of several populations.

Labels may be noisy: then the error has a floor, and a confident model is wrong more often than it seems. Close to the
floor many rows are needed, and how many is most uncertain.
"""

import re

import numpy as np
import pytest

from ebmcal import EbmcalError, Predictions, fit_abstention
from ebmcal.selective.risk_control import fit_threshold, rows_needed

N_POPULATION = 200_000


def population(kind, noise):
    rng = np.random.default_rng(7)
    strength = {"good": 4.0, "rounded": 3.0}.get(kind, 2.0)
    confidence = 1 / (1 + np.exp(-rng.exponential(strength, N_POPULATION)))
    wrong = (rng.random(N_POPULATION) > confidence) ^ (rng.random(N_POPULATION) < noise)
    return confidence.round(2) if kind == "rounded" else confidence, wrong


def passes(scores, wrong, max_error, seed):
    return fit_threshold(scores, wrong, np.arange(len(scores)), max_error, 0.9, seed) is not None


@pytest.mark.parametrize(
    ("kind", "noise", "n", "max_error"),
    [
        ("rounded", 0, 300, 0.05),
        pytest.param("usual", 0.04, 1500, 0.05, marks=pytest.mark.slow),
        pytest.param("good", 0.01, 600, 0.015, marks=pytest.mark.slow),
    ],
)
def test_the_suggestion_is_enough_in_nine_of_ten_cases(kind, noise, n, max_error):
    (scores, wrong), rng = population(kind, noise), np.random.default_rng(1)
    suggested, enough = [], []
    while len(suggested) < 6:
        index = rng.integers(0, N_POPULATION, n)
        if passes(scores[index], wrong[index], max_error, len(suggested)):
            continue
        even, needed, chance = rows_needed(scores[index], wrong[index], max_error, 0.9)
        assert even <= needed
        suggested.append(needed if chance >= 0.5 else np.inf)
        for repeat in range(4 if chance >= 0.5 else 0):
            index = rng.integers(0, N_POPULATION, needed)
            enough.append(passes(scores[index], wrong[index], max_error, repeat))
    assert np.mean(enough) >= 0.9
    assert np.isfinite(suggested).mean() > 0.6
    if not noise:
        assert np.median(suggested) < 60 * n, "a suggestion that nobody can follow"


def refused(labels, logits, max_error):
    with pytest.raises(EbmcalError) as error:
        fit_abstention(Predictions(labels, ("a", "b"), logits=logits), max_error=max_error, ood=0)
    return str(error.value)


def test_a_model_that_is_wrong_everywhere_gets_no_number():
    rng = np.random.default_rng(3)
    message = refused(rng.integers(0, 2, 400), rng.normal(size=(400, 2)), 0.1)
    assert "Even many more rows are unlikely to be enough" in message
    assert "labelled rows" not in message


def test_too_few_rows_get_a_number():
    rng = np.random.default_rng(3)
    logits = 2 * rng.normal(size=(300, 2))
    message = refused((logits + rng.gumbel(size=logits.shape)).argmax(axis=1), logits, 0.03)
    assert "These 300 rows do not support an error of at most 0.03 at confidence 0.9. With" in message
    assert re.search(
        r"With about [\d,]+ labelled rows like these, the chance of a rule is one half; with about [\d,]+, it is \d\d%",
        message,
    )
