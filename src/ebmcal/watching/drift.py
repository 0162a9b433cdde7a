"""Have the texts changed? Tests of each window against the calibration texts, with one false-alarm rate over all.

Energies and confidences by Kolmogorov–Smirnov, predicted labels by chi-squared with rare labels put together. Holm's
procedure over windows × tests: if nothing has changed, the chance of any alarm is at most the rate that was asked for,
however the tests depend on each other (they share the calibration texts).
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from ebmcal.predictions import Predictions

#: Rows that a window needs to be tested.
LEAST_ROWS = 30

#: Rows of a label that chi-squared needs to be expected in each sample.
LEAST_EXPECTED = 5


def energy_test(reference: Predictions, rows: Predictions) -> float | None:
    if reference.energies is None or rows.energies is None:
        return None
    return float(stats.ks_2samp(reference.energies, rows.energies, method="asymp").pvalue)


def confidence_test(reference: Predictions, rows: Predictions) -> float | None:
    return float(stats.ks_2samp(reference.confidences(), rows.confidences(), method="asymp").pvalue)


def label_test(reference: Predictions, rows: Predictions) -> float | None:
    """p of the predicted labels; None where one label is nearly all there is."""
    counts = np.stack([np.bincount(p.predicted(), minlength=p.n_classes) for p in (reference, rows)])  # [2, C]
    expected = counts.sum(axis=0) * counts.sum(axis=1).min() / counts.sum()
    often = expected >= LEAST_EXPECTED
    rest = counts[:, ~often].sum(axis=1, keepdims=True)
    table = counts[:, often]
    if rest.sum() * counts.sum(axis=1).min() / counts.sum() >= LEAST_EXPECTED:
        table = np.concatenate([table, rest], axis=1)
    return float(stats.chi2_contingency(table).pvalue) if table.shape[1] > 1 else None


TESTS: dict[str, Callable[[Predictions, Predictions], float | None]] = {
    "energy": energy_test,
    "confidence": confidence_test,
    "predicted labels": label_test,
}


def holm(p_values: Sequence[float], rate: float, n_tests: int | None = None) -> list[bool]:
    """Which hypotheses are rejected with a chance of at most `rate` of any wrong rejection.

    `n_tests` counts tests that are still to come: each of them is taken as not rejected.

    >>> holm([0.01, 0.04, 0.03], 0.05)
    [True, False, False]
    """
    rejected, total = [False] * len(p_values), max(n_tests or 0, len(p_values))
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[i] > rate / (total - rank):
            break
        rejected[i] = True
    return rejected
