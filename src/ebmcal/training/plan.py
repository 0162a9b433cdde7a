"""The training plan: which data text and which noise texts stand at each position of a whole training run.

Position p is a pure function of (seed, p). The run is one pass over the plan in order, so an interrupted run that
skips what it has done, and several processes that share the batches, see exactly the texts of one uninterrupted
process. What is drawn as noise is the business of a `NoiseSupply`; the plan only numbers the draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from ebmcal.config import ResolvedConfig
from ebmcal.models.tokens import TokenTable


class Shuffled:
    """Numbers 0 … n-1 in endless rounds, each round in an order of its own.

    >>> s = Shuffled(3, seed=0)
    >>> sorted(s[i] for i in range(3)), s.round(3)
    ([0, 1, 2], 1)
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self._round, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, position: int) -> int:
        round_, offset = divmod(position, self.n)
        if round_ != self._round:
            self._round = round_
            self._order = np.random.default_rng([self.seed, round_]).permutation(self.n)
        return int(self._order[offset])

    def round(self, position: int) -> int:
        return position // self.n


@dataclass(frozen=True)
class Step:
    """A data text, by its row in its token table, and its noise texts, by the numbers of their draws."""

    row: int
    noise: tuple[int, ...]


class TrainingPlan(Dataset):
    """Steps × batch positions; item p is a `Step`. Draws of noise are numbered 0, 1, … over the whole run.

    `noise_start` is the share of the run on cross-entropy alone; afterwards every `noise_every`-th batch has noise.
    """

    def __init__(
        self, *, n_rows: int, n_steps: int, batch_size: int, noise_ratio: int, seed: int,
        noise_start: float = 0.0, noise_every: int = 1,
    ) -> None:  # fmt: skip
        self.n_steps, self.batch_size, self.noise_ratio = n_steps, batch_size, noise_ratio
        self.first_noisy_step, self.noise_every = round(noise_start * n_steps), noise_every
        self._rows = Shuffled(n_rows, seed)

    def __len__(self) -> int:
        return self.n_steps * self.batch_size

    def __getitem__(self, position: int) -> Step:
        step = position // self.batch_size
        first = self._first_draw(position)
        noisy = self.noise_ratio and self.has_noise(step)
        return Step(self._rows[position], tuple(range(first, first + self.noise_ratio)) if noisy else ())

    def has_noise(self, step: int) -> bool:
        return step >= self.first_noisy_step and (step - self.first_noisy_step) % self.noise_every == 0

    @property
    def n_noise_draws(self) -> int:
        """Noise texts that the whole run draws, repeats included."""
        noisy = range(self.first_noisy_step, self.n_steps, self.noise_every)
        return len(noisy) * self.batch_size * self.noise_ratio

    def _first_draw(self, position: int) -> int:
        step, offset = divmod(position, self.batch_size)
        drawn = (step - self.first_noisy_step) // self.noise_every * self.batch_size + offset
        return drawn * self.noise_ratio


def plan_of(config: ResolvedConfig, n_rows: int, seed: int, *, with_noise: bool = True) -> TrainingPlan:
    """The plan of a training by a resolved config."""
    return TrainingPlan(
        n_rows=n_rows,
        n_steps=config.steps,
        batch_size=config.batch_size,
        noise_ratio=config.noise_ratio if with_noise else 0,
        seed=seed,
        noise_start=config.noise_start,
        noise_every=config.noise_every,
    )


#: Token ids and segment numbers of a text.
Tokens = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Draw:
    """A noise text: the number of its source, its tokens, and the rows it was made of with the share of the first."""

    source: int
    tokens: Any  # `Tokens` in a run; what its tokenizer gives in a script of somebody's own
    parts: tuple[int, int, float] | None = None


class NoiseSupply(Protocol):
    """Where a training takes its noise from.

    A draw is a pure function of its number, so that several processes and a resumed run see the same texts.
    """

    names: tuple[str, ...]

    def draw(self, numbers: Sequence[int]) -> list[Draw]: ...


class Collator:
    """Steps -> token arrays of data texts, then of noise texts, with labels (-1 - s for noise of source s).

    `mixed` [n, 3] has the labels of the two texts that a noise text was made of and the share of the first; -1 where
    there are none.
    """

    def __init__(self, data: TokenTable, labels: np.ndarray, noise: NoiseSupply | None = None) -> None:
        self.data, self.labels, self.noise = data, labels, noise

    def __call__(self, steps: list[Step]) -> dict[str, list[np.ndarray] | np.ndarray]:
        texts = [self.data[step.row] for step in steps]
        numbers = [number for step in steps for number in step.noise]
        noise = self.noise.draw(numbers) if self.noise is not None and numbers else []
        sources = np.array([-1 - draw.source for draw in noise], dtype=np.int64)
        labels = np.concatenate([self.labels[[s.row for s in steps]], sources]).astype(np.int64)
        mixed = np.full((len(labels), 3), -1.0, dtype=np.float32)
        for i, draw in enumerate(noise, start=len(texts)):
            if draw.parts is not None:
                first, other, share = draw.parts
                mixed[i] = self.labels[first], self.labels[other], share
        ids, types = zip(*texts, *(draw.tokens for draw in noise), strict=True)
        return {"ids": list(ids), "types": list(types), "labels": labels, "mixed": mixed}
