"""A threshold with a promise: of the rows that score above it, at most a share `max_error` is wrong.

Learn-then-Test (Angelopoulos et al. 2021) with split fixed-sequence testing. A fifth of the rows sets the thresholds
and their order; the others test them, from the most promising one on to laxer ones, and the first that fails ends it.
With the thresholds fixed, the wrong among n answered rows are Binomial(n, risk), so

    p = P(Binomial(n, max_error) ≤ wrong)

is a valid p-value of "the risk is above max_error", for any score, with ties, for any number of classes. Testing in a
fixed order needs no correction: all tests together err with probability 1 − confidence at most.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import bdtr, betaincinv

from ebmcal.errors import EbmcalError

#: One row in so many sets the thresholds.
PLAN_EVERY = 5
MAX_THRESHOLDS = 100


@dataclass(frozen=True)
class Promise:
    """Answering where score ≥ `threshold` (everywhere if it is None) errs at most `max_error`, at this confidence."""

    threshold: float | None
    max_error: float
    confidence: float
    n_tested: int  # rows that tested the thresholds
    n_answered: int  # of them, those above the threshold
    n_wrong: int  # of those, the wrong ones
    bound: float  # Clopper-Pearson: the error is below this at this confidence, had only this threshold been tested

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def split_rows(n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows that plan and of those that test; whatever order the rows come in, both are drawn.

    >>> [len(part) for part in split_rows(100)]
    [20, 80]
    """
    order = np.random.default_rng(seed).permutation(n_rows)
    return order[: n_rows // PLAN_EVERY], order[n_rows // PLAN_EVERY :]


def least_rows(max_error: float, confidence: float) -> int:
    """Answered rows, all of them right, that the promise takes at the least.

    >>> least_rows(0.05, 0.9)
    45
    """
    return math.ceil(math.log(1.0 - confidence) / math.log1p(-max_error) - 1e-9)


def plan_thresholds(scores: np.ndarray, wrong: np.ndarray, n_test: int, max_error: float) -> np.ndarray:
    """Thresholds in the order of their tests, strict to lax, the last −inf: answers everything.

    They begin where the planning rows let the smallest p-value be expected.
    """
    levels = np.unique(np.quantile(scores, np.linspace(0, 1, MAX_THRESHOLDS), method="nearest"))[::-1]
    levels = np.append(levels, -np.inf)
    answered, errors = counts(scores, wrong, levels)
    rate = (errors + max_error) / (answered + 1.0)  # as if one more row had been seen, as wrong as is allowed
    expected = np.round(answered / len(scores) * n_test)
    return levels[int(np.argmin(binomial_p(np.ceil(expected * rate), expected, max_error))) :]


def find_threshold(
    scores: np.ndarray, wrong: np.ndarray, levels: np.ndarray, max_error: float, confidence: float
) -> Promise | None:
    """The laxest threshold that the tests reach, or None where the first one fails already."""
    answered, errors = counts(scores, wrong, levels)
    passed = binomial_p(errors, answered, max_error) <= 1.0 - confidence
    n_passed = len(levels) if passed.all() else int(np.argmin(passed))
    if n_passed == 0:
        return None
    last = n_passed - 1
    n, k = int(answered[last]), int(errors[last])
    bound = float(betaincinv(k + 1, n - k, confidence)) if k < n else 1.0
    threshold = float(levels[last]) if np.isfinite(levels[last]) else None
    return Promise(threshold, max_error, confidence, len(scores), n, k, bound)


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
    errors = np.append(np.cumsum(wrong[order][::-1])[::-1], 0)  # from each place on
    return len(scores) - below, errors[below]


def refusal(scores: np.ndarray, wrong: np.ndarray, max_error: float, confidence: float) -> EbmcalError:
    """Why nothing can be promised, and what would help: more rows, how many, or a larger max_error."""
    levels = np.unique(np.quantile(scores, np.linspace(0, 1, MAX_THRESHOLDS), method="nearest"))
    answered, errors = counts(scores, wrong, levels)
    enough = answered >= min(least_rows(max_error, confidence), len(scores))
    answered, errors = answered[enough], errors[enough]
    bounds = betaincinv(errors + 1, np.maximum(answered - errors, 1e-9), confidence)
    best = int(np.argmin(bounds))
    needed = rows_that_would_do(answered[best] / len(scores), errors[best] / answered[best], max_error, confidence)
    if needed:
        more = f"If the error stays as it is on these rows, about {max(needed, 2 * len(scores)):,} rows would do."
        give = "so many labelled rows, a larger max_error (--max-error), or another score (--score)"
    else:
        more = "No threshold errs clearly less than that on these rows, so more of them would hardly help."
        give = "a larger max_error (--max-error), another score (--score), or a better model"
    near = f" The least they could come near to is {bounds[best]:.2g}." if bounds[best] > max_error else ""
    return EbmcalError(
        f"These {len(scores):,} rows cannot promise an error of at most {max_error:g} at confidence {confidence:g}. "
        f"{more}{near} Give {give}."
    )


def rows_that_would_do(coverage: float, risk: float, max_error: float, confidence: float) -> int | None:
    """Labelled rows, planning rows included, with which a threshold passes nine times in ten; None beyond a million.

    `coverage` is the share of texts that the threshold answers, `risk` the share of those answers that are wrong.

    >>> rows_that_would_do(0.5, 0.05, max_error=0.1, confidence=0.9)
    500
    """
    n = np.geomspace(least_rows(max_error, confidence), 1e6, 200)
    answered = np.floor(n * coverage * (1 - 1 / PLAN_EVERY))
    unlucky = np.ceil(answered * risk + 1.28 * np.sqrt(answered * risk * (1 - risk)))
    would_do = binomial_p(unlucky, answered, max_error) <= 1.0 - confidence
    return int(float(f"{n[int(np.argmax(would_do))]:.2g}")) if would_do.any() else None
