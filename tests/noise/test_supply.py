"""What a training draws its noise from: every draw by its number alone, and mixtures in their shares."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmcal.models.tokens import TokenTable
from ebmcal.noise.sources import OneByOne, Written
from ebmcal.noise.supply import Fresh, Mixture, Stored, allot
from ebmcal.training.plan import Shuffled


class Numbers(OneByOne):
    """A source that writes its first random number."""

    def write(self, texts, rng):
        number = int(rng.integers(10**6))
        return Written((f"{texts} {number}", None), (number, 0, 0.5))


def encode(rows):
    """Each text as its characters; the same whatever else is encoded with it."""
    return [(np.array([ord(c) for c in text]), np.zeros(len(text), dtype=np.uint8)) for text, _ in rows]


def make_table(n):
    ids = np.arange(n, dtype=np.int32)
    return TokenTable(ids, np.zeros(n, dtype=np.uint8), np.arange(n + 1), 0)


def make_supplies(seed=3):
    fresh = [Fresh(name, Numbers(), name, encode, seed) for name in ("splice", "far")]
    return {
        "fresh": fresh[0],
        "stored": Stored("infill", make_table(50), seed),
        "mixture": Mixture([fresh[0], Stored("infill", make_table(50), seed), fresh[1]], [0.5, 0.3, 0.2]),
    }


def plain(draws):
    return [(d.source, d.tokens[0].tolist(), d.tokens[1].tolist(), d.parts) for d in draws]


@pytest.mark.parametrize("kind", ["fresh", "stored", "mixture"])
def test_a_draw_depends_on_its_number_alone(kind):
    """Whatever is drawn with it, before it or by another process."""
    together = plain(make_supplies()[kind].draw(range(120)))
    one_by_one = make_supplies()[kind]
    assert [plain(one_by_one.draw([n]))[0] for n in reversed(range(120))][::-1] == together
    some = [7, 3, 90, 3, 41]
    assert plain(make_supplies()[kind].draw(some)) == [together[n] for n in some]
    assert plain(make_supplies(seed=4)[kind].draw(range(120))) != together


@pytest.mark.parametrize("kind", ["fresh", "stored", "mixture"])
def test_nothing_drawn(kind):
    assert make_supplies()[kind].draw([]) == []


def test_fresh_texts_are_never_used_up():
    drawn = plain(make_supplies()["fresh"].draw(range(400)))
    assert len({tuple(ids) for _, ids, _, _ in drawn}) == 400
    assert all(parts == (int("".join(map(chr, ids)).split()[1]), 0, 0.5) for _, ids, _, parts in drawn)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_stored_texts_come_in_the_order_of_earlier_versions(seed):
    """Shuffled by the seed of the training plus one, round after round: results of stored noise must not move."""
    order = Shuffled(50, seed + 1)
    drawn = Stored("infill", make_table(50), seed).draw(range(130))
    assert [int(d.tokens[0][0]) for d in drawn] == [order[n] for n in range(130)]
    permutation = np.random.default_rng([seed + 1, 0]).permutation(50)
    assert [int(d.tokens[0][0]) for d in drawn[:50]] == permutation.tolist()
    assert all(d.parts is None and d.source == 0 for d in drawn)


def test_a_mixture_is_its_parts():
    """The draws of each source, taken out of the mixture, are the first draws of that source by itself."""
    mixture = make_supplies()["mixture"]
    assert mixture.names == ("splice", "infill", "far")
    drawn = mixture.draw(range(300))
    for source, supply in enumerate(mixture.supplies):
        own = [(0, *rest) for which, *rest in plain(drawn) if which == source]
        assert own == plain(supply.draw(range(len(own))))


shares_of = st.lists(st.integers(1, 100), min_size=1, max_size=3).map(lambda w: [n / sum(w) for n in w])


@settings(max_examples=40, deadline=None)
@given(shares=shares_of)
def test_every_prefix_holds_the_shares_and_no_draw_is_left_out(shares):
    counts = [0] * len(shares)
    for number in range(150):
        source, nth = allot(number, shares)
        assert nth == counts[source]  # without holes and without repeats
        counts[source] += 1
        for count, share in zip(counts, shares, strict=True):
            assert abs(count - (number + 1) * share) < 1 + 1e-6, (number, counts)


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.integers(1, 100), min_size=4, max_size=6))
def test_of_many_sources_every_prefix_holds_the_shares_to_within_two(weights):
    shares, counts = [n / sum(weights) for n in weights], [0] * len(weights)
    for number in range(150):
        source, nth = allot(number, shares)
        assert nth == counts[source]
        counts[source] += 1
        assert all(abs(c - (number + 1) * s) < 2 for c, s in zip(counts, shares, strict=True))


@pytest.mark.parametrize("shares", [[1 / 3] * 3, [0.333333333] * 3, [0.5, 0.5], [0.8, 0.2], [1.0]])
def test_round_shares_are_exact_after_every_round(shares):
    round_ = int(1 / Fraction(min(shares)).limit_denominator(100))
    found = [allot(n, shares)[0] for n in range(4 * round_)]
    for start in range(0, len(found), round_):
        counts = [found[: start + round_].count(source) for source in range(len(shares))]
        assert counts == [round(share * (start + round_)) for share in shares]
