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
from scipy.special import bdtr, betaincinv

from ebmcal.errors import EbmcalError
from ebmcal.selective.rule import Guarantee

PLAN_EVERY = 5  # one row in so many sets the thresholds
MAX_THRESHOLDS = 100

#: When rows are refused: how many times as many might do, which larger error they support, and in how many samples.
MULTIPLES, ERRORS = (2, 4, 8, 16, 32), (0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
N_SAMPLES, ENOUGH, MAX_ROWS = 40, 0.9, 200_000


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
    """The error that a guarantee is not supported; about how many rows may be enough, which error these support."""
    n = len(scores)
    sizes = [n * k for k in MULTIPLES if n * k <= max(MAX_ROWS, 2 * n)]
    enough = next((m for m in sizes if success_rate(scores, wrong, m, max_error, confidence) >= ENOUGH), None)
    more = "Even many more rows are unlikely to be enough."
    if enough is not None:
        enough = max(enough, least_rows(max_error, confidence))
        more = f"About {int(float(f'{enough:.2g}')):,} labelled rows like these may be enough (a rough estimate)."
    larger = [error for error in ERRORS if error > max_error]
    error = next((e for e in larger if success_rate(scores, wrong, n, e, confidence) >= ENOUGH), None)
    supported = "" if error is None else f" These rows probably support --max-error {error:g}."
    left_out = f" (of {n_given:,}, without duplicates, training rows and OOD rows)" if n < n_given else ""
    return EbmcalError(
        f"These {n:,} rows{left_out} do not support an error of at most {max_error:g} at confidence {confidence:g}. "
        f"{more}{supported} Another score (--score) or a better model may help too."
    )


def success_rate(scores: np.ndarray, wrong: np.ndarray, n_rows: int, max_error: float, confidence: float) -> float:
    """In how many samples of `n_rows` rows a threshold is found: a Bayesian bootstrap with one more wrong row.

    A rough estimate: how often the most confident answers are wrong is itself uncertain on so few rows.
    """
    rng, n_found = np.random.default_rng(0), 0
    for seed in range(N_SAMPLES):
        weights = rng.exponential(size=len(scores) + 1)
        known = np.append(scores, rng.choice(scores))
        rows = rng.choice(len(known), n_rows, p=weights / weights.sum())
        found = fit_threshold(known[rows], np.append(wrong, True)[rows], np.arange(n_rows), max_error, confidence, seed)
        n_found += found is not None
    return n_found / N_SAMPLES
