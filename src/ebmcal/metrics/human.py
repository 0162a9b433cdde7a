"""Distance from what several people said: where texts have several human labels, the model against their shares.

A text on which people differ has no one right label; a model that says .6 where six of ten people do is right. KL is
Σ_y h_y log(h_y / p_y), how many nats the people would be surprised by; total variation is ½ Σ_y |h_y − p_y|, the share
of people that would have to change their mind. Both are 0 only where the model says what the people said, on each text.
"""

from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.metrics.registry import Metric
from ebmcal.metrics.sums import Sums, mean_of_rows
from ebmcal.predictions.arrays import as_labels_and_probs

_TINY = np.finfo(np.float64).tiny


def human_kl(labels: Any, *, logits: Any = None, probs: Any = None, human: Any) -> float:
    """Mean KL divergence of P(·|x) from the shares of human labels, in nats.

    Takes `labels` [n], `probs` or `logits` [n, C], and `human` [n, C], whose rows sum to one.

    >>> round(human_kl([0], probs=[[0.5, 0.5]], human=[[1.0, 0.0]]), 4)
    0.6931
    """
    return _kl_sums(*as_labels_and_probs(labels, logits=logits, probs=probs), human=human).value()


def human_tv(labels: Any, *, logits: Any = None, probs: Any = None, human: Any) -> float:
    """Mean total variation between P(·|x) and the shares of human labels, from 0 to 1.

    Takes `labels` [n], `probs` or `logits` [n, C], and `human` [n, C], whose rows sum to one.

    >>> human_tv([0], probs=[[0.5, 0.5]], human=[[1.0, 0.0]])
    0.5
    """
    return _tv_sums(*as_labels_and_probs(labels, logits=logits, probs=probs), human=human).value()


def _kl_sums(labels: np.ndarray, probs: np.ndarray, human: Any) -> Sums:
    shares = _checked(human, probs)

    def kl(part: slice) -> np.ndarray:
        h, p = shares[part], np.maximum(probs[part], _TINY)
        return (h * np.log(np.where(h > 0, h, 1.0) / np.where(h > 0, p, 1.0))).sum(axis=1)

    return mean_of_rows(len(labels), probs.shape[1], kl)


def _tv_sums(labels: np.ndarray, probs: np.ndarray, human: Any) -> Sums:
    shares = _checked(human, probs)
    return mean_of_rows(len(labels), probs.shape[1], lambda part: np.abs(shares[part] - probs[part]).sum(axis=1) / 2)


def _checked(human: Any, probs: np.ndarray) -> np.ndarray:
    shares = np.asarray(human, dtype=np.float64)
    if shares.shape != probs.shape:
        raise EbmcalError(f"human is {list(shares.shape)}, the probabilities are {list(probs.shape)}: both are [n, C].")
    return shares


#: Metrics that need the shares of human labels; shown where predictions have them.
HUMAN_METRICS: dict[str, Metric] = {
    "human_kl": Metric(human_kl, "KL from human labels", False, _kl_sums, bounds=(0.0, np.inf)),
    "human_tv": Metric(human_tv, "total variation from human labels", False, _tv_sums),
}
