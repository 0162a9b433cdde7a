"""The accuracy to expect of rows without labels, from rows of the same model that have some: the calibration texts.

    confidence   mean confidence − (mean confidence − accuracy on the calibration texts)
                 right while P(y|x) means what it meant there (Guillory et al. 2021, difference of confidences)
    threshold    the share of rows whose confidence passes a threshold that as many calibration texts pass as are right
                 (Garg et al. 2022, average thresholded confidence)
    energy       the accuracy of calibration texts of the same energy: fifths of their energies, weighted as in the rows

None of them can know about an error that the model is sure of and that was not there before: see docs/watch.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions

Z = 1.959963984540054  # of a 95% interval
FIFTHS = 5


@dataclass(frozen=True)
class Expected:
    """An accuracy to expect, with a 95% interval: for the share of these rows that will turn out right."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, variance: float) -> "Expected":
        reach = Z * float(np.sqrt(variance))
        value, low, high = (float(np.clip(x, 0, 1)) for x in (value, value - reach, value + reach))
        return cls(value, low, high)


def by_confidence(reference: Predictions, rows: Predictions) -> Expected:
    """From the mean confidence, with the bias it has on the calibration texts taken off.

    >>> known = Predictions([0] * 9 + [1], ("a", "b"), probs=[[0.8, 0.2]] * 10)
    >>> round(by_confidence(known, Predictions([-1] * 4, ("a", "b"), probs=[[0.6, 0.4]] * 4)).value, 2)
    0.7
    """
    known = reference.labelled()
    gaps = (known.predicted() == known.labels) - known.confidences()  # [m]
    confidences = rows.confidences()
    chance = float((confidences * (1 - confidences)).sum()) / len(confidences) ** 2
    return Expected.of(confidences.mean() + gaps.mean(), gaps.var(ddof=1) / len(gaps) + chance)


def by_threshold(reference: Predictions, rows: Predictions) -> Expected:
    """From the share of rows above the threshold that, on the calibration texts, leaves as many as are right."""
    known = reference.labelled()
    right = float((known.predicted() == known.labels).mean())
    threshold = np.quantile(known.confidences(), 1 - right)
    share = float((rows.confidences() >= threshold).mean())
    return Expected.of(share, right * (1 - right) / known.n_rows + share * (1 - share) / rows.n_rows)


def by_energy(reference: Predictions, rows: Predictions) -> Expected:
    """From the accuracy of calibration texts in each fifth of their energies, weighted by where these rows lie."""
    known = reference.labelled()
    energies, right = known.require_energies(), known.predicted() == known.labels
    edges = np.quantile(energies, np.linspace(0, 1, FIFTHS + 1)[1:-1])
    theirs, ours = np.searchsorted(edges, energies), np.searchsorted(edges, rows.require_energies())
    counts = np.bincount(theirs, minlength=FIFTHS)
    accuracy = np.bincount(theirs, right, FIFTHS) / np.maximum(counts, 1)
    weights = np.bincount(ours, minlength=FIFTHS) / len(ours)
    spread = accuracy * (1 - accuracy)
    variance = float((weights**2 * spread / np.maximum(counts, 1)).sum() + (weights * spread).sum() / len(ours))
    return Expected.of(float((weights * accuracy).sum()), variance)


ESTIMATES: dict[str, Callable[[Predictions, Predictions], Expected]] = {
    "confidence": by_confidence,
    "threshold": by_threshold,
    "energy": by_energy,
}


def expect(reference: Predictions, rows: Predictions) -> dict[str, Expected]:
    """Every estimate that the rows allow: without energies there is none by energy."""
    if reference.labelled().n_rows < 2:
        raise EbmcalError("One calibration text with a label is too few to say what accuracy to expect.")
    has_energies = reference.energies is not None and rows.energies is not None
    return {name: of(reference, rows) for name, of in ESTIMATES.items() if name != "energy" or has_energies}
