"""A threshold with a guarantee: of the rows that score above it, at most a share `max_error` is wrong.

Learn-then-Test (Angelopoulos et al. 2021) with split fixed-sequence testing. A fifth of the rows sets the thresholds
and their order; the others test them, from the most promising one to lower ones, and the first failure ends it.
With fixed thresholds, the errors among n answered rows are Binomial(n, risk), so

    p = P(Binomial(n, max_error) ≤ errors)

is a valid p-value of "the risk is above max_error", for any score, with ties, for any number of classes. Testing in a
fixed order needs no correction: with probability `confidence` no test is wrongly passed.

Rows that occur several times may be copies, or texts that are frequent in the traffic. A threshold has to pass twice:
with exact duplicates counted once, and with all rows. The guarantee then holds either way.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, betaincinv

#: One row in so many sets the thresholds.
PLAN_EVERY = 5
MAX_THRESHOLDS = 100


@dataclass(frozen=True)
class Guarantee:
    """Answering where score ≥ `threshold` (everywhere if it is None) errs at most `max_error`, at this confidence."""

    threshold: float | None
    max_error: float
    confidence: float
    n_tested: int  # rows that tested the thresholds
    n_answered: int  # of them, those above the threshold
    n_wrong: int  # of those, the wrong ones
    bound: float  # Clopper-Pearson: the error is below this at this confidence, had only this threshold been tested


def fit_threshold(
    scores: np.ndarray, wrong: np.ndarray, groups: np.ndarray, max_error: float, confidence: float, seed: int = 0
) -> Guarantee | None:
    """The lowest threshold that the tests reach, or None if the first one fails. `groups` numbers distinct rows."""
    first = np.unique(groups, return_index=True)[1]
    plan, test = split_rows(len(first), seed)
    levels = plan_thresholds(scores[first[plan]], wrong[first[plan]], len(test), max_error)
    samples = [(scores[first[test]], wrong[first[test]])]
    if len(first) < len(groups):
        samples.append((scores, wrong))  # all: a frequent text may be among the planning rows, where it counts once
    return find_threshold(samples, levels, max_error, confidence)


def split_rows(n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random positions of the rows that set thresholds and of those that test them.

    >>> [len(part) for part in split_rows(100)]
    [20, 80]
    """
    order = np.random.default_rng(seed).permutation(n_rows)
    return order[: n_rows // PLAN_EVERY], order[n_rows // PLAN_EVERY :]


def least_answers(max_error: float, confidence: float) -> int:
    """The smallest number of answered rows, all of them correct, that supports the guarantee.

    >>> least_answers(0.05, 0.9)
    45
    """
    return math.ceil(math.log(1.0 - confidence) / math.log1p(-max_error) - 1e-9)


def least_rows(max_error: float, confidence: float) -> int:
    """The smallest number of rows that supports the guarantee, if all are answered correctly.

    >>> least_rows(0.05, 0.9)
    56
    """
    n_test = least_answers(max_error, confidence)
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
    n_passed = len(levels) if passed.all() else int(np.argmin(passed))
    if n_passed == 0:
        return None
    last = n_passed - 1
    n, k = int(counted[0][0][last]), int(counted[0][1][last])
    bound = float(betaincinv(k + 1, n - k, confidence)) if k < n else 1.0
    threshold = float(levels[last]) if np.isfinite(levels[last]) else None
    return Guarantee(threshold, max_error, confidence, len(samples[0][0]), n, k, bound)


def binomial_p(wrong: np.ndarray, answered: np.ndarray, max_error: float) -> np.ndarray:
    """P(Binomial(answered, max_error) ≤ wrong), element by element: the p-value of "the risk is above max_error".

    >>> binomial_p(np.array([0, 1, 0]), np.array([45, 45, 0]), 0.05).round(3)
    array([0.099, 0.335, 1.   ])
    """
    return np.where(answered > 0, bdtr(wrong, np.maximum(answered, 1).astype(int), max_error), 1.0)


def counts(scores: np.ndarray, wrong: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many rows score at least each level, and how many of them are wrong: two arrays [levels]."""
    order = np.argsort(scores)
    below = np.searchsorted(scores[order], levels, side="left")
    errors = np.append(np.cumsum(wrong[order][::-1])[::-1], 0)  # from each position on
    return len(scores) - below, errors[below]
