"""Scores of probabilities: negative log-likelihood, Brier and its decomposition, scores on errors, human labels.

ECE, NLL and Brier hide overconfident errors when accuracy is high, because there are few of them.
`confidence_on_errors` and `balanced_brier` weigh errors separately.

Several human labels per text: KL is Σ_y h_y log(h_y / p_y) in nats; total variation is ½ Σ_y |h_y − p_y|, the share of
annotators that would have to change their label. Both are 0 only if the model gives the shares of the annotators.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.calibration import bin_sums
from ebmcal.metrics.classification import confidence_and_correct
from ebmcal.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from ebmcal.predictions.arrays import as_labels_and_probs

_TINY = np.finfo(np.float64).tiny


def nll(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Negative log-likelihood of the labels: the mean of −log P(label|x), in nats.

    A probability of exactly 0 for the label counts as the smallest float64, 2.2e-308 (708 nats), so that the mean stays
    finite: probabilities that were rounded before they were written contain such zeros.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> round(nll([1], probs=[[0.5, 0.5]]), 4)
    0.6931
    """
    return nll_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def brier(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Brier score: the mean over rows of Σ_y (P(y|x) − [label is y])², from 0 to 2 for any number of classes.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> brier([1], probs=[[0.5, 0.5]])
    0.5
    """
    return brier_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def confidence_on_errors(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """The mean confidence of the wrong predictions; NaN if there are none.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> confidence_on_errors([0, 1, 1], probs=[[0.9, 0.1], [0.75, 0.25], [0.1, 0.9]])
    0.75
    """
    return errors_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def balanced_brier(labels: Any, *, logits: Any = None, probs: Any = None) -> float:
    """Brier score of the confidence with equal weight for correct and wrong predictions; NaN if either is missing.

    ½ · mean of (1 − confidence)² over correct rows + ½ · mean of confidence² over wrong rows.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> balanced_brier([0, 1], probs=[[0.5, 0.5], [1.0, 0.0]])
    0.625
    """
    return balanced_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs)).value()


def brier_decomposition(labels: Any, *, logits: Any = None, probs: Any = None, n_bins: int = 20) -> dict[str, float]:
    """The parts of the Brier score of the class-wise binned forecast (Murphy 1973).

    Each P(y|x) is replaced by the mean of its equal-width bin; for that forecast, summed over classes,

        binned_brier = calibration + refinement        refinement = uncertainty − resolution

    exactly, with calibration = Σ_b n_b/n (acc_b − conf_b)² and refinement = Σ_b n_b/n acc_b (1 − acc_b). `brier` is
    the score of the original forecast; it is close to `binned_brier` when the bins are narrow.

    Takes `labels` [n] and `probs` or `logits` [n, C].

    >>> parts = brier_decomposition([0, 1], probs=[[0.9, 0.1], [0.9, 0.1]])
    >>> {name: round(value, 2) for name, value in parts.items()}
    {'brier': 0.82, 'binned_brier': 0.82, 'calibration': 0.32, 'refinement': 0.5, 'uncertainty': 0.5, 'resolution': 0.0}
    """
    labels, probs = as_labels_and_probs(labels, logits=logits, probs=probs)
    counts, forecast, hits = bin_sums(labels, probs, "class", n_bins, "width")
    counts, n = np.maximum(counts, 1.0), len(labels)
    calibration = float(((forecast - hits) ** 2 / counts).sum() / n)
    refinement = float((hits * (1 - hits / counts)).sum() / n)
    base = hits.sum(axis=1) / n
    uncertainty = float((base * (1 - base)).sum())
    return {
        "brier": brier_statistics(labels, probs).value(),
        "binned_brier": calibration + refinement,
        "calibration": calibration,
        "refinement": refinement,
        "uncertainty": uncertainty,
        "resolution": uncertainty - refinement,
    }


def human_kl(labels: Any, *, logits: Any = None, probs: Any = None, human: Any) -> float:
    """Mean KL divergence of P(·|x) from the shares of human labels, in nats.

    Takes `labels` [n], `probs` or `logits` [n, C], and `human` [n, C] with rows that sum to one.

    >>> round(human_kl([0], probs=[[0.5, 0.5]], human=[[1.0, 0.0]]), 4)
    0.6931
    """
    return human_kl_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs), human=human).value()


def human_tv(labels: Any, *, logits: Any = None, probs: Any = None, human: Any) -> float:
    """Mean total variation distance between P(·|x) and the shares of human labels, from 0 to 1.

    Takes `labels` [n], `probs` or `logits` [n, C], and `human` [n, C] with rows that sum to one.

    >>> human_tv([0], probs=[[0.5, 0.5]], human=[[1.0, 0.0]])
    0.5
    """
    return human_tv_statistics(*as_labels_and_probs(labels, logits=logits, probs=probs), human=human).value()


def nll_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """NLL as the mean of one number per row."""
    return mean_statistics(-np.log(np.maximum(_label_prob(labels, probs), _TINY)))


def brier_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Brier as the mean of one number per row: Σ p² − 2 p_label + 1."""
    return mean_statistics(np.einsum("ij,ij->i", probs, probs) - 2.0 * _label_prob(labels, probs) + 1.0)


def errors_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Mean confidence on errors from the group sums."""

    def finish(counts: np.ndarray, confidence: np.ndarray, squares: np.ndarray) -> np.ndarray:
        return _ratio(confidence, counts)[..., 0]

    return _by_correctness(labels, probs, finish)


def balanced_statistics(labels: np.ndarray, probs: np.ndarray) -> SufficientStatistics:
    """Balanced Brier score from the group sums."""

    def finish(counts: np.ndarray, confidence: np.ndarray, squares: np.ndarray) -> np.ndarray:
        return _ratio(squares, counts).mean(axis=-1)

    return _by_correctness(labels, probs, finish)


def human_kl_statistics(labels: np.ndarray, probs: np.ndarray, human: Any) -> SufficientStatistics:
    """KL divergence as the mean of one number per row."""
    from scipy.special import rel_entr

    return mean_statistics(rel_entr(_checked_human(human, probs), np.maximum(probs, _TINY)).sum(axis=1))


def human_tv_statistics(labels: np.ndarray, probs: np.ndarray, human: Any) -> SufficientStatistics:
    """Total variation as the mean of one number per row."""
    return mean_statistics(np.abs(_checked_human(human, probs) - probs).sum(axis=1) / 2)


def _label_prob(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    return np.take_along_axis(probs, labels[:, None], axis=1)[:, 0]


def _by_correctness(labels: np.ndarray, probs: np.ndarray, finish: Callable[..., np.ndarray]) -> SufficientStatistics:
    """Counts, summed confidence and summed squared gap of the wrong and of the correct rows, each [..., 2]."""
    confidence, correct = confidence_and_correct(labels, probs)

    def entries(part: slice) -> tuple[np.ndarray, np.ndarray]:
        group = correct[part].astype(np.intp)
        gap = confidence[part] - group
        return np.stack([group, group + 2, group + 4]), np.stack([np.ones(len(gap)), confidence[part], gap * gap])

    def finish_sums(sums: np.ndarray, n: np.ndarray) -> np.ndarray:
        return finish(*np.moveaxis(sums.reshape(*sums.shape[:-1], 3, 2), -2, 0))

    return SufficientStatistics(len(labels), 6, entries, finish_sums, width=3)


def _ratio(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)


def _checked_human(human: Any, probs: np.ndarray) -> np.ndarray:
    shares = np.asarray(human, dtype=np.float64)
    if shares.shape != probs.shape:
        raise EbmcalError(f"human: expected shape {probs.shape}, as the probabilities, got {shares.shape}.")
    return shares
