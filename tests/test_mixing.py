"""The order that is computed place by place: a bijection for every size, well mixed, another one for each key."""

import numpy as np
import pytest

from ebmcal.mixing import permute


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 1025, 4096, 70_001])
def test_every_number_comes_once(n):
    assert np.array_equal(np.sort(permute(np.arange(n), n, [3, n])), np.arange(n))


def test_a_part_is_that_part_of_the_whole():
    whole = permute(np.arange(1000), 1000, [1])
    assert np.array_equal(permute(np.arange(300, 400), 1000, [1]), whole[300:400])


def test_keys_give_orders_of_their_own():
    orders = [permute(np.arange(1000), 1000, key).tolist() for key in ([0, 1], [0, 2], [1, 1])]
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] == permute(np.arange(1000), 1000, [0, 1]).tolist()


@pytest.mark.parametrize("n", [6, 1000])
def test_numbers_are_mixed(n):
    """Over many keys each number stands at each place equally often (chi-square, 0.1% level)."""
    from scipy.stats import chisquare

    firsts = np.array([permute(np.array([0, n // 2]), n, [7, k]) for k in range(6000)]) * 6 // n
    for column in firsts.T:
        assert chisquare(np.bincount(column, minlength=6)).pvalue > 0.001
    neighbours = permute(np.arange(n), n, [5])
    assert np.abs(np.corrcoef(neighbours, np.arange(n))[0, 1]) < (1 if n < 10 else 0.1)


def test_a_hundred_million_cost_nothing():
    places = np.arange(10**8 - 128, 10**8)
    assert len(set(permute(places, 10**8, [1]).tolist())) == 128
