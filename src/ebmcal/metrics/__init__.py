"""Metrics: pure functions on arrays, `metric(labels, *, logits=… | probs=…) -> float`, and what surrounds them.

`METRICS` names them, `summarize` and `bootstrap` put intervals around them, `paired_test` compares two methods; `holm`
is for many comparisons at once.
"""

from ebmcal.metrics.bins import Bins, reliability_bins
from ebmcal.metrics.calibration import (
    ece_classwise,
    ece_classwise_debiased,
    ece_top_label,
    ece_top_label_debiased,
    mce_classwise,
    mce_top_label,
)
from ebmcal.metrics.classification import accuracy, macro_f1, matthews
from ebmcal.metrics.comparing import PairedTest, holm, paired_test
from ebmcal.metrics.intervals import FewRowsWarning, Interval, bootstrap, summarize
from ebmcal.metrics.ood import OOD_SCORES, ood_bootstrap, ood_detection, ood_scores
from ebmcal.metrics.registry import DEFAULT_METRICS, HEADLINE_METRICS, METRICS, Metric, compute_metrics
from ebmcal.metrics.scoring import brier, brier_decomposition, nll
from ebmcal.metrics.selective import (
    RiskCoverage,
    accuracy_at_coverage,
    aurc,
    coverage_at_risk,
    error_auroc,
    risk_coverage,
)
from ebmcal.metrics.smooth import smooth_ece

__all__ = [
    "DEFAULT_METRICS",
    "HEADLINE_METRICS",
    "METRICS",
    "OOD_SCORES",
    "Bins",
    "FewRowsWarning",
    "Interval",
    "Metric",
    "PairedTest",
    "RiskCoverage",
    "accuracy",
    "accuracy_at_coverage",
    "aurc",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "compute_metrics",
    "coverage_at_risk",
    "ece_classwise",
    "ece_classwise_debiased",
    "ece_top_label",
    "ece_top_label_debiased",
    "error_auroc",
    "holm",
    "macro_f1",
    "matthews",
    "mce_classwise",
    "mce_top_label",
    "nll",
    "ood_bootstrap",
    "ood_detection",
    "ood_scores",
    "paired_test",
    "reliability_bins",
    "risk_coverage",
    "smooth_ece",
    "summarize",
]
