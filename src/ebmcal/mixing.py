"""A shuffled order that is computed place by place: no array of all n numbers, whatever n.

A Feistel network on the next power of four, walked until it lands below n (Black and Rogaway 2002, "Ciphers with
arbitrary finite domains"): a bijection of 0 … n-1 for each key. Its order need not be secret, only mixed.
"""

from collections.abc import Sequence

import numpy as np

ROUNDS = 6


def permute(places: np.ndarray, n: int, key: Sequence[int]) -> np.ndarray:
    """The numbers that stand at `places` of the order of 0 … n-1 that belongs to `key`.

    >>> sorted(permute(np.arange(5), 5, [1]).tolist())
    [0, 1, 2, 3, 4]
    """
    half = max(1, (int(n - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)
    numbers = _mix(np.asarray(places, dtype=np.uint64), half, keys)
    while (outside := numbers >= n).any():  # the network covers fewer than 4 n numbers: a few turns
        numbers[outside] = _mix(numbers[outside], half, keys)
    return numbers.astype(np.int64)


def _mix(numbers: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_scramble(right ^ key) & mask)
    return (left << shift) | right


def _scramble(z: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
