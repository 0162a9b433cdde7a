"""Validation of arrays from outside: labels, logits, probabilities; float64 from here on.

Every function of the evaluation half that takes `logits=` or `probs=` comes through here first, so that a bad
row is an `EbmcalError` that names it and never a number. What an array is, is declared and never guessed.
Work is done in chunks of rows that fit the processor's cache: one pass, and no temporary as large as the input.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError

# Rounding to bfloat16 moves each probability by at most 2⁻⁸ of itself (cutting off: 2⁻⁷), and so their sum.
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
    # By hand, for the figures of benchmarks/metrics.json on very many rows: scipy's goes over rows of a few classes one
    # by one and needs several arrays of the size of all logits.
    logits = as_logits(logits)
    out = np.empty(logits.shape, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):  # exp(-1e4) is 0 and that is right
        for part in chunks(*logits.shape):
            block = np.array(logits[part].T, dtype=np.float64, order="C")  # [C, rows]: reductions are fast along axis 0
            block -= block.max(axis=0)
            np.exp(block, out=block)
            block /= block.sum(axis=0)
            out[part] = block.T
    return out


def as_logits(logits: Any, name: str = "logits") -> np.ndarray:
    """Check logits [n, C]: a matrix of finite numbers with at least one row and one column; the dtype is kept.

    >>> as_logits([[1, 2], [3, 4]]).dtype
    dtype('int64')
    """
    array = _as_matrix(logits, name)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in chunks(*array.shape):
            block = array[part].astype(np.float64, copy=False)
            # NaN and infinity spoil the sum; a sum that merely overflowed passes the closer look.
            if not np.isfinite(block.sum()):
                _refuse_non_finite(block, name, part.start)
    return array


def as_probs(labels: Any = None, *, logits: Any = None, probs: Any = None) -> np.ndarray:
    """Check exactly one of logits [n, C] and probs [n, C] (and labels [n], if given): probabilities [n, C] in float64.

    Rows of `probs` must sum to one within 2⁻⁷ = 0.0078, which is what bfloat16 can do to a row;
    rows are not rescaled.

    >>> as_probs(logits=[[0.0, 0.0]])
    array([[0.5, 0.5]])
    """
    if (logits is None) == (probs is None):
        came = "neither" if logits is None else "both"
        raise EbmcalError(f"Give exactly one of logits= and probs=, each [n, C]; {came} came.")
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
    """Check integer labels [n] in 0..C-1, and −1 (unknown) where that is allowed; int64.

    >>> as_labels([0, 2], n_classes=3, n_rows=2)
    array([0, 2])
    """
    array = _as_array(labels, "labels")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise EbmcalError(f"labels must be integers [n]; {_described(array)} came. Map class names to 0..C-1 first.")
    if len(array) != n_rows:
        raise EbmcalError(
            f"labels has {len(array)} rows and the predictions have {n_rows}; both must be of the same rows."
        )
    lowest = -1 if unknown_allowed else 0
    array = array.astype(np.int64, copy=False)
    if not unknown_allowed and array.view(np.uint64).max() < n_classes:  # as unsigned, negatives are huge: one pass
        return array
    if array.min() < lowest or array.max() >= n_classes:
        row = int(np.flatnonzero((array < lowest) | (array >= n_classes))[0])
        advice = "Rows without a label cannot be judged: leave them out. " if array[row] < 0 else ""
        raise EbmcalError(
            f"labels[{row}] is {array[row]}, but with {n_classes} columns a label must be {lowest}..{n_classes - 1}. "
            f"{advice}Check that the columns are all the classes, in the order of the labels."
        )
    return array


def as_scores(scores: Any, name: str, n_rows: int | None = None) -> np.ndarray:
    """Check one finite number a row [n], such as energies or confidences; float64.

    >>> as_scores([1, 2], "energies")
    array([1., 2.])
    """
    array = _as_array(scores, name)
    if array.ndim != 1 or not len(array):
        raise EbmcalError(f"{name} must be numbers [n] with n ≥ 1; {_described(array)} came.")
    if n_rows is not None and len(array) != n_rows:
        raise EbmcalError(
            f"{name} has {len(array)} rows and the predictions have {n_rows}; both must be of the same rows."
        )
    array = _as_float64(array, name)
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise EbmcalError(f"{name}[{row}] is {array[row]}; every number must be finite. Mend or leave out that row.")
    return array


def _as_matrix(values: Any, name: str) -> np.ndarray:
    array = _as_array(values, name)
    if array.ndim != 2:
        hint = " For P(class 1) of a binary classifier give np.stack([1 - p, p], axis=1)." if array.ndim == 1 else ""
        raise EbmcalError(f"{name} must be [n, C], a row a text and a column a class; {_described(array)} came.{hint}")
    if 0 in array.shape:
        raise EbmcalError(f"{name} is {list(array.shape)}: at least one row and one class are needed.")
    return array if array.dtype.kind in "fiu" else _as_float64(array, name)


def _as_array(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values)
    # Tensors that numpy cannot hold (bfloat16, on a device, with gradients) and ragged lists.
    except (TypeError, ValueError, RuntimeError) as error:
        raise EbmcalError(
            f"{name} cannot be made an array: {error}. For a tensor: x.detach().float().cpu()."
        ) from error


def _as_float64(array: np.ndarray, name: str) -> np.ndarray:
    # bfloat16 and its kin (ml_dtypes) are of kind "V" and know how to become float64; bare bytes are too and do not.
    if array.dtype.kind in "fiu" or (array.dtype.kind == "V" and "float" in array.dtype.name):
        return array.astype(np.float64, copy=False)
    raise EbmcalError(f"{name} must hold numbers; {_described(array)} came.")


def _described(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _checked_probs(array: np.ndarray) -> np.ndarray:
    out = array.astype(np.float64, copy=False)
    ones = np.ones(out.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        for part in chunks(len(out), -(-out.shape[1] // 4)):  # the only temporary is a number a row
            block = out[part]
            sums = block @ ones  # NaN and infinity anywhere in a row end up here
            if not (block.min() >= 0.0 and sums.max() <= 1.0 + SUM_TOLERANCE and sums.min() >= 1.0 - SUM_TOLERANCE):
                _refuse_probs(block, part.start)
    return out


def _refuse_probs(block: np.ndarray, start: int) -> None:
    _refuse_non_finite(block, "probs", start)
    outside = np.argwhere((block < 0.0) | (block > 1.0 + SUM_TOLERANCE))
    if len(outside):
        row, column = outside[0]
        raise EbmcalError(
            f"probs[{start + row}, {column}] is {block[row, column]:.6g}, which is no probability. "
            "If these are logits, pass them as logits=."
        )
    sums = block.sum(axis=1)
    row = int(np.argmax(np.abs(sums - 1.0)))
    raise EbmcalError(
        f"probs[{start + row}] sums to {sums[row]:.6g}; every row must sum to one within {SUM_TOLERANCE:.4f} "
        "(what rounding to bfloat16 can do). Give every class as a column; rows that were rounded, to two decimals "
        "for example, are divided by their sums with normalize=True (--normalize of evaluate, calibrate, decide and "
        "watch)."
    )


def _refuse_non_finite(block: np.ndarray, name: str, start: int) -> None:
    bad = np.argwhere(~np.isfinite(block))
    if len(bad):
        row, column = bad[0]
        raise EbmcalError(
            f"{name}[{start + row}, {column}] is {block[row, column]}; every number must be finite. "
            "Mend or leave out that row."
        )
