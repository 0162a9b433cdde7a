"""How many labelled rows a guarantee needs, estimated by simulation from rows that were too few.

The error rate as a function of the score is uncertain, so populations are drawn from its posterior: a logistic curve
(Laplace approximation) that is updated by the observed errors in bins of the score. Rows are drawn from each population
and the planned test is carried out. The answer is the number of rows with which it passes in 95% of the draws, times a
safety factor. Simulations show that it is enough in nine of ten cases (tests/selective/test_sample_size.py).
"""

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.selective.risk_control import PLAN_EVERY, binomial_p, first_test, least_rows
from ebmcal.selective.scores import fit_ridge_logistic

N_BINS, N_POPULATIONS = 25, 200
PRIOR_ROWS = 20.0  # weight of the logistic curve in each bin, in rows
TARGET, SAFETY = 0.95, 1.5
MAX_ROWS = 1_000_000


def refusal(scores: np.ndarray, wrong: np.ndarray, max_error: float, confidence: float) -> EbmcalError:
    """The error that a guarantee is not supported, with what would help: more rows, how many, or a larger error."""
    needed = rows_needed(scores, wrong, max_error, confidence)
    if needed is None:
        more = "Even many more rows are unlikely to be enough: no threshold has a clearly smaller error."
        hint = "Use a larger max_error (--max-error), another score (--score), or a better model."
    else:
        more = f"About {needed:,} labelled rows should be enough, if they are like these."
        hint = "Or use a larger max_error (--max-error) or another score (--score)."
    return EbmcalError(
        f"These {len(scores):,} rows do not support an error of at most {max_error:g} at confidence {confidence:g}. "
        f"{more} {hint}"
    )


def rows_needed(scores: np.ndarray, wrong: np.ndarray, max_error: float, confidence: float) -> int | None:
    """Labelled rows with which a threshold passes in nine of ten cases; None beyond a million.

    >>> rng = np.random.default_rng(0)
    >>> confidences = rng.uniform(0.5, 1, 300)
    >>> 300 < rows_needed(confidences, rng.random(300) > confidences, 0.1, 0.9) < 20_000
    True
    """
    rng = np.random.default_rng(0)
    mass, rates = _draw_populations(scores, wrong, rng)
    low = max(len(scores), least_rows(max_error, confidence))
    grid = np.unique(np.geomspace(low, max(MAX_ROWS, low), 60).astype(int))
    first, last = 0, len(grid) - 1
    if _success_rate(int(grid[last]), mass, rates, max_error, confidence, rng) < TARGET:
        return None
    while first < last:
        middle = (first + last) // 2
        passes = _success_rate(int(grid[middle]), mass, rates, max_error, confidence, rng) >= TARGET
        first, last = (first, middle) if passes else (middle + 1, last)
    return int(float(f"{SAFETY * grid[first]:.2g}"))


def _draw_populations(scores: np.ndarray, wrong: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Shares of rows and error rates by bin of the score, highest score first: two arrays [populations, bins]."""
    order = np.argsort(-scores, kind="stable")
    ordered, errors = scores[order], wrong[order].astype(np.float64)
    n, n_bins = len(scores), min(N_BINS, max(1, len(scores) // 8))
    last = ordered[np.arange(1, n_bins + 1) * n // n_bins - 1]
    stops = np.unique(np.searchsorted(-ordered, -last, side="right"))
    starts = np.concatenate([[0], stops[:-1]])
    counts = np.diff(np.append(starts, n))
    x = _predictor(ordered)
    weights, hessian = fit_ridge_logistic(x[:, None], errors, intercept_ridge=0.1)
    drawn = rng.multivariate_normal(weights, np.linalg.inv(hessian), N_POPULATIONS)
    means = np.add.reduceat(x, starts) / counts
    prior = PRIOR_ROWS / (1.0 + np.exp(-np.clip(drawn[:, :1] * means + drawn[:, 1:], -30, 30)))
    n_wrong = np.add.reduceat(errors, starts)
    rates = rng.beta(n_wrong + prior + 1e-9, counts - n_wrong + PRIOR_ROWS - prior + 1e-9)
    return rng.dirichlet(counts, N_POPULATIONS), rates


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
