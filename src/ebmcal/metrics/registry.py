"""`METRICS`: every metric by name, with what the rest of ebmcal needs to know about it.

Adding one is a function, an entry here and a test. Titles state which calibration error a number is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ebmcal.errors import unknown_name
from ebmcal.metrics import calibration, classification, selective
from ebmcal.metrics.calibration import Kind, mce_statistics
from ebmcal.metrics.resampling import SufficientStatistics
from ebmcal.predictions.arrays import as_labels_and_probs


@dataclass(frozen=True)
class Metric:
    """A function `(labels, *, logits= | probs=, **options) -> float` and its properties.

    >>> METRICS["ece_classwise"].title, METRICS["ece_classwise"].higher_is_better
    ('ECE class-wise', False)
    """

    function: Callable[..., float]
    title: str
    higher_is_better: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)
    is_binned: bool = False  # takes n_bins and binning
    is_raised_by_noise: bool = False  # has a noise floor
    events: Kind | None = None  # of an expected binned error: what it bins, for its interval in closed form
    own_statistics: Callable[..., SufficientStatistics | None] | None = None

    @property
    def statistics(self) -> Callable[..., SufficientStatistics | None] | None:
        """The function `(labels, probs, **options)` whose sums are resampled; None: the metric itself is."""
        return self.own_statistics or getattr(self.function, "statistics", None)


def find_metric(name_or_function: str | Callable[..., float]) -> Metric:
    """The metric of a name, or a metric made from a function `(labels, *, probs) -> float`.

    >>> find_metric("nll").higher_is_better
    False
    """
    if callable(name_or_function):
        known = (m for m in METRICS.values() if m.function is name_or_function)
        title = getattr(name_or_function, "__name__", "metric")
        return next(known, Metric(name_or_function, title, higher_is_better=True, bounds=(-np.inf, np.inf)))
    if name_or_function not in METRICS:
        raise unknown_name("metric", str(name_or_function), METRICS)
    return METRICS[name_or_function]


def _ece(function: Callable[..., float], title: str, kind: Kind, *, debiased: bool = False) -> Metric:
    return Metric(function, title, is_binned=True, is_raised_by_noise=not debiased, events=kind)


def _mce(function: Callable[..., float], title: str, kind: Kind) -> Metric:
    statistics = partial(mce_statistics, kind=kind)
    return Metric(function, title, is_binned=True, is_raised_by_noise=True, own_statistics=statistics)


def _by_name(*metrics: Metric) -> dict[str, Metric]:
    return {metric.function.__name__: metric for metric in metrics}


METRICS: dict[str, Metric] = _by_name(
    Metric(classification.accuracy, "accuracy", True),
    Metric(classification.macro_f1, "macro F1", True),
    Metric(classification.matthews, "Matthews correlation", True, bounds=(-1.0, 1.0)),
    _ece(calibration.ece_classwise, "ECE class-wise", "class"),
    _ece(calibration.ece_top_label, "ECE top-label", "top_label"),
    _ece(calibration.ece_classwise_debiased, "ECE class-wise, debiased", "class", debiased=True),
    _ece(calibration.ece_top_label_debiased, "ECE top-label, debiased", "top_label", debiased=True),
    _mce(calibration.mce_classwise, "MCE class-wise", "class"),
    _mce(calibration.mce_top_label, "MCE top-label", "top_label"),
    Metric(calibration.smooth_ece, "smooth ECE top-label", is_raised_by_noise=True),
    Metric(classification.nll, "NLL", bounds=(0.0, np.inf)),
    Metric(classification.brier, "Brier", bounds=(0.0, 2.0)),
    Metric(classification.balanced_brier, "balanced Brier"),
    Metric(classification.confidence_on_errors, "confidence on errors"),
    Metric(selective.aurc, "AURC"),
    Metric(selective.error_auroc, "AUROC for errors", True),
    Metric(selective.accuracy_at_coverage, "accuracy at 80% coverage", True),
    Metric(selective.coverage_at_risk, "coverage at 5% risk", True),
)

#: Metrics that need the shares of several human labels per row; computed if the predictions have them.
HUMAN_METRICS: dict[str, Metric] = _by_name(
    Metric(classification.human_kl, "KL from human labels", bounds=(0.0, np.inf)),
    Metric(classification.human_tv, "total variation from human labels"),
)


#: Shown first in tables and compared in paired tests.
HEADLINE_METRICS: tuple[str, ...] = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")

#: Computed by default.
DEFAULT_METRICS: tuple[str, ...] = (
    *("accuracy", "macro_f1", "matthews", "ece_classwise", "ece_top_label", "ece_top_label_debiased", "smooth_ece"),
    *("nll", "brier", "balanced_brier", "confidence_on_errors", "aurc", "error_auroc", "accuracy_at_coverage"),
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
    return {name: METRICS[name].function(labels, probs=probs) for name in DEFAULT_METRICS}
