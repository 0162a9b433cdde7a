"""The guarantees as statistics: over many redrawn calibration sets the stated level holds.

Each population is known, so the true error, coverage and false-positive rate of every fitted rule are too.
"""

import contextlib
import functools
import warnings

import numpy as np
import pytest
from scipy.stats import binom

from ebmcal import EbmcalError, Predictions, fit_abstention
from ebmcal.calibration import TemperatureScaling
from ebmcal.predictions import softmax
from ebmcal.selective import DISTANCES, SCORES, fit_distance
from ebmcal.selective.ood import TrainingFeatures
from ebmcal.selective.risk_control import counts

N_DRAWS, N_ROWS, N_POPULATION = 150, 300, 10_000
MAX_ERROR, CONFIDENCE, COVERAGE, OOD = 0.1, 0.8, 0.9, 0.1
KINDS = ("plain", "ties", "three classes", "imbalanced")


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch):
    """Without the simulation of how many rows would be enough."""
    monkeypatch.setattr("ebmcal.selective.refusal", lambda *arguments: EbmcalError("too few rows"))


@functools.cache
def population(kind):
    """Overconfident predictions with known errors; energies and distances are a little informative about them."""
    rng = np.random.default_rng(7)
    shares = {"plain": [0.5, 0.5], "ties": [0.5, 0.5], "three classes": [0.4, 0.3, 0.3], "imbalanced": [0.9, 0.1]}[kind]
    labels = rng.choice(len(shares), N_POPULATION, p=shares)
    hard = 0.3 + rng.exponential(size=N_POPULATION) ** 1.5
    noise = rng.normal(size=(N_POPULATION, len(shares))) * hard[:, None]
    logits = 4.0 * (1.5 * np.eye(len(shares))[labels] + noise) / hard[:, None] ** 0.8
    energies = hard + 0.3 * rng.normal(size=N_POPULATION)
    far = hard * rng.exponential(size=N_POPULATION)
    if kind == "ties":
        logits, energies, far = np.round(logits / 3) * 3, np.round(energies), np.round(far)
    names = tuple("abc"[: len(shares)])
    return Predictions(labels, names, logits=logits, energies=energies, distances={"knn": far})


def draws(kind, n_rows=N_ROWS):
    """Calibration sets; rows that are drawn twice are different texts."""
    rng, whole = np.random.default_rng(11), population(kind)
    for _ in range(N_DRAWS):
        index = rng.integers(0, N_POPULATION, n_rows)
        rows = whole.rows(index)
        yield rows.replace(texts=[f"text {i}" for i in range(n_rows)])


def no_more_often_than(failures, share):
    """Whether this many failures in all draws agree with a true rate of at most `share`, 999 times in 1,000."""
    return failures <= binom.ppf(0.999, N_DRAWS, share)


def fitted_rules(kind, **settings):
    """The rules of all draws, without those that are refused."""
    for rows in draws(kind):
        with contextlib.suppress(EbmcalError):
            yield fit_abstention(rows, max_error=MAX_ERROR, confidence=CONFIDENCE, **settings)


@pytest.mark.parametrize(
    ("kind", "score", "answer_ood"),
    [*((kind, score, False) for kind in KINDS for score in SCORES), *((kind, "confidence", True) for kind in KINDS)],
)
@pytest.mark.parametrize("ood_score", ["energy", "combined"])
def test_the_error_of_answers(kind, score, answer_ood, ood_score):
    """Also if the rule abstains on texts that it flags as OOD, by a cut-off from the same rows."""
    whole = population(kind)
    wrong, scores = whole.predicted != whole.labels, SCORES[score](whole)
    assert wrong.mean() > MAX_ERROR  # answering everything would not do
    broken, answered = 0, []
    for rule in fitted_rules(kind, score=score, ood=OOD, ood_score=ood_score, answer_ood=answer_ood):
        threshold = rule.guarantee.threshold
        answers = scores >= (-np.inf if threshold is None else threshold)
        answers &= answer_ood | ~rule.ood.is_flagged(rule.ood.scores(whole))
        broken += wrong[answers].mean() > MAX_ERROR
        answered.append(answers.mean())
    np.testing.assert_array_equal(rule.apply(whole).answered, answers)
    assert no_more_often_than(broken, 1 - CONFIDENCE)
    assert len(answered) > N_DRAWS / 4, "a rule that never answers is always right"
    assert np.mean(answered) > 0.1


def test_a_threshold_that_is_only_read_off_the_rows_breaks_the_guarantee():
    """The measuring stick: the test above would notice."""
    whole = population("plain")
    scores, wrong = whole.confidence, whole.predicted != whole.labels
    broken = 0
    for rows in draws("plain"):
        own, own_wrong = rows.confidence, rows.predicted != rows.labels
        levels = np.unique(own)
        answered, errors = counts(own, own_wrong, levels)
        good = errors <= MAX_ERROR * answered
        broken += good.any() and wrong[scores >= levels[good][0]].mean() > MAX_ERROR
    assert not no_more_often_than(broken, 1 - CONFIDENCE)


