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
    counts = np.unique(class_of, return_counts=True)[1]
    groups = np.split(np.lexsort((_shuffled(distinct, seed), class_of)), np.cumsum(counts)[:-1])
    part = np.zeros(len(distinct), dtype=np.int8)
    used = np.zeros_like(counts)
    for p, share in enumerate(shares, start=1):
        sizes = _quotas(counts, round(share * len(distinct)), least=0, most=counts - 1 - used)
        for group, start, size in zip(groups, used, sizes, strict=True):
            part[group[start : start + size]] = p
        used += sizes
    return [np.flatnonzero(part[inverse] == p) for p in range(len(shares) + 1)]


def stratified_subset(
    keys: np.ndarray, labels: np.ndarray, size: int, seed: int, every_class: bool = True
) -> np.ndarray:
    """`size` row indices in file order whose label shares are those of all rows; `every_class` is kept.

    >>> len(stratified_subset(np.arange(100, dtype=np.uint64), np.arange(100) % 3, 10, seed=0))
    10
    """
    if size >= len(keys):
        return np.arange(len(keys))
    classes, counts = np.unique(labels, return_counts=True)
    if every_class and size < len(classes):
        raise EbmcalError(f"{size} rows cannot hold the {len(classes)} classes; allow at least {len(classes)}.")
    sizes = _quotas(counts, size, least=int(every_class), most=counts)
    order = np.lexsort((np.arange(len(keys)), _shuffled(keys, seed + 1), labels))
    groups = np.split(order, np.cumsum(counts)[:-1])
    return np.sort(np.concatenate([group[:n] for group, n in zip(groups, sizes, strict=True)]))


def _quotas(counts: np.ndarray, size: int, least: int, most: np.ndarray) -> np.ndarray:
    """Rows for each class that add up to `size` where the bounds allow it, by largest remainders."""
    exact = counts * size / counts.sum()
    quotas = np.clip(np.floor(exact).astype(np.int64), least, most)
    while quotas.sum() < size and (quotas < most).any():
        quotas[np.argmax(np.where(quotas < most, exact - quotas, -np.inf))] += 1
    while quotas.sum() > size and (quotas > least).any():
        quotas[np.argmax(np.where(quotas > least, quotas - exact, -np.inf))] -= 1
    return quotas


def _distinct(keys: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct keys, the position of each row among them, and one class for each: the lowest it came with."""
    order = np.argsort(keys, kind="stable")
    new = np.ones(len(keys), dtype=bool)
    new[1:] = keys[order[1:]] != keys[order[:-1]]
    inverse = np.empty(len(keys), dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    return keys[order[new]], inverse, np.minimum.reduceat(labels[order], np.flatnonzero(new))


def _shuffled(keys: np.ndarray, seed: int) -> np.ndarray:
    """splitmix64 of key and seed: a random-looking order that is the same on every machine."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
