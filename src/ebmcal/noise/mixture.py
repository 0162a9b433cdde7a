"""Streams of noise: what a training draws from. Texts written for each draw, texts of a store, or a mixture of both."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
from datasets import Dataset

from ebmcal.errors import EbmcalError
from ebmcal.noise.setting import parse_noise
from ebmcal.noise.splice import Splice
from ebmcal.noise.texts import NoiseSource, NoiseStream, NoiseText, ShuffledOrder, Texts
from ebmcal.noise.unrelated import RandomWords

#: Sources that need nothing but the training texts.
SOURCES_FROM_TEXTS: dict[str, type[NoiseSource]] = {"splice": Splice, "unrelated": RandomWords}


class OnlineStream:
    """A new text for every draw."""

    def __init__(self, name: str, source: NoiseSource, texts: Texts, seed: int) -> None:
        self.names: tuple[str, ...] = (name,)
        self.source, self.texts, self.seed = source, texts, seed

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]:
        rngs = [np.random.default_rng([self.seed, 19, n]) for n in numbers]
        return [NoiseText(text, pair, 0) for text, pair in self.source.write(self.texts, rngs)] if rngs else []


class StoredStream:
    """The texts of a table with columns text and text_pair in endless rounds; shuffled unless `seed` is None."""

    def __init__(self, name: str, table: pa.Table, seed: int | None) -> None:
        self.names: tuple[str, ...] = (name,)
        self.table = table.combine_chunks()
        self._order = None if seed is None else ShuffledOrder(len(table), seed + 1)

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]:
        rows = [n % len(self.table) if self._order is None else self._order[n] for n in numbers]
        texts = self.table.take(pa.array(rows, pa.int64())).to_pylist()
        return [NoiseText(row["text"], row["text_pair"], 0) for row in texts]


class MixtureStream:
    """Several streams of one source each, in proportion to their shares."""

    def __init__(self, streams: Sequence[NoiseStream], shares: Sequence[float]) -> None:
        self.streams, self.shares = streams, shares
        self.names = tuple(name for stream in streams for name in stream.names)

    def draw(self, numbers: Sequence[int]) -> list[NoiseText]:
        chosen = [allot(number, self.shares) for number in numbers]
        drawn: dict[int, NoiseText] = {}
        for source, stream in enumerate(self.streams):
            places = [i for i, (s, _) in enumerate(chosen) if s == source]
            texts = stream.draw([chosen[i][1] for i in places])
            drawn |= {i: replace(text, source=source) for i, text in zip(places, texts, strict=True)}
        return [drawn[i] for i in range(len(chosen))]


def mix(streams: Sequence[NoiseStream], shares: Sequence[float]) -> NoiseStream:
    """One stream for several; a single stream is returned as it is."""
    return streams[0] if len(streams) == 1 else MixtureStream(streams, shares)


def online_stream(noise: str, train: Dataset, seed: int) -> NoiseStream:
    """The stream of a `noise` setting for sources that are made from the texts alone: splice, unrelated, mixtures.

    >>> train = Dataset.from_dict({"text": ["one two three", "un deux trois"]})
    >>> online_stream("splice", train, seed=0).draw([0])[0].text in ("one two three", "un deux trois")
    False
    """
    parts = parse_noise(noise)
    others = [p.name for p in parts if p.source not in SOURCES_FROM_TEXTS or p.argument]
    if others:
        raise EbmcalError(
            f"{', '.join(others)}: only splice and unrelated are made from the texts alone. Generate noise of a "
            "language model first: ebmcal.generate_noise(texts, lm=…, count=…)."
        )
    if not len(train):
        raise EbmcalError("The training set is empty; noise is made from its texts.")
    texts = Texts(train)
    streams = [OnlineStream(p.name, SOURCES_FROM_TEXTS[p.source](), texts, seed) for p in parts]
    return mix(streams, [p.share for p in parts])


def allot(number: int, shares: Sequence[float]) -> tuple[int, int]:
    """The source that a draw falls to, and the number of the draw within that source.

    Of the first n draws every source has its share, to within one (two with more than three sources).

    >>> [allot(n, [0.75, 0.25]) for n in range(4)]
    [(0, 0), (0, 1), (1, 0), (0, 2)]
    """
    exact = [Fraction(share).limit_denominator(10_000) for share in shares]
    for source in range(len(exact) - 1):
        rate = exact[source] / sum(exact[source:])
        before, after = (int(n * rate + Fraction(1, 2)) for n in (number, number + 1))
        if after > before:
            return source, before
        number -= before
    return len(exact) - 1, number
