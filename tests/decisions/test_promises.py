"""The promises of a rule as statistics: over many redrawn calibration sets the promised level holds.

Each population is known, so the true error, coverage and false-alarm rate of every fitted rule are too.
"""

import contextlib
import functools

import numpy as np
import pytest
from scipy.stats import binom

from ebmcal.calibrators import TemperatureScaling
from ebmcal.decisions import fit_rule
from ebmcal.decisions.conformal import p_values
from ebmcal.decisions.risk import counts
from ebmcal.decisions.scores import SCORES
from ebmcal.decisions.unusual import TrainingFeatures
from ebmcal.errors import EbmcalError
from ebmcal.metrics.distances import DISTANCES
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import softmax

N_DRAWS, N_ROWS, N_POPULATION = 500, 300, 10_000
MAX_ERROR, CONFIDENCE, COVERAGE, FALSE_ALARMS = 0.1, 0.8, 0.9, 0.1


@functools.cache
def population(kind):
    """Overconfident predictions whose errors are known; energies say a little about them too."""
    rng = np.random.default_rng(7)
    shares = {"plain": [0.5, 0.5], "ties": [0.5, 0.5], "three classes": [0.4, 0.3, 0.3], "imbalanced": [0.9, 0.1]}[kind]
    labels = rng.choice(len(shares), N_POPULATION, p=shares)
    hard = 0.3 + rng.exponential(size=N_POPULATION) ** 1.5
    noise = rng.normal(size=(N_POPULATION, len(shares))) * hard[:, None]
    logits = 4.0 * (1.5 * np.eye(len(shares))[labels] + noise) / hard[:, None] ** 0.8
    energies = hard + 0.3 * rng.normal(size=N_POPULATION)
    if kind == "ties":
        logits, energies = np.round(logits / 3) * 3, np.round(energies)
    return Predictions(labels, tuple("abc"[: len(shares)]), logits=logits, energies=energies)


KINDS = ("plain", "ties", "three classes", "imbalanced")


def draws(kind):
    rng, whole = np.random.default_rng(11), population(kind)
    for _ in range(N_DRAWS):
        index = rng.integers(0, N_POPULATION, N_ROWS)
        yield Predictions(
            whole.labels[index], whole.label_names, logits=whole.logits[index], energies=whole.energies[index]
        )


def no_more_often_than(failures, share):
    """Whether so many failures in all draws are what a true rate of at most `share` gives, 999 times in 1,000."""
    return failures <= binom.ppf(0.999, N_DRAWS, share)


def fitted_rules(kind, **promises):
    """The rules of all draws, but those that are refused."""
    for rows in draws(kind):
        with contextlib.suppress(EbmcalError):
            yield fit_rule(rows, max_error=MAX_ERROR, confidence=CONFIDENCE, **promises)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_answers(kind, score):
    whole = population(kind)
    wrong, columns = whole.predicted() != whole.labels, SCORES[score](whole)
    assert wrong.mean() > MAX_ERROR  # answering everything would not do
    broken, answered = 0, []
    for rule in fitted_rules(kind, score=score):
        learned, threshold = rule.abstention.score, rule.abstention.promise.threshold
        scores = (columns - learned.centre) @ learned.weights if learned.weights else columns[:, 0]
        answers = scores >= (-np.inf if threshold is None else threshold)
        broken += wrong[answers].mean() > MAX_ERROR
        answered.append(answers.mean())
    np.testing.assert_array_equal(rule.decide(whole).answers, answers)
    assert no_more_often_than(broken, 1 - CONFIDENCE)
    assert len(answered) > N_DRAWS / 4, "a rule that never answers keeps every promise"
    assert np.mean(answered) > 0.1


def test_a_threshold_that_is_only_read_off_the_rows_breaks_the_promise():
    """The measuring stick: the test above would notice."""
    whole = population("plain")
    scores, wrong = whole.confidences(), whole.predicted() != whole.labels
    broken = 0
    for rows in draws("plain"):
        own, own_wrong = rows.confidences(), rows.predicted() != rows.labels
        levels = np.unique(own)
        answered, errors = counts(own, own_wrong, levels)
        good = errors <= MAX_ERROR * answered
        broken += good.any() and wrong[scores >= levels[good][0]].mean() > MAX_ERROR
    assert not no_more_often_than(broken, 1 - CONFIDENCE)


