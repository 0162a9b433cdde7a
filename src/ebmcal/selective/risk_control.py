"""A threshold whose answers have a guaranteed error, and how many rows it needs.

Learn-then-Test (Angelopoulos et al. 2021) with split fixed-sequence testing: a fifth of the rows sets the thresholds
and their order; the others test them, from the most promising one to lower ones, and the first failure ends it. With
fixed thresholds, the errors among n answered rows are Binomial(n, risk), so

    p = P(Binomial(n, max_error) ≤ errors)

is a valid p-value of "the risk is above max_error", for any score, with ties, for any number of classes. Testing in a
fixed order needs no correction: with probability `confidence` no test is wrongly passed. Rows that occur several times
may be copies, or texts that are frequent in the traffic. A threshold has to pass twice: with exact duplicates counted
once, and with all rows. The guarantee then holds either way.
"""

import math
from dataclasses import replace

import numpy as np
from scipy.special import bdtr, betaincinv, betaln, expit

from ebmcal.errors import EbmcalError
from ebmcal.selective.rule import Guarantee

PLAN_EVERY = 5  # one row in so many sets the thresholds
MAX_THRESHOLDS = 100

#: Simulation of how many rows a guarantee needs: populations, bins of the score, steps of the Markov chains.
N_POPULATIONS, N_BINS, N_STEPS = 300, 25, 300
#: How closely the bins follow the curve, in rows; prior deviation and steps of the curve's slope, intercept and floor.
CURVE_ROWS, SPREAD, STEP = 50.0, np.array([2.0, 2.0, 1.0]), np.array([0.35, 0.3, 0.7])
#: The share of the populations that can pass at all that do so with the suggested rows, before the safety factor. Near
#: the smallest possible error the rows needed differ most: 0.95 and 1.5 were enough in two of three simulated cases.
TARGET, SAFETY, MAX_ROWS = 0.98, 2.0, 1_000_000


def fit_threshold(
    scores: np.ndarray, wrong: np.ndarray, groups: np.ndarray, max_error: float, confidence: float, seed: int = 0
) -> Guarantee | None:
    """The lowest threshold that the tests reach, or None if the first one fails. `groups` numbers distinct rows."""
    first = first_rows(groups)
    plan, test = split_rows(len(first), seed)
    levels = plan_thresholds(scores[first[plan]], wrong[first[plan]], len(test), max_error)
    samples = [(scores[first[test]], wrong[first[test]])]
    if len(first) < len(groups):
        samples.append((scores, wrong))  # all: a frequent text may be among the planning rows, where it counts once
    found = find_threshold(samples, levels, max_error, confidence)
    return found and replace(found, n_planned=len(plan))


def first_rows(groups: np.ndarray) -> np.ndarray:
    """Positions of the distinct rows, given a group number for each row."""
    return np.unique(groups, return_index=True)[1]


