"""Streams: every draw depends on its number alone, and mixtures have their shares."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noise_models import make_texts

from ebmcal.noise import MixtureStream, allot
from ebmcal.noise.generation import StoredStream
from ebmcal.noise.sources import OnlineStream


class Numbers:
    """A source that writes its first random number."""

    def write(self, texts, rngs):
        return [(str(rng.integers(10**9)), None) for rng in rngs]


TABLE = pa.table({"text": [f"text {i}" for i in range(50)], "text_pair": pa.nulls(50, pa.string())})


def make_streams(seed=3):
    online = [OnlineStream(Numbers(), make_texts(), s) for s in (seed, seed + 1)]
    stored = StoredStream(TABLE, seed)
    return {
        "online": online[0],
        "stored": stored,
        "mixture": MixtureStream([online[0], stored, online[1]], [0.5, 0.3, 0.2]),
    }


@pytest.mark.parametrize("kind", ["online", "stored", "mixture"])
def test_a_draw_depends_on_its_number_alone(kind):
    together = make_streams()[kind].draw(range(120))
    one_by_one = make_streams()[kind]
    assert [one_by_one.draw([n])[0] for n in reversed(range(120))][::-1] == together
    some = [7, 3, 90, 3, 41]
    assert make_streams()[kind].draw(some) == [together[n] for n in some]
    assert make_streams(seed=4)[kind].draw(range(120)) != together
    assert make_streams()[kind].draw([]) == []


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_stored_texts_come_in_a_fixed_order(seed):
    """Shuffled by the training seed plus one, round by round: published results depend on it."""
    drawn = [int(text.split()[1]) for text, _ in StoredStream(TABLE, seed).draw(range(100))]
    orders = [np.random.default_rng([seed + 1, round_]).permutation(50).tolist() for round_ in (0, 1)]
    assert drawn == orders[0] + orders[1]
    unshuffled = StoredStream(TABLE, None).draw(range(60))
    assert [int(text.split()[1]) for text, _ in unshuffled] == [*range(50), *range(10)]


def test_a_mixture_consists_of_the_first_draws_of_its_streams():
    mixture = make_streams()["mixture"]
    drawn, sources = mixture.draw(range(300)), [allot(n, mixture.shares)[0] for n in range(300)]
    for source, stream in enumerate(mixture.streams):
        own = [text for text, s in zip(drawn, sources, strict=True) if s == source]
        assert own == stream.draw(range(len(own)))


@settings(max_examples=40)
@given(weights=st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_every_prefix_has_the_shares_and_no_draw_is_skipped(weights):
    shares, counts = [n / sum(weights) for n in weights], [0] * len(weights)
    tolerance = 1 + 1e-6 if len(shares) <= 3 else 2
    for number in range(150):
        source, nth = allot(number, shares)
        assert nth == counts[source]
        counts[source] += 1
        assert all(abs(c - (number + 1) * s) < tolerance for c, s in zip(counts, shares, strict=True)), number


@pytest.mark.parametrize("shares", [[1 / 3] * 3, [0.333333333] * 3, [0.5, 0.5], [0.8, 0.2], [1.0]])
def test_round_shares_are_exact_after_every_round(shares):
    size = int(1 / Fraction(min(shares)).limit_denominator(100))
    sources = [allot(n, shares)[0] for n in range(4 * size)]
    for stop in range(size, 5 * size, size):
        assert [sources[:stop].count(s) for s in range(len(shares))] == [round(share * stop) for share in shares]
