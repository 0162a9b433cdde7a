"""All metrics of a set of predictions at once, with intervals; and the same as a Trainer's `compute_metrics`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ebmcal.metrics.bootstrap import Interval, intervals
from ebmcal.metrics.registry import metric
from ebmcal.predictions.arrays import as_labels_and_probs

if TYPE_CHECKING:
    from ebmcal.predictions import Predictions

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


def summarize(
    predictions: "Predictions",
    metrics: Sequence[str] = DEFAULT_METRICS,
    n_resamples: int = 1000,
    seed: int = 0,
    *,
    level: float = 0.95,
    warn: bool = True,
) -> dict[str, Interval]:
    """Each metric of the rows whose label is known, with a bootstrap interval over the same resamples.

    >>> from ebmcal.predictions import Predictions
    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> summarize(p, ["accuracy", "brier"], n_resamples=10)["accuracy"].value
    1.0
    """
    known = predictions.labelled()
    labels, probs = as_labels_and_probs(known.labels, probs=known.probs)
    wanted = {name: (metric(name), {}) for name in metrics}
    return intervals(wanted, labels, probs, n_resamples=n_resamples, seed=seed, level=level, warn=warn)


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
