"""Validation of arrays from outside: labels, logits, probabilities; float64 from here on.

Every function of the evaluation half that takes `logits=` or `probs=` comes through here first, so that a bad
row is an `EbmcalError` that names it and never a number. What an array is, is declared and never guessed.
"""

import numpy as np

from ebmcal.errors import EbmcalError


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits along the last axis, stable, in float64.

    >>> softmax(np.array([[1000.0, 1000.0]]))
    array([[0.5, 0.5]])
    """
    return np.exp(log_softmax(logits))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of logits along the last axis, stable, in float64."""
    shifted = np.asarray(logits, dtype=np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def as_logits(logits: np.ndarray) -> np.ndarray:
    """Check logits [n, C] and return them as float64."""
    return np.asarray(logits, dtype=np.float64)


def as_labels(labels: np.ndarray, n_classes: int, n_rows: int, *, unknown_allowed: bool = False) -> np.ndarray:
    """Check integer labels [n] in 0..C-1 (−1 too if `unknown_allowed`) and return them as int64."""
    return np.asarray(labels).astype(np.int64)


def as_probs(
    labels: np.ndarray | None = None, *, logits: np.ndarray | None = None, probs: np.ndarray | None = None
) -> np.ndarray:
    """Check exactly one of logits [n, C] and probs [n, C], and labels [n] if given; return float64 probabilities."""
    if (logits is None) == (probs is None):
        raise EbmcalError("Give exactly one of logits= and probs=.")
    return softmax(logits) if probs is None else np.asarray(probs, dtype=np.float64)


def as_labels_and_probs(
    labels: np.ndarray, *, logits: np.ndarray | None = None, probs: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`as_probs` with labels that every row must have: (labels int64 [n], probs float64 [n, C])."""
    probs = as_probs(labels, logits=logits, probs=probs)
    return as_labels(labels, probs.shape[1], len(probs)), probs
