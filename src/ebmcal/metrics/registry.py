"""`METRICS`: every metric of one number by name, with what the rest of ebmcal has to know about it.

Adding one is a function, an entry here and a test. Display names say which calibration error a number is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ebmcal.errors import unknown_name
from ebmcal.metrics import calibration, classification, scoring, selective, smooth
from ebmcal.metrics.bins import Kind
from ebmcal.metrics.sums import Sums
from ebmcal.predictions.arrays import as_labels_and_probs

N_BINS = 20


@dataclass(frozen=True)
class Metric:
    """A function `(labels, *, logits= | probs=, **options) -> float` and what is known about it.

    >>> METRICS["nll"].function([0], probs=[[0.5, 0.5]]) == METRICS["nll"].function([1], probs=[[0.5, 0.5]])
    True
    """

    function: Callable[..., float]
    title: str  # may hold {bins}, {coverage}, {risk}
    higher_is_better: bool
    sums: Callable[..., Sums | None] | None = None  # (labels, probs, **options), for quick resampling
    bounds: tuple[float, float] = (0.0, 1.0)
    binned: bool = False
    noisy_upwards: bool = False  # noise alone raises it, as it does every calibration error
    events: Kind | None = None  # of an expected binned error: what it bins, for its interval in closed form
    ranks: bool = False  # orders rows by a score; its sums take max_levels=

    @property
    def display(self) -> str:
        """The name to print, with default options.

        >>> METRICS["ece_classwise"].display
        'ECE class-wise (20 bins)'
        """
        return self.display_with()

    def display_with(
        self, *, n_bins: int = N_BINS, binning: str = "width", coverage: float = 0.8, risk: float = 0.05, **other: Any
    ) -> str:
        """The name to print, with these options of the function."""
        bins = f"{n_bins} {'equal-mass ' if binning == 'mass' else ''}bins"
        return self.title.format(bins=bins, coverage=f"{coverage:.4g}", risk=f"{risk:.4g}")


def metric(name_or_function: str | Callable[..., float]) -> Metric:
    """The metric of a name, or one made of a function `(labels, *, probs) -> float`.

    >>> metric("nll").higher_is_better
    False
    """
    if callable(name_or_function):
        known = (m for m in METRICS.values() if m.function is name_or_function)
        title = getattr(name_or_function, "__name__", "metric")
        return next(known, Metric(name_or_function, title, higher_is_better=True, bounds=(-np.inf, np.inf)))
    if name_or_function not in METRICS:
        raise unknown_name("metric", str(name_or_function), METRICS)
    return METRICS[name_or_function]


def _width_only(sums: Callable[..., Sums], kind: str) -> Callable[..., Sums | None]:
    """Equal-mass bins move with the resample, so there are no sums to reuse: None."""

    def build(labels: np.ndarray, probs: np.ndarray, n_bins: int = N_BINS, binning: str = "width") -> Sums | None:
        return sums(labels, probs, kind=kind, n_bins=n_bins, binning=binning) if binning == "width" else None

    return build


def _calibration_error(function: Callable[..., float], title: str, sums: Callable[..., Sums], kind: Kind) -> Metric:
    events = None if sums is calibration.mce_sums else kind
    raised = sums is not calibration.debiased_sums
    return Metric(function, title, False, _width_only(sums, kind), binned=True, noisy_upwards=raised, events=events)


def _ranking(
    function: Callable[..., float], title: str, higher_is_better: bool, of_counts: Callable[..., Any]
) -> Metric:
    return Metric(function, title, higher_is_better, partial(selective.ranking_sums, of_counts), ranks=True)


METRICS: dict[str, Metric] = {
    "accuracy": Metric(classification.accuracy, "accuracy", True, classification.accuracy_sums),
    "macro_f1": Metric(classification.macro_f1, "macro F1", True, classification.macro_f1_sums),
    "matthews": Metric(
        classification.matthews, "Matthews correlation", True, classification.matthews_sums, bounds=(-1.0, 1.0)
    ),
    "ece_classwise": _calibration_error(
        calibration.ece_classwise, "ECE class-wise ({bins})", calibration.ece_sums, "class"
    ),
    "ece_top_label": _calibration_error(
        calibration.ece_top_label, "ECE top-label ({bins})", calibration.ece_sums, "top_label"
    ),
    "ece_classwise_debiased": _calibration_error(
        calibration.ece_classwise_debiased, "ECE class-wise, debiased ({bins})", calibration.debiased_sums, "class"
    ),
    "ece_top_label_debiased": _calibration_error(
        calibration.ece_top_label_debiased, "ECE top-label, debiased ({bins})", calibration.debiased_sums, "top_label"
    ),
    "mce_classwise": _calibration_error(
        calibration.mce_classwise, "MCE class-wise ({bins})", calibration.mce_sums, "class"
    ),
    "mce_top_label": _calibration_error(
        calibration.mce_top_label, "MCE top-label ({bins})", calibration.mce_sums, "top_label"
    ),
    "smooth_ece": Metric(smooth.smooth_ece, "smooth ECE top-label", False, smooth.smooth_ece_sums, noisy_upwards=True),
    "nll": Metric(scoring.nll, "NLL", False, scoring.nll_sums, bounds=(0.0, np.inf)),
    "brier": Metric(scoring.brier, "Brier", False, scoring.brier_sums, bounds=(0.0, 2.0)),
    "aurc": _ranking(selective.aurc, "AURC", False, selective.aurc_of_counts),
    "error_auroc": _ranking(selective.error_auroc, "AUROC for errors", True, selective.error_auroc_of_counts),
    "accuracy_at_coverage": _ranking(
        selective.accuracy_at_coverage,
        "accuracy at coverage {coverage}",
        True,
        selective.accuracy_at_coverage_of_counts,
    ),
    "coverage_at_risk": _ranking(
        selective.coverage_at_risk, "coverage at risk {risk}", True, selective.coverage_at_risk_of_counts
    ),
}

#: What tables show first and paired tests compare.
HEADLINE_METRICS: tuple[str, ...] = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")

#: What is computed where nobody says otherwise.
DEFAULT_METRICS: tuple[str, ...] = (
    "accuracy",
    "macro_f1",
    "matthews",
    "ece_classwise",
    "ece_top_label",
    "ece_top_label_debiased",
    "smooth_ece",
    "nll",
    "brier",
    "aurc",
    "error_auroc",
)


def compute_metrics(eval_prediction: Any) -> dict[str, float]:
    """The default metrics for `transformers.Trainer(compute_metrics=...)`: logits and label ids in, numbers out.

    >>> from types import SimpleNamespace
    >>> outcome = compute_metrics(SimpleNamespace(predictions=[[2.0, 0.0]], label_ids=[0]))
    >>> outcome["accuracy"]
    1.0
    """
    logits = eval_prediction.predictions
    if isinstance(logits, tuple):  # models that also return hidden states
        logits = logits[0]
    labels, probs = as_labels_and_probs(eval_prediction.label_ids, logits=logits)
    return {name: metric(name).function(labels, probs=probs) for name in DEFAULT_METRICS}
