"""Seeded, stratified choices of rows that depend on the texts and the seed, not on the order of the file.

Each distinct text gets a pseudo-random place from (its 64-bit key, seed); a split takes the first places of each
class. Rows with the same text stay together, so a split made here never has a text in two of its parts.
"""

import numpy as np

from ebmcal.errors import EbmcalError


def halves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The published rule for GLUE: dev cut in two by position, first half calibration, last half test.

    >>> [h.tolist() for h in halves(5)]
    [[0, 1], [2, 3, 4]]
    """
    return np.arange(n // 2), np.arange(n // 2, n)


def stratified_split(keys: np.ndarray, labels: np.ndarray, shares: tuple[float, ...], seed: int) -> list[np.ndarray]:
    """Row indices of the remainder and of one part for each share, in file order, stratified by label.

    keys [n] uint64, labels [n] int64. Every class keeps at least one text in the remainder.

    >>> keys, labels = np.arange(100, dtype=np.uint64), np.arange(100) % 2
    >>> [len(part) for part in stratified_split(keys, labels, (0.1, 0.1), seed=0)]
    [80, 10, 10]
    """
    distinct, inverse, class_of = _distinct(keys, labels)
    part = np.zeros(len(distinct), dtype=np.int8)
    order = np.lexsort((_shuffled(distinct, seed), class_of))
    for group in np.split(order, np.flatnonzero(np.diff(class_of[order])) + 1):
        start = 0
        for p, share in enumerate(shares, start=1):
            size = min(round(share * len(group)), len(group) - 1 - start)
            part[group[start : start + size]] = p
            start += size
    return [np.flatnonzero(part[inverse] == p) for p in range(len(shares) + 1)]


def stratified_subset(keys: np.ndarray, labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """`size` row indices in file order whose label shares are those of all rows; every class is kept.

    >>> len(stratified_subset(np.arange(100, dtype=np.uint64), np.arange(100) % 3, 10, seed=0))
    10
    """
    if size >= len(keys):
        return np.arange(len(keys))
    classes, counts = np.unique(labels, return_counts=True)
    if size < len(classes):
        raise EbmcalError(f"{size} rows cannot hold the {len(classes)} classes; allow at least {len(classes)}.")
    sizes = _quotas(counts, size)
    order = np.lexsort((np.arange(len(keys)), _shuffled(keys, seed + 1), labels))
    groups = np.split(order, np.cumsum(counts)[:-1])
    return np.sort(np.concatenate([group[:n] for group, n in zip(groups, sizes, strict=True)]))


def _quotas(counts: np.ndarray, size: int) -> np.ndarray:
    """Largest remainders, with at least one for every class."""
    exact = counts * size / counts.sum()
    quotas = np.maximum(np.floor(exact), 1).astype(np.int64)
    while quotas.sum() > size:  # the ones given away above are taken from the largest class
        quotas[np.argmax(quotas)] -= 1
    for c in np.argsort(-(exact - quotas), kind="stable")[: size - quotas.sum()]:
        quotas[c] += 1
    return quotas


def _distinct(keys: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct keys, the position of each row among them, and one class for each: the lowest it came with."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    class_of = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(class_of, inverse, labels)
    return distinct, inverse, class_of


def _shuffled(keys: np.ndarray, seed: int) -> np.ndarray:
    """splitmix64 of key and seed: a random-looking order that is the same on every machine."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
