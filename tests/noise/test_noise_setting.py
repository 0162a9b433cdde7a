"""The `noise` setting; streams: every draw depends on its number alone, and mixtures have their shares."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noise_models import make_texts

from ebmcal.errors import EbmcalError
from ebmcal.noise import MixtureStream, allot, format_noise, parse_noise
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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("splice", [("splice", "", 1)]),
        ("splice 1", [("splice", "", 1)]),
        ("infill:gpt2", [("infill", "gpt2", 1)]),
        ("unrelated:some/file.csv", [("unrelated", "some/file.csv", 1)]),
        ("splice 0.8, unrelated 0.2", [("splice", "", 0.8), ("unrelated", "", 0.2)]),
        ("unrelated 0.2,splice", [("unrelated", "", 0.2), ("splice", "", 0.8)]),
        (" splice ,  plain:small  .5 ,", [("splice", "", 0.5), ("plain", "small", 0.5)]),
        ("splice 0.5, unrelated, plain:a/b", [("splice", "", 0.5), ("unrelated", "", 0.25), ("plain", "a/b", 0.25)]),
        ("splice, unrelated, plain:x", [("splice", "", 1 / 3), ("unrelated", "", 1 / 3), ("plain", "x", 1 / 3)]),
        ("unrelated 0.5, unrelated:a b.csv 0.5", [("unrelated", "", 0.5), ("unrelated", "a b.csv", 0.5)]),
        ("infill:a, infill:b", [("infill", "a", 0.5), ("infill", "b", 0.5)]),
        ("infill:C:\\models\\lm", [("infill", "C:\\models\\lm", 1)]),
        ("mlm:roberta-base", [("mlm", "roberta-base", 1)]),
    ],
)
def test_sources_and_shares(text, parts):
    found = parse_noise(text)
    assert [(part.source, part.argument) for part in found] == [(source, of) for source, of, _ in parts]
    assert [part.share for part in found] == pytest.approx([share for *_, share in parts], abs=1e-8)
    assert sum(part.share for part in found) == pytest.approx(1)
    assert parse_noise(format_noise(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "noise names no source"),
        (" , ,", "noise names no source"),
        ("splice, unrelatd", "Unknown noise source 'unrelatd'. Did you mean 'unrelated'"),
        ("gpt2", "Unknown noise source 'gpt2'"),
        ("infill", "needs a language model, for example infill:gpt2"),
        ("infill: 0.5, splice", "needs a language model, for example infill:gpt2"),
        ("mlm", "needs a masked language model, for example mlm:roberta-base"),
        ("splice:middle", "splice takes no argument, got 'middle'"),
        ("splice 0", "a share above 0 and at most 1, got 'splice 0'"),
        ("splice -0.5", "a share above 0"),
        ("splice 1.5", "a share above 0"),
        ("splice nan", "a share above 0"),
        ("splice inf", "a share above 0"),
        ("splice .", "a share above 0"),
        ("splice 1.2.3, unrelated", "a share above 0"),
        ("splice half", "expected SOURCE or SOURCE:NAME"),
        ("splice 0.5", "must add up to 1"),
        ("splice 0.8, unrelated 0.3", "must add up to 1"),
        ("splice 0.8, unrelated 0.1", "must add up to 1"),
        ("splice 1, unrelated", "every source needs a share above 0"),
        ("splice, splice", "names a source twice"),
        ("infill:a 0.2, splice, infill:a 0.2", "names a source twice"),
        ("infill:lm 2", "a share above 0"),
    ],
)
def test_mistakes_in_the_setting(text, message):
    with pytest.raises(EbmcalError) as caught:
        parse_noise(text)
    assert message in str(caught.value)
