"""Statistics of a window of unlabelled rows, compared with labelled rows of the same model (the reference).

Accuracy estimation:

    confidence   mean confidence, minus its bias on the reference; correct while P(y|x) keeps its meaning
                 (difference of confidences, Guillory et al. 2021)
    threshold    the share of rows above a threshold, chosen such that on the reference this share equals the accuracy
                 (average thresholded confidence, Garg et al. 2022)
    energy       the reference accuracy in each fifth of its energies, weighted by where the new rows lie

All three assume that a confidence means what it meant on the reference. Drift breaks this assumption, so `monitor`
withholds the estimate of a window with drift.

Drift tests: energies and confidences are compared by Kolmogorov–Smirnov, predicted labels by chi-squared. Holm's
procedure over all windows and tests bounds the probability of any false alarm, however the tests depend on each other
(they share the reference).
"""

from collections.abc import Callable, Sequence

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions

Z = 1.959963984540054  # of a 95% interval
N_ENERGY_BINS = 5

#: Rows a window needs to be tested, and a reference to compare with.
MIN_ROWS = 30

#: Expected rows per label and sample that the chi-squared approximation needs; rarer labels are pooled.
MIN_EXPECTED = 5

Estimate = dict[str, float]  # value, low, high: a 95% interval for the share of correct rows in this window


def by_confidence(reference: Predictions, window: Predictions) -> Estimate:
    """From the mean confidence, corrected by its bias on the reference.

    >>> known = Predictions([0] * 9 + [1], ("a", "b"), probs=[[0.8, 0.2]] * 10)
    >>> round(by_confidence(known, Predictions([-1] * 4, ("a", "b"), probs=[[0.6, 0.4]] * 4))["value"], 2)
    0.7
    """
    gaps = _correct(reference) - reference.confidence  # [m]
    confidence = window.confidence
    sampling = float((confidence * (1 - confidence)).sum()) / len(confidence) ** 2
    return _estimate(confidence.mean() + gaps.mean(), gaps.var(ddof=1) / len(gaps) + sampling)


def by_threshold(reference: Predictions, window: Predictions) -> Estimate:
    """From the share of rows above the confidence threshold that matches the accuracy on the reference."""
    accuracy = float(_correct(reference).mean())
    threshold = np.quantile(reference.confidence, 1 - accuracy)
    share = float((window.confidence >= threshold).mean())
    return _estimate(share, accuracy * (1 - accuracy) / reference.n_rows + share * (1 - share) / window.n_rows)


def by_energy(reference: Predictions, window: Predictions) -> Estimate:
    """From the reference accuracy in each fifth of the reference energies, weighted by the window's energies."""
    energies = reference.require_energies()
    edges = np.quantile(energies, np.linspace(0, 1, N_ENERGY_BINS + 1)[1:-1])
    known, new = np.searchsorted(edges, energies), np.searchsorted(edges, window.require_energies())
    counts = np.maximum(np.bincount(known, minlength=N_ENERGY_BINS), 1)
    accuracy = np.bincount(known, _correct(reference), N_ENERGY_BINS) / counts
    weights = np.bincount(new, minlength=N_ENERGY_BINS) / len(new)
    spread = accuracy * (1 - accuracy)
    variance = float((weights**2 * spread / counts).sum() + (weights * spread).sum() / len(new))
    return _estimate(float((weights * accuracy).sum()), variance)


ESTIMATORS: dict[str, Callable[[Predictions, Predictions], Estimate]] = {
    "confidence": by_confidence,
    "threshold": by_threshold,
    "energy": by_energy,
}


def estimate_accuracy(reference: Predictions, window: Predictions) -> dict[str, Estimate]:
    """Every estimate the data allow: without energies there is none by energy."""
    reference = reference.labelled()
    if reference.n_rows < 2:
        raise EbmcalError("Accuracy estimation needs at least 2 labelled reference rows, got 1.")
    has_energies = reference.energies is not None and window.energies is not None
    return {n: estimate(reference, window) for n, estimate in ESTIMATORS.items() if n != "energy" or has_energies}


def _estimate(value: float, variance: float) -> Estimate:
    reach = Z * float(np.sqrt(variance))
    ends = {"value": value, "low": value - reach, "high": value + reach}
    return {name: float(np.clip(end, 0, 1)) for name, end in ends.items()}


def _correct(reference: Predictions) -> np.ndarray:
    return np.asarray(reference.predicted == reference.labels, dtype=np.float64)


def energy_test(reference: Predictions, window: Predictions) -> float | None:
    """p-value of the energies; None without energies."""
    if reference.energies is None or window.energies is None:
        return None
    return _kolmogorov_smirnov(reference.energies, window.energies)


def confidence_test(reference: Predictions, window: Predictions) -> float | None:
    """p-value of the confidences."""
    return _kolmogorov_smirnov(reference.confidence, window.confidence)


def label_test(reference: Predictions, window: Predictions) -> float | None:
    """p-value of the predicted labels; None if nearly all predictions are the same label."""
    from scipy import stats

    counts = np.stack([np.bincount(p.predicted, minlength=p.n_classes) for p in (reference, window)])  # [2, C]
    smaller_sample = counts.sum(axis=1).min() / counts.sum()
    frequent = counts.sum(axis=0) * smaller_sample >= MIN_EXPECTED
    table, rest = counts[:, frequent], counts[:, ~frequent].sum(axis=1, keepdims=True)
    if rest.sum() * smaller_sample >= MIN_EXPECTED:
        table = np.concatenate([table, rest], axis=1)
    return float(stats.chi2_contingency(table).pvalue) if table.shape[1] > 1 else None


def _kolmogorov_smirnov(reference: np.ndarray, window: np.ndarray) -> float:
    from scipy import stats

    return float(stats.ks_2samp(reference, window, method="asymp").pvalue)


TESTS: dict[str, Callable[[Predictions, Predictions], float | None]] = {
    "energy": energy_test,
    "confidence": confidence_test,
    "predicted labels": label_test,
}


def p_values(reference: Predictions, window: Predictions) -> dict[str, float]:
    """The p-value of every applicable test; empty for a window of fewer than `MIN_ROWS` rows."""
    found = {name: test(reference, window) for name, test in TESTS.items() if window.n_rows >= MIN_ROWS}
    return {name: p for name, p in found.items() if p is not None}


def significant(p_values: Sequence[float], rate: float, n_tests: int | None = None) -> list[bool]:
    """Which tests are significant if any false alarm may occur with probability at most `rate` (Holm).

    `n_tests` includes tests that are still to be made; they count as not significant.

    >>> significant([0.01, 0.04, 0.03], 0.05), significant([0.01], 0.05, n_tests=10)
    ([True, False, False], [False])
    """
    from ebmcal.metrics import holm

    n_to_come = max(0, (n_tests or 0) - len(p_values))
    adjusted = holm([*p_values, *[1.0] * n_to_come])[: len(p_values)]
    return [p is not None and p <= rate for p in adjusted]
