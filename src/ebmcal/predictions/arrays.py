"""Validation of arrays from outside: labels, logits, probabilities; float64 from here on.

Every function of the evaluation half that takes `logits=` or `probs=` calls these first, so that a bad row is an
`EbmcalError` that names it. Whether an array holds logits or probabilities is declared, never guessed.
Large arrays are processed in chunks of rows that fit the processor's cache: one pass, no temporary of the input's size.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError

# Rounding to bfloat16 moves each probability by at most 2⁻⁸ of itself (truncating: 2⁻⁷), and so their sum.
SUM_TOLERANCE = 2.0**-7
# 120 KB of float64: in cache, and below the 128 KB from which malloc maps fresh pages for every temporary.
CHUNK_ENTRIES = 15 * 1024


def chunks(n_rows: int, n_classes: int) -> Iterator[slice]:
    """Slices of rows that hold about `CHUNK_ENTRIES` numbers each.

    >>> list(chunks(5, CHUNK_ENTRIES // 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, CHUNK_ENTRIES // max(1, n_classes))
    return (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def softmax(logits: Any) -> np.ndarray:
    """Probabilities of logits [n, C], stable, in float64.

    >>> softmax([[1000.0, 1000.0]])
    array([[0.5, 0.5]])
    """
    # Hand-written because scipy's softmax is several times slower for few classes and many rows (benchmarks/metrics.py)
    # and allocates several arrays of the size of the input.
    logits = as_logits(logits)
    out = np.empty(logits.shape, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):  # exp(-1e4) is 0, as it should be
        for part in chunks(*logits.shape):
            block = np.array(logits[part].T, dtype=np.float64, order="C")  # [C, rows]: reductions are fast along axis 0
            block -= block.max(axis=0)
            np.exp(block, out=block)
            block /= block.sum(axis=0)
            out[part] = block.T
    return out


def as_logits(logits: Any, name: str = "logits") -> np.ndarray:
    """Validate logits [n, C]: a matrix of finite numbers with at least one row and one column; the dtype is kept.

    >>> as_logits([[1, 2], [3, 4]]).dtype
    dtype('int64')
    """
    array = _as_matrix(logits, name)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in chunks(*array.shape):
            block = array[part].astype(np.float64, copy=False)
            # NaN and infinity spoil the sum; a sum that merely overflowed passes the closer look.
            if not np.isfinite(block.sum()):
                _raise_if_not_finite(block, name, part.start)
    return array


def as_probs(labels: Any = None, *, logits: Any = None, probs: Any = None) -> np.ndarray:
    """Validate exactly one of logits [n, C] and probs [n, C] (and labels [n], if given); probabilities [n, C], float64.

    Rows of `probs` must sum to one within 2⁻⁷ = 0.0078, the largest error of rounding to bfloat16; they are not
    rescaled.

    >>> as_probs(logits=[[0.0, 0.0]])
    array([[0.5, 0.5]])
    """
    if (logits is None) == (probs is None):
        given = "neither" if logits is None else "both"
        raise EbmcalError(f"Pass exactly one of logits= and probs=, each of shape (n, C); got {given}.")
    out = softmax(logits) if probs is None else _checked_probs(_as_matrix(probs, "probs"))
    if labels is not None:
        as_labels(labels, out.shape[1], len(out))
    return out


def as_labels_and_probs(labels: Any, *, logits: Any = None, probs: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """`as_probs` for functions that need a label on every row: (labels int64 [n], probs float64 [n, C]).

    >>> as_labels_and_probs([1], probs=[[0.25, 0.75]])
    (array([1]), array([[0.25, 0.75]]))
    """
    out = as_probs(logits=logits, probs=probs)
    return as_labels(labels, out.shape[1], len(out)), out


def as_labels(labels: Any, n_classes: int, n_rows: int, *, unknown_allowed: bool = False) -> np.ndarray:
    """Validate integer labels [n] in 0..C-1, and −1 (unknown) where that is allowed; int64.

    >>> as_labels([0, 2], n_classes=3, n_rows=2)
    array([0, 2])
    """
    array = as_array(labels, "labels")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        got = f"{array.dtype} of shape {array.shape}"
        raise EbmcalError(f"labels: expected integers of shape (n,), got {got}. Map class names to 0..C-1.")
    _check_length(array, "labels", n_rows)
    lowest = -1 if unknown_allowed else 0
    array = array.astype(np.int64, copy=False)
    if not unknown_allowed and array.view(np.uint64).max() < n_classes:  # as unsigned, negatives are huge: one pass
        return array
    if array.min() < lowest or array.max() >= n_classes:
        row = int(np.flatnonzero((array < lowest) | (array >= n_classes))[0])
        advice = "Leave out rows without a label. " if array[row] < 0 else ""
        raise EbmcalError(
            f"labels[{row}] is {array[row]}; with {n_classes} columns a label must be {lowest}..{n_classes - 1}. "
            f"{advice}Check that the columns are all the classes, in the order of the labels."
        )
    return array


def as_scores(scores: Any, name: str, n_rows: int | None = None) -> np.ndarray:
    """Validate one finite number per row [n], such as energies or confidences; float64.

    >>> as_scores([1, 2], "energies")
    array([1., 2.])
    """
    array = as_array(scores, name)
    if array.ndim != 1 or not len(array):
        raise EbmcalError(
            f"{name}: expected numbers of shape (n,) with n ≥ 1, got {array.dtype} of shape {array.shape}."
        )
    if n_rows is not None:
        _check_length(array, name, n_rows)
    array = _as_float64(array, name)
    _raise_if_not_finite(array, name)
    return array


def normalized(probs: np.ndarray) -> np.ndarray:
    """Rounded probabilities [n, C] divided by the sums of their rows; an error if rounding cannot explain the sums.

    >>> normalized(np.array([[0.33, 0.33, 0.33]])).round(3)
    array([[0.333, 0.333, 0.333]])
    """
    sums = np.asarray(probs, dtype=np.float64).sum(axis=1)
    # Rounded to two decimals, each class is off by 0.005 at most; with very many classes half of a row may be lost.
    largest = min(0.5, 0.01 * probs.shape[1])
    bad = np.flatnonzero(~(np.abs(sums - 1) <= largest))
    if len(bad):
        raise EbmcalError(
            f"probs[{bad[0]}] sums to {sums[bad[0]]:.6g}; rounding moves the sum of {probs.shape[1]} classes by "
            f"at most {largest:.2g}. Is a class missing, or are these logits (columns logit_<class>)?"
        )
    return probs / sums[:, None]


def _check_length(array: np.ndarray, name: str, n_rows: int) -> None:
    if len(array) != n_rows:
        raise EbmcalError(f"{name} has {len(array)} rows, the predictions have {n_rows}. Expected the same rows.")


def _as_matrix(values: Any, name: str) -> np.ndarray:
    array = as_array(values, name)
    if array.ndim != 2:
        hint = " For P(class 1) of a binary classifier pass np.stack([1 - p, p], axis=1)." if array.ndim == 1 else ""
        raise EbmcalError(
            f"{name}: expected shape (n_rows, n_classes), got {array.dtype} of shape {array.shape}.{hint}"
        )
    if 0 in array.shape:
        raise EbmcalError(f"{name}: expected at least one row and one class, got shape {array.shape}.")
    return array if array.dtype.kind in "fiu" else _as_float64(array, name)


def as_array(values: Any, name: str) -> np.ndarray:
    """`np.asarray` with an error that names the values."""
    try:
        return np.asarray(values)
    # Tensors that numpy cannot hold (bfloat16, on a device, with gradients) and ragged lists.
    except (TypeError, ValueError, RuntimeError) as error:
        raise EbmcalError(
            f"{name} cannot be converted to an array: {error}. Tensor: x.detach().float().cpu()."
        ) from error


def _as_float64(array: np.ndarray, name: str) -> np.ndarray:
    # bfloat16 and its kin (ml_dtypes) are of kind "V" and convert to float64; raw bytes are too and do not.
    if array.dtype.kind in "fiu" or (array.dtype.kind == "V" and "float" in array.dtype.name):
        return array.astype(np.float64, copy=False)
    raise EbmcalError(f"{name}: expected numbers, got {array.dtype} of shape {array.shape}.")


def _checked_probs(array: np.ndarray) -> np.ndarray:
    out = array.astype(np.float64, copy=False)
    ones = np.ones(out.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        for part in chunks(len(out), -(-out.shape[1] // 4)):  # the only temporary is one number per row
            block = out[part]
            sums = block @ ones  # NaN and infinity anywhere in a row end up here
            if not (block.min() >= 0.0 and sums.max() <= 1.0 + SUM_TOLERANCE and sums.min() >= 1.0 - SUM_TOLERANCE):
                _raise_bad_probs(block, part.start)
    return out


def _raise_bad_probs(block: np.ndarray, start: int) -> None:
    _raise_if_not_finite(block, "probs", start)
    outside = np.argwhere((block < 0.0) | (block > 1.0 + SUM_TOLERANCE))
    if len(outside):
        row, column = outside[0]
        raise EbmcalError(
            f"probs[{start + row}, {column}] is {block[row, column]:.6g}, which is not a probability. "
            "If these are logits, pass them as logits= (in a file: columns logit_<class>)."
        )
    sums = block.sum(axis=1)
    row = int(np.argmax(np.abs(sums - 1.0)))
    raise EbmcalError(
        f"probs[{start + row}] sums to {sums[row]:.6g}; every row must sum to one within {SUM_TOLERANCE:.4f}. "
        "Include a column for every class. If the probabilities were rounded, pass normalize=True (--normalize)."
    )


def _raise_if_not_finite(block: np.ndarray, name: str, start: int = 0) -> None:
    bad = np.argwhere(~np.isfinite(block))
    if len(bad):
        place = ", ".join(map(str, [start + bad[0][0], *bad[0][1:]]))
        value = block[tuple(bad[0])]
        raise EbmcalError(f"{name}[{place}] is {value}; every number must be finite. Fix or remove that row.")
