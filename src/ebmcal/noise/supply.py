"""What a training draws its noise from: texts written for each draw, texts of a store, or a mixture of both.

A draw is a pure function of (seed, number), so an interrupted training goes on to the bit and several processes share
the draws without asking each other. The other side of `training.plan`, which numbers the draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.models.tokens import TokenTable
from ebmcal.noise.sources import FROM_TEXTS, OnlineSource, Row, TextRows, Written, check_labels
from ebmcal.noise_setting import parse_noise
from ebmcal.training.plan import Draw, NoiseSupply, Shuffled

#: Texts -> what their draws have as tokens.
Encode = Callable[[Sequence[Row]], list[Any]]


class Fresh:
    """A text of an online source for each draw: never used up, nothing kept."""

    def __init__(self, name: str, source: OnlineSource, texts: TextRows, encode: Encode, seed: int) -> None:
        self.names: tuple[str, ...] = (name,)
        self.source, self.texts, self.encode, self.seed = source, texts, encode, seed

    def write(self, numbers: Sequence[int]) -> list[Written]:
        """The texts of these draws."""
        return self.source.write_all(self.texts, [np.random.default_rng([self.seed, 19, n]) for n in numbers])

    def draw(self, numbers: Sequence[int]) -> list[Draw]:
        written = self.write(numbers)
        encoded = self.encode([text.row for text in written])
        return [Draw(0, tokens, text.parts) for text, tokens in zip(written, encoded, strict=True)]


class Stored:
    """The texts of a store in endless rounds: none is used twice before all have been used once."""

    def __init__(self, name: str, table: TokenTable, seed: int) -> None:
        self.names: tuple[str, ...] = (name,)
        self.table, self._order = table, Shuffled(len(table), seed + 1)

    def draw(self, numbers: Sequence[int]) -> list[Draw]:
        return [Draw(0, self.table[self._order[n]]) for n in numbers]


class Mixture:
    """Several supplies, each in proportion to its share."""

    def __init__(self, supplies: Sequence[NoiseSupply], shares: Sequence[float]) -> None:
        self.supplies, self.shares = supplies, shares
        self.names = tuple(name for supply in supplies for name in supply.names)

    def draw(self, numbers: Sequence[int]) -> list[Draw]:
        chosen = [allot(number, self.shares) for number in numbers]
        found: dict[int, Draw] = {}
        for source, supply in enumerate(self.supplies):
            places = [i for i, (which, _) in enumerate(chosen) if which == source]
            drawn = supply.draw([chosen[i][1] for i in places]) if places else []
            found |= {i: replace(draw, source=source) for i, draw in zip(places, drawn, strict=True)}
        return [found[i] for i in range(len(numbers))]


def fresh_supply(noise: str, texts: TextRows, encode: Encode, seed: int) -> NoiseSupply:
    """The sources of a `noise` setting that need nothing but the texts: splice, far, and both in their shares."""
    parts = parse_noise(noise)
    others = [p.name for p in parts if p.source not in FROM_TEXTS or (p.source == "far" and p.of)]
    if others:
        raise EbmcalError(
            f"{', '.join(others)}: only splice and far are made from the texts alone. Noise of a language model is "
            "written first: ebmcal.write_noise(texts, lm=…, count=…)."
        )
    for part in parts:
        check_labels(part.of, texts.labels)
    sources = [FROM_TEXTS[part.source](part.of) for part in parts]
    supplies: list[NoiseSupply] = [
        Fresh(p.name, source, texts, encode, seed) for p, source in zip(parts, sources, strict=True)
    ]
    return supplies[0] if len(supplies) == 1 else Mixture(supplies, [part.share for part in parts])


def allot(number: int, shares: Sequence[float]) -> tuple[int, int]:
    """Which of several sources a draw falls to, and the how-manieth of that source it is.

    The first n draws hold each source in its share, to within one (of more than three sources, two): the draws of a
    source are spread evenly.

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
