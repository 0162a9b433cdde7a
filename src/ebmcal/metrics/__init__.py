"""Metrics: pure functions on arrays, `metric(labels, *, logits=… | probs=…) -> float`, and what surrounds them.

`METRICS` lists them, `summarize` and `bootstrap` add confidence intervals, `paired_test` compares two models, `holm`
adjusts p-values for multiple comparisons.
"""

# ruff: noqa: I001
from ebmcal.metrics.calibration import (
    Bins, ece_classwise, ece_classwise_debiased, ece_top_label, ece_top_label_debiased, mce_classwise, mce_top_label,
    reliability_bins, smooth_ece,
)  # fmt: skip
from ebmcal.metrics.classification import (
    accuracy, balanced_brier, brier, confidence_on_errors, macro_f1, matthews, nll,
)  # fmt: skip
from ebmcal.metrics.comparison import PairedTest, holm, paired_test
from ebmcal.metrics.intervals import (
    DEFAULT_METRICS, HEADLINE_METRICS, METRICS, Interval, Metric, bootstrap,
    compute_metrics, find_metric, ood_bootstrap, summarize,
)  # fmt: skip
from ebmcal.metrics.selective import (
    OOD_SCORES, RiskCoverage, accuracy_at_coverage, aurc, coverage_at_risk, error_auroc, ood_detection, ood_scores,
    risk_coverage,
)  # fmt: skip

__all__ = [
    "DEFAULT_METRICS", "HEADLINE_METRICS", "METRICS", "OOD_SCORES", "Bins",
    "Interval", "Metric", "PairedTest", "RiskCoverage", "accuracy", "accuracy_at_coverage", "aurc", "balanced_brier",
    "bootstrap", "brier", "compute_metrics", "confidence_on_errors", "coverage_at_risk", "ece_classwise",
    "ece_classwise_debiased", "ece_top_label", "ece_top_label_debiased", "error_auroc", "find_metric", "holm",
    "macro_f1", "matthews", "mce_classwise", "mce_top_label", "nll",
    "ood_bootstrap", "ood_detection", "ood_scores", "paired_test", "reliability_bins", "risk_coverage", "smooth_ece",
    "summarize",
]  # fmt: skip