def test_a_temperature_of_the_same_rows_is_harmless():
    whole = population("three classes")
    wrong, broken, fitted = whole.predicted != whole.labels, 0, 0
    for rows in draws("three classes"):
        temperature = TemperatureScaling().fit(rows.logits, rows.labels).temperature_
        with contextlib.suppress(EbmcalError):
            own = rows.with_probs(softmax(rows.logits / temperature))
            guarantee = fit_abstention(own, max_error=MAX_ERROR, confidence=CONFIDENCE, ood=0).guarantee
            answers = softmax(whole.logits / temperature).max(axis=1) >= guarantee.threshold
            broken += wrong[answers].mean() > MAX_ERROR
            fitted += 1
    assert fitted > N_DRAWS / 4
    assert no_more_often_than(broken, 1 - CONFIDENCE)


def test_copies_of_rows_support_no_more_than_the_rows():
    whole, broken, n_fitted, n_plain = population("plain"), 0, 0, 0
    wrong = whole.predicted != whole.labels
    for rows in draws("plain", 120):
        copies = rows.rows(np.tile(np.arange(120), 10))
        with warnings.catch_warnings(), contextlib.suppress(EbmcalError):
            warnings.simplefilter("ignore")  # about the duplicates
            rule = fit_abstention(copies, max_error=MAX_ERROR, confidence=CONFIDENCE, ood=0)
            n_fitted += 1
            broken += wrong[whole.confidence >= (rule.guarantee.threshold or -np.inf)].mean() > MAX_ERROR
        with contextlib.suppress(EbmcalError):
            fit_abstention(rows, max_error=MAX_ERROR, confidence=CONFIDENCE, ood=0)
            n_plain += 1
    assert n_fitted == n_plain
    assert no_more_often_than(broken, 1 - CONFIDENCE)


def test_frequent_texts_that_are_wrong_are_not_hidden_by_counting_them_once():
    """Two tenths of the traffic are one text that is always wrong: distinct rows alone would allow answering it."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(30):
        frequent = rng.random(400) < 0.2
        texts = ["hello" if f else f"rare {i}" for i, f in enumerate(frequent)]
        logits = np.stack([np.where(frequent, -3, rng.normal(4, 0.1, 400)), np.zeros(400)], axis=1)
        rows = Predictions(np.zeros(400, dtype=int), ("a", "b"), logits=logits, texts=texts)
        with pytest.warns(UserWarning, match="exact duplicate"):
            rule = fit_abstention(rows, max_error=0.05, ood=0)
        found += rule.guarantee.threshold is None
    assert found == 0


@pytest.mark.parametrize("sets", ["split", "class-conditional"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_coverage_of_sets(kind, sets):
    """The guarantee is on average over calibration sets: the mean, with its error, is not below it."""
    whole, found = population(kind), []
    misfits = 1.0 - whole.probs
    top = whole.predicted == whole.labels
    for rows in draws(kind):
        rule = fit_abstention(rows, coverage=COVERAGE, sets=sets, ood=OOD)
        limits = np.array(rule.sets.limits)
        held = top | (misfits[np.arange(N_POPULATION), whole.labels] <= limits[whole.labels])
        groups = [held] if sets == "split" else [held[whole.labels == c] for c in range(whole.n_classes)]
        found.append([group.mean() for group in groups])
    inside = rule.apply(whole).label_sets
    assert held.tolist() == [whole.label_names[y] in names for y, names in zip(whole.labels, inside, strict=True)]
    means, errors = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(N_DRAWS)
    assert (means + 3 * errors >= COVERAGE).all()
    assert np.mean([len(names) for names in inside]) < whole.n_classes, "all labels would always do"


@pytest.mark.parametrize("ood_score", ["energy", "max_prob", "combined"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_false_positive_rate_of_ood_texts(kind, ood_score):
    whole, found = population(kind), []
    for rows in draws(kind):
        rule = fit_abstention(rows, ood=OOD, ood_score=ood_score)
        found.append(rule.ood.is_flagged(rule.ood.scores(whole)).mean())
    assert rule.apply(whole).is_ood.mean() == found[-1]
    assert np.mean(found) <= OOD + 3 * np.std(found) / np.sqrt(N_DRAWS)
    assert np.mean(found) > OOD / 3


@pytest.mark.parametrize("name", DISTANCES)
def test_the_false_positive_rate_of_distances(name):
    """The training texts are fixed, the calibration texts are redrawn; distances are those of the stored features."""
    rng, found = np.random.default_rng(3), []
    means = rng.normal(size=(2, 8))
    labels = rng.integers(0, 2, N_POPULATION + 200)
    features = means[labels] + rng.normal(size=(len(labels), 8)) * rng.exponential(size=(len(labels), 1))
    training = TrainingFeatures.of(features[:200], labels[:200])
    distances = fit_distance(name, training.features, training.labels)(features[200:])
    whole = Predictions(labels[200:], ("a", "b"), probs=np.full((N_POPULATION, 2), 0.5), distances={name: distances})
    for _ in range(N_DRAWS):
        rule = fit_abstention(whole.rows(rng.choice(N_POPULATION, N_ROWS, replace=False)), ood=OOD, ood_score=name)
        found.append(rule.ood.is_flagged(rule.ood.scores(whole)).mean())
    assert rule.apply(whole).is_ood.mean() == found[-1]
    assert np.mean(found) <= OOD + 3 * np.std(found) / np.sqrt(N_DRAWS)
    assert np.mean(found) > OOD / 3
