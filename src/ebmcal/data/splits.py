"""Seeded, stratified choices of rows that depend on the texts and the seed, not on the order of the file.

Each distinct text gets a pseudo-random position from its 64-bit key and the seed; a split takes the first positions of
each class. Rows with the same text stay together, so no text is in two parts of a split.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from ebmcal.data.columns import row_key
from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from datasets import Dataset


def halves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The published rule for GLUE: dev is cut in two by position, first half calibration, second half test.

    >>> [h.tolist() for h in halves(5)]
    [[0, 1], [2, 3, 4]]
    """
    return np.arange(n // 2), np.arange(n // 2, n)


def stratified_split(keys: np.ndarray, labels: np.ndarray, shares: tuple[float, ...], seed: int) -> list[np.ndarray]:
    """Row indices of the remainder and of one part per share, each in ascending order, stratified by label.

    keys [n] uint64, labels [n] int64. Every class keeps at least one text in the remainder.

    >>> keys, labels = np.arange(100, dtype=np.uint64), np.arange(100) % 2
    >>> [len(part) for part in stratified_split(keys, labels, (0.1, 0.1), seed=0)]
    [80, 10, 10]
    """
    distinct, inverse, class_of = _distinct(keys, labels)
    counts = np.unique(class_of, return_counts=True)[1]
    groups = np.split(np.lexsort((_positions(distinct, seed), class_of)), np.cumsum(counts)[:-1])
    part = np.zeros(len(distinct), dtype=np.int8)
    used = np.zeros_like(counts)
    for p, share in enumerate(shares, start=1):
        sizes = _quotas(counts, round(share * len(distinct)), least=0, most=counts - 1 - used)
        for group, start, size in zip(groups, used, sizes, strict=True):
            part[group[start : start + size]] = p
        used += sizes
    return [np.flatnonzero(part[inverse] == p) for p in range(len(shares) + 1)]


def stratified_folds(keys: np.ndarray, labels: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """[n] the fold, 0 to n_folds - 1, of each row. Folds differ by at most one distinct text, also within a class.

    keys [n] uint64, labels [n] int64. Rows with equal keys are in the same fold. A class with fewer distinct texts
    than folds is missing in some of them; a class with one distinct text is never in the training part of its fold.

    >>> folds = stratified_folds(np.arange(10, dtype=np.uint64), np.arange(10) % 2, 5, seed=0)
    >>> np.bincount(folds).tolist()
    [2, 2, 2, 2, 2]
    """
    distinct, inverse, class_of = _distinct(keys, labels)
    if not 2 <= n_folds <= len(distinct):
        raise EbmcalError(
            f"n_folds is {n_folds}; expected 2 to {len(distinct):,}, the number of distinct texts. Use fewer folds or "
            "pass a calibration file."
        )
    fold = np.empty(len(distinct), dtype=np.int64)
    fold[np.lexsort((_positions(distinct, seed + 2), class_of))] = np.arange(len(distinct)) % n_folds
    return fold[inverse]


def stratified_subset(
    keys: np.ndarray, labels: np.ndarray, size: int, seed: int, every_class: bool = True
) -> np.ndarray:
    """`size` row indices in ascending order with the label shares of all rows, with `every_class` if requested.

    >>> len(stratified_subset(np.arange(100, dtype=np.uint64), np.arange(100) % 3, 10, seed=0))
    10
    """
    if size >= len(keys):
        return np.arange(len(keys))
    classes, counts = np.unique(labels, return_counts=True)
    if every_class and size < len(classes):
        raise EbmcalError(f"{size} rows are too few for {len(classes)} classes. Allow at least {len(classes)}.")
    sizes = _quotas(counts, size, least=int(every_class), most=counts)
    order = np.lexsort((np.arange(len(keys)), _positions(keys, seed + 1), labels))
    groups = np.split(order, np.cumsum(counts)[:-1])
    return np.sort(np.concatenate([group[:n] for group, n in zip(groups, sizes, strict=True)]))


def _quotas(counts: np.ndarray, size: int, least: int, most: np.ndarray) -> np.ndarray:
    """Rows per class that add up to `size` where the bounds allow it, by largest remainders."""
    exact = counts * size / counts.sum()
    quotas = np.clip(np.floor(exact).astype(np.int64), least, most)
    while quotas.sum() < size and (quotas < most).any():
        quotas[np.argmax(np.where(quotas < most, exact - quotas, -np.inf))] += 1
    while quotas.sum() > size and (quotas > least).any():
        quotas[np.argmax(np.where(quotas > least, quotas - exact, -np.inf))] -= 1
    return quotas


def _distinct(keys: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct keys, the index of each row among them, and one class for each: the lowest of its rows."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    class_of = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(class_of, inverse, labels)
    return distinct, inverse, class_of


def _positions(keys: np.ndarray, seed: int) -> np.ndarray:
    """splitmix64 of key and seed: a pseudo-random order that is the same on every machine."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def text_keys(dataset: "Dataset") -> np.ndarray:
    """[n] uint64: a stable key of the texts of each row; rows with equal texts have equal keys."""
    return _keys_and_labels(dataset)[0]


def dataset_fingerprint(dataset: "Dataset") -> str:
    """16 hex digits of the texts and labels in order, independent of ids and of where they are stored."""
    return content_fingerprint("text_pair" in dataset.column_names, *_keys_and_labels(dataset))


def _keys_and_labels(dataset: "Dataset") -> tuple[np.ndarray, np.ndarray]:
    """[n] uint64 text keys and [n] int64 labels (-1 without a label column), in one pass with bounded memory."""
    names = [name for name in ("text", "text_pair") if name in dataset.column_names]
    has_labels = "label" in dataset.column_names
    keys, labels = np.empty(len(dataset), np.uint64), np.full(len(dataset), -1, np.int64)
    start = 0
    for batch in dataset.select_columns([*names, *["label"][:has_labels]]).with_format("arrow").iter(batch_size=4096):
        rows = slice(start, start + batch.num_rows)
        keys[rows] = list(map(row_key, *(batch[name].to_pylist() for name in names)))
        if has_labels:
            labels[rows] = batch["label"].to_numpy()
        start += batch.num_rows
    return keys, labels


def content_fingerprint(is_pair: bool, keys: np.ndarray, labels: np.ndarray) -> str:
    """`dataset_fingerprint` from the text keys [n] and the labels [n]."""
    digest = hashlib.sha256(f"{is_pair} {len(keys)}".encode())
    for start in range(0, len(keys), 65536):
        digest.update(keys[start : start + 65536].astype("<u8").tobytes())
        digest.update(labels[start : start + 65536].astype("<i8").tobytes())
    return digest.hexdigest()[:16]
