"""Arrays inside the calibrators: logits laid out `[C, n]`, one contiguous line per class, and one-vs-rest log-odds.

With two or three classes a reduction over classes is then a few vector additions, several times faster than over rows
of three. Log-probabilities serve as logits: every calibrator is invariant to a shift of a row.
"""

from collections.abc import Iterator

import numpy as np

from ebmcal.predictions import Predictions

# A smaller probability read from a file is taken to be rounded to zero; its logarithm has to stay finite.
PROB_FLOOR = 1e-12
# A class this far behind has probability 0 at every temperature; a larger gap would only lose digits of the others.
MAX_GAP = 1e6


def logits_of(probs: np.ndarray, floor: float = PROB_FLOOR) -> np.ndarray:
    """Log-probabilities `[n, C]`, which serve as logits: softmax returns the probabilities.

    >>> logits_of(np.array([[1.0, 0.0]])).round(2).tolist()
    [[0.0, -27.63]]
    """
    return np.log(np.maximum(np.asarray(probs, dtype=np.float64), floor))


def logits_in(predictions: Predictions) -> np.ndarray:
    """The logits `[n, C]` of predictions, or their log-probabilities if they have only probabilities."""
    return logits_of(predictions.probs) if predictions.logits is None else predictions.logits


def class_lines(logits: np.ndarray) -> np.ndarray:
    """`[n, C]` logits as contiguous `[C, n]`, each row shifted so that its largest is 0.

    >>> class_lines(np.array([[3.0, 1.0], [0.0, 5.0]])).tolist()
    [[0.0, -5.0], [-2.0, 0.0]]
    """
    z = np.array(logits.T, dtype=np.float64, order="C")
    with np.errstate(over="ignore"):  # 1e308 - -1e308: the limit below makes it finite again
        z -= z.max(axis=0)
    return np.maximum(z, -MAX_GAP, out=z)


def blocks(z: np.ndarray, n_values: int = 1 << 14) -> Iterator[np.ndarray]:
    """Views of `[C, n]` of some columns each, small enough for their temporaries to stay in the processor's cache."""
    width = max(1, n_values // len(z))
    for start in range(0, z.shape[1], width):
        yield z[:, start : start + width]


def log_odds(logits: np.ndarray) -> np.ndarray:
    """One-vs-rest log-odds log p/(1-p) of each class, `[C, n]`, finite however saturated the row is.

    >>> log_odds(np.array([[2.0, 0.0], [-900.0, 900.0]])).tolist()
    [[2.0, -1800.0], [-2.0, 1800.0]]
    """
    from scipy.special import logsumexp

    z = class_lines(logits)
    for block in blocks(z):  # all classes from one exponential each (benchmarks/calibrators.py, scaling-binning)
        is_below = block < 0
        e = np.exp(block) * is_below
        below, n_top = e.sum(axis=0), len(z) - is_below.sum(axis=0)
        # Nothing cancels: where a class is not the largest, the sum over the others contains exp(0) = 1.
        rest = np.where(is_below, below + n_top - e, below + (n_top - 1))
        lost = rest.min(axis=0) < 1e-290  # even exp of the second largest underflows
        log_rest = np.log(np.maximum(rest, 1e-290))
        if lost.any():
            others = np.where(is_below[:, lost], block[:, lost], -np.inf)
            log_rest[:, lost] = np.where(is_below[:, lost], 0.0, logsumexp(others, axis=0))
        block -= log_rest
    return z
