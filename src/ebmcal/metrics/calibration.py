"""Binned calibration errors: expected (ECE) and maximum (MCE), class-wise and top-label, plain and debiased.

With B bins and, in bin b, n_b events said with mean probability conf_b of which the share acc_b came true:

    ECE = Σ_b n_b/n · |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|  over bins that are not empty

`top_label` bins one event a row ("the predicted class is right"). `classwise` does this for each class y with P(y|x)
over all rows and takes the mean over classes (ECE) or the largest (MCE).
"""

from typing import Any

from ebmcal.metrics.binned import debiased_sums, ece_sums, mce_sums
from ebmcal.metrics.bins import Binning
from ebmcal.predictions.arrays import as_labels_and_probs


def ece_classwise(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Expected calibration error, class-wise: the mean over classes of the error of P(y|x).

    >>> ece_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.15
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return ece_sums(labels, probs, kind="class", n_bins=n_bins, binning=binning).value()


def ece_top_label(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Expected calibration error of the predicted class's probability.

    >>> ece_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return ece_sums(labels, probs, kind="top_label", n_bins=n_bins, binning=binning).value()


def ece_classwise_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """`ece_classwise` less the part that comes from few rows in a bin; see `debiased_sums`.

    >>> ece_classwise_debiased([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.15
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return debiased_sums(labels, probs, kind="class", n_bins=n_bins, binning=binning).value()


def ece_top_label_debiased(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """`ece_top_label` less the part that comes from few rows in a bin; see `debiased_sums`.

    >>> round(ece_top_label_debiased([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]]), 4)
    0.3544
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return debiased_sums(labels, probs, kind="top_label", n_bins=n_bins, binning=binning).value()


def mce_classwise(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Maximum calibration error, class-wise: the largest gap of any bin of any class.

    >>> mce_classwise([0, 1], probs=[[0.9, 0.1], [0.2, 0.8]])
    0.2
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return mce_sums(labels, probs, kind="class", n_bins=n_bins, binning=binning).value()


def mce_top_label(
    labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20, binning: Binning = "width"
) -> float:
    """Maximum calibration error of the predicted class's probability.

    >>> mce_top_label([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]])
    0.4
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    return mce_sums(labels, probs, kind="top_label", n_bins=n_bins, binning=binning).value()
