"""Statistics of a window of unlabelled rows, compared with labelled rows of the same model (the reference).

Accuracy estimation: mean confidence, minus its bias on the reference (difference of confidences, Guillory et al. 2021).
This assumes that a confidence means what it meant on the reference. Drift breaks the assumption, so `monitor` withholds
the estimate of a window with drift.

Drift tests: energies and confidences are compared by Kolmogorov–Smirnov, predicted labels by chi-squared. Holm's
procedure over all windows and tests bounds the probability of any false alarm, however the tests depend on each other
(they share the reference).
"""

from collections.abc import Callable, Sequence

import numpy as np

from ebmcal.predictions import Predictions

Z = 1.959963984540054  # of a 95% interval

#: Rows a window needs to be tested, and a reference to compare with.
MIN_ROWS = 30

#: Expected rows per label and sample that the chi-squared approximation needs; rarer labels are pooled.
MIN_EXPECTED = 5


def estimate_accuracy(reference: Predictions, window: Predictions) -> dict[str, float]:
    """The share of correct rows in the window: value, and low and high of a 95% interval. The reference is labelled.

    >>> known = Predictions([0] * 9 + [1], ("a", "b"), probs=[[0.8, 0.2]] * 10)
    >>> round(estimate_accuracy(known, Predictions([-1] * 4, ("a", "b"), probs=[[0.6, 0.4]] * 4))["value"], 2)
    0.7
    """
    gaps = (reference.predicted == reference.labels) - reference.confidence  # [m]
    confidence = window.confidence
    sampling = (confidence * (1 - confidence)).sum() / len(confidence) ** 2
    reach = Z * np.sqrt(gaps.var(ddof=1) / len(gaps) + sampling)
    value = confidence.mean() + gaps.mean()
    ends = {"value": value, "low": value - reach, "high": value + reach}
    return {name: float(np.clip(end, 0, 1)) for name, end in ends.items()}


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