def split_rows(n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random positions of the rows that set thresholds and of those that test them."""
    order = np.random.default_rng(seed).permutation(n_rows)
    return order[: n_rows // PLAN_EVERY], order[n_rows // PLAN_EVERY :]


def least_rows(max_error: float, confidence: float) -> int:
    """The smallest number of rows that supports the guarantee, if all are answered correctly.

    >>> least_rows(0.05, 0.9)
    56
    """
    n_test = math.ceil(math.log(1.0 - confidence) / math.log1p(-max_error) - 1e-9)
    return max(n_test + (n_test - 1) // (PLAN_EVERY - 1), PLAN_EVERY)


def plan_thresholds(scores: np.ndarray, wrong: np.ndarray, n_test: int, max_error: float) -> np.ndarray:
    """Thresholds in the order of their tests, highest first, the last −inf, which answers everything.

    They begin where the smallest p-value is expected from the planning rows.
    """
    levels = np.unique(np.quantile(scores, np.linspace(0, 1, MAX_THRESHOLDS), method="nearest"))[::-1]
    levels = np.append(levels, -np.inf)
    answered, errors = counts(scores, wrong, levels)
    return levels[int(first_test(answered, errors, len(scores), n_test, max_error)) :]


def first_test(answered: np.ndarray, errors: np.ndarray, n_plan: int, n_test: int, max_error: float) -> np.ndarray:
    """The threshold to test first [...]: where planning rows, counted [..., levels], predict the smallest p-value."""
    rate = (errors + max_error) / (answered + 1.0)  # as if one more row had been seen, with the error that is allowed
    expected = np.round(answered / n_plan * n_test)
    return np.argmin(binomial_p(np.ceil(expected * rate), expected, max_error), axis=-1)


def find_threshold(
    samples: list[tuple[np.ndarray, np.ndarray]], levels: np.ndarray, max_error: float, confidence: float
) -> Guarantee | None:
    """The lowest threshold at which all samples of (scores, wrong) pass; the first sample is reported."""
    counted = [counts(scores, wrong, levels) for scores, wrong in samples]
    passed = np.all([binomial_p(e, n, max_error) <= 1.0 - confidence for n, e in counted], axis=0)
    last = (len(levels) if passed.all() else int(np.argmin(passed))) - 1
    if last < 0:
        return None
    n, k = int(counted[0][0][last]), int(counted[0][1][last])
    bound = float(betaincinv(k + 1, n - k, confidence)) if k < n else 1.0
    threshold = float(levels[last]) if np.isfinite(levels[last]) else None
    return Guarantee(threshold, max_error, confidence, len(samples[0][0]), n, k, bound)


def binomial_p(wrong: np.ndarray, answered: np.ndarray, max_error: float) -> np.ndarray:
    """P(Binomial(answered, max_error) ≤ wrong), element by element: the p-value of "the risk is above max_error"."""
    return np.where(answered > 0, bdtr(wrong, np.maximum(answered, 1).astype(int), max_error), 1.0)


def counts(scores: np.ndarray, wrong: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many rows score at least each level, and how many of them are wrong: two arrays [levels]."""
    order = np.argsort(scores)
    below = np.searchsorted(scores[order], levels, side="left")
    errors = np.append(np.cumsum(wrong[order][::-1])[::-1], 0)  # from each position on
    return len(scores) - below, errors[below]


def refusal(scores: np.ndarray, wrong: np.ndarray, max_error: float, confidence: float, n_given: int) -> EbmcalError:
    """The error that a guarantee is not supported, with what would help: more rows, how many, or a larger error."""
    even, needed, chance = rows_needed(scores, wrong, max_error, confidence)
    more = (
        f"With about {even:,} labelled rows like these, the chance of a rule is one half; with about {needed:,}, it is "
        f"{chance:.0%}."
    )
    if chance < 0.5:
        more = "Even many more rows are unlikely to be enough: no threshold has a clearly smaller error."
    left_out = f" (of {n_given:,}, without duplicates and OOD rows)" if len(scores) < n_given else ""
    return EbmcalError(
        f"These {len(scores):,} rows{left_out} do not support an error of at most {max_error:g} at confidence "
        f"{confidence:g}. {more} A larger max_error (--max-error), another score (--score) or a better model may help."
    )


def rows_needed(scores: np.ndarray, wrong: np.ndarray, max_error: float, confidence: float) -> tuple[int, int, float]:
    """How many labelled rows support a guarantee with an even chance, how many almost surely, and the chance of these.

    The error rate as a function of the score is uncertain, so populations are drawn from its posterior; rows are drawn
    from each and the planned test is carried out.
    """
    rng = np.random.default_rng(0)
    mass, rates = _draw_populations(scores, wrong, max_error, rng)
    low = max(len(scores), least_rows(max_error, confidence))
    grid = np.unique(np.geomspace(low, max(MAX_ROWS, low), 60).astype(int))
    chance = _success_rate(int(grid[-1]), mass, rates, max_error, confidence, rng)

    def smallest(target: float) -> int:
        first, last = 0, len(grid) - 1
        while first < last:
            middle = (first + last) // 2
            passes = _success_rate(int(grid[middle]), mass, rates, max_error, confidence, rng) >= target
            first, last = (first, middle) if passes else (middle + 1, last)
        return int(grid[first])

    even, sure = smallest(0.5), SAFETY * smallest(TARGET * chance)
    return int(float(f"{even:.2g}")), int(float(f"{sure:.2g}")), TARGET * chance


def _draw_populations(
    scores: np.ndarray, wrong: np.ndarray, max_error: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shares of rows and error rates by bin of the score, highest score first: two arrays [populations, bins].

    The rates follow a logistic curve of the score above a floor (label noise: errors at any confidence), up to the
    noise of a Beta distribution. Slope, intercept and floor are sampled by random-walk Metropolis, one chain for each
    population; a priori the floor is about half of the requested error.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, n, n_bins = scores[order], len(scores), min(N_BINS, max(1, len(scores) // 8))
    last = ordered[np.arange(1, n_bins + 1) * n // n_bins - 1]
    starts = np.append(0, np.unique(np.searchsorted(-ordered, -last, side="right"))[:-1])
    answered, errors = np.diff(np.append(starts, n)), np.add.reduceat(wrong[order].astype(np.float64), starts)
    x = np.add.reduceat(_predictor(ordered), starts) / answered

    def curve(parameters: np.ndarray) -> np.ndarray:
        slope, intercept, floor = (parameters[:, [i]] for i in range(3))
        rate = expit(floor) + (1.0 - expit(floor)) * expit(slope * x + intercept)
        return CURVE_ROWS * np.clip(rate, 1e-6, 1.0 - 1e-6)

    def log_posterior(parameters: np.ndarray) -> np.ndarray:
        a = curve(parameters)
        likelihood = betaln(errors + a, answered - errors + CURVE_ROWS - a) - betaln(a, CURVE_ROWS - a)
        return likelihood.sum(axis=1) - (((parameters - mean) / SPREAD) ** 2).sum(axis=1) / 2

    mean = np.array([-1.0, 0.0, np.log(max_error / 2)])
    state = mean + 0.3 * SPREAD * rng.normal(size=(N_POPULATIONS, 3))
    density = log_posterior(state)
    for _ in range(N_STEPS):
        proposed = state + STEP * rng.normal(size=state.shape)
        new = log_posterior(proposed)
        accepted = np.log(rng.random(N_POPULATIONS)) < new - density
        state[accepted], density[accepted] = proposed[accepted], new[accepted]
    a = curve(state)
    return rng.dirichlet(answered, N_POPULATIONS), rng.beta(errors + a, answered - errors + CURVE_ROWS - a)


def _predictor(scores: np.ndarray) -> np.ndarray:
    """Scores with mean 0 and variance 1; of confidences their log-odds."""
    if scores.min() > 0 and scores.max() <= 1:
        scores = np.log(scores) - np.log(np.maximum(1.0 - scores, 1e-6))
    return (scores - scores.mean()) / (scores.std() or 1.0)


def _success_rate(
    n_rows: int, mass: np.ndarray, rates: np.ndarray, max_error: float, confidence: float, rng: np.random.Generator
) -> float:
    """In how many populations this many rows pass the first test, which decides whether there is a threshold."""
    n_plan = n_rows // PLAN_EVERY
    sampled = []
    for n in (n_plan, n_rows - n_plan):
        answered = rng.multinomial(n, mass)
        sampled.append((np.cumsum(answered, axis=1), np.cumsum(rng.binomial(answered, rates), axis=1)))
    (planned, plan_errors), (tested, test_errors) = sampled
    start = first_test(planned, plan_errors, n_plan, n_rows - n_plan, max_error)[:, None]
    answered, errors = (np.take_along_axis(values, start, axis=1) for values in (tested, test_errors))
    return float(np.mean(binomial_p(errors, answered, max_error) <= 1.0 - confidence))