def test_a_temperature_of_the_same_rows_leaves_the_promise_standing():
    whole = population("three classes")
    wrong, broken, fitted = whole.predicted() != whole.labels, 0, 0
    for rows in draws("three classes"):
        temperature = TemperatureScaling().fit(rows.logits, rows.labels).temperature_
        with contextlib.suppress(EbmcalError):
            own = rows.with_probs(softmax(rows.logits / temperature))
            promise = fit_rule(own, max_error=MAX_ERROR, confidence=CONFIDENCE).abstention.promise
            answers = softmax(whole.logits / temperature).max(axis=1) >= promise.threshold
            broken += wrong[answers].mean() > MAX_ERROR
            fitted += 1
    assert fitted > N_DRAWS / 4
    assert no_more_often_than(broken, 1 - CONFIDENCE)


@pytest.mark.parametrize("sets", ["split", "class-conditional"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_coverage_of_sets(kind, sets):
    """The promise is on average over calibration sets: the mean, with its error, is not below it."""
    whole, found = population(kind), []
    misfits = 1.0 - whole.probabilities()
    top = whole.predicted() == whole.labels
    for rows in draws(kind):
        rule = fit_rule(rows, coverage=COVERAGE, sets=sets, false_alarms=FALSE_ALARMS)
        limits = np.array(rule.sets.limits)
        held = top | (misfits[np.arange(N_POPULATION), whole.labels] <= limits[whole.labels])
        groups = [held] if sets == "split" else [held[whole.labels == c] for c in range(whole.n_classes)]
        found.append([group.mean() for group in groups])
    inside = rule.decide(whole).sets
    assert held.tolist() == [whole.label_names[y] in names for y, names in zip(whole.labels, inside, strict=True)]
    means, errors = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(N_DRAWS)
    assert (means + 3 * errors >= COVERAGE).all()
    assert np.mean([len(names) for names in inside]) < whole.n_classes, "all labels would always do"


@pytest.mark.parametrize("kind", KINDS)
def test_false_alarms(kind):
    whole, found = population(kind), []
    energies = np.sort(whole.energies)
    for rows in draws(kind):
        rule = fit_rule(rows, false_alarms=FALSE_ALARMS)
        reached = p_values(energies, rule.unusual.scores) <= FALSE_ALARMS
        found.append(reached.mean())
    assert rule.decide(whole).unusual.mean() == found[-1]
    assert np.mean(found) <= FALSE_ALARMS + 3 * np.std(found) / np.sqrt(N_DRAWS)
    assert np.mean(found) > FALSE_ALARMS / 3


@pytest.mark.parametrize("by", DISTANCES)
def test_false_alarms_by_distance(by):
    """The training texts are fixed, the calibration texts are redrawn; distances are those of the kept features."""
    rng, found = np.random.default_rng(3), []
    means = rng.normal(size=(2, 8))
    labels = rng.integers(0, 2, N_POPULATION + 200)
    features = means[labels] + rng.normal(size=(len(labels), 8)) * rng.exponential(size=(len(labels), 1))
    training = TrainingFeatures.of(features[:200], labels[:200])
    distances = training.distance(by)(features[200:])
    whole = Predictions(labels[200:], ("a", "b"), probs=np.full((N_POPULATION, 2), 0.5), distances={by: distances})
    for _ in range(N_DRAWS):
        rows = whole.rows(rng.integers(0, N_POPULATION, N_ROWS))
        rule = fit_rule(rows, false_alarms=FALSE_ALARMS, unusual_by=by, training=training)
        found.append((p_values(distances, rule.unusual.scores) <= FALSE_ALARMS).mean())
    assert rule.decide(whole).unusual.mean() == found[-1]
    assert np.mean(found) <= FALSE_ALARMS + 3 * np.std(found) / np.sqrt(N_DRAWS)
    assert np.mean(found) > FALSE_ALARMS / 3
