"""The training plan: which data text and which noise texts stand at each position of a whole training run.

Position p is a pure function of (seed, p). The run is one pass over the plan in order, so an interrupted run that
skips what it has done, and several processes that share the batches, see exactly the texts of one uninterrupted
process, and no noise text is used twice before all have been used once.
"""

from dataclasses import dataclass

import numpy as np
from torch.utils.data import Dataset

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
    """A data text with its noise texts, as positions in their token tables."""

    row: int
    noise: tuple[int, ...]


class TrainingPlan(Dataset):
    """Steps × batch positions; item p is a `Step`.

    `noise_start` is the share of the run on cross-entropy alone; afterwards every `noise_every`-th batch has noise.
    """

    def __init__(
        self, *, n_rows: int, n_noise: int, n_steps: int, batch_size: int, noise_ratio: int, seed: int,
        noise_start: float = 0.0, noise_every: int = 1,
    ) -> None:  # fmt: skip
        self.n_steps, self.batch_size, self.noise_ratio = n_steps, batch_size, noise_ratio if n_noise else 0
        self.first_noisy_step, self.noise_every = round(noise_start * n_steps), noise_every
        self._rows, self._noise = Shuffled(n_rows, seed), Shuffled(max(n_noise, 1), seed + 1)

    def __len__(self) -> int:
        return self.n_steps * self.batch_size

    def __getitem__(self, position: int) -> Step:
        step = position // self.batch_size
        noisy = self.noise_ratio and self.has_noise(step)
        start = self._noise_position(position) if noisy else 0
        picks = tuple(self._noise[start + k] for k in range(self.noise_ratio)) if noisy else ()
        return Step(self._rows[position], picks)

    def has_noise(self, step: int) -> bool:
        return step >= self.first_noisy_step and (step - self.first_noisy_step) % self.noise_every == 0

    @property
    def n_noise_draws(self) -> int:
        """Noise texts that the whole run draws, repeats included."""
        noisy = range(self.first_noisy_step, self.n_steps, self.noise_every)
        return len(noisy) * self.batch_size * self.noise_ratio

    @property
    def noise_rounds(self) -> float:
        """How often the run goes round the noise; at most 1 means that no noise text is used twice."""
        return self.n_noise_draws / self._noise.n

    def _noise_position(self, position: int) -> int:
        step, offset = divmod(position, self.batch_size)
        drawn = (step - self.first_noisy_step) // self.noise_every * self.batch_size + offset
        return drawn * self.noise_ratio


class Collator:
    """Steps -> token arrays of data texts, then of noise texts, with labels (-1 for noise)."""

    def __init__(self, data: TokenTable, labels: np.ndarray, noise: TokenTable | None) -> None:
        self.data, self.labels, self.noise = data, labels, noise

    def __call__(self, steps: list[Step]) -> dict[str, list[np.ndarray] | np.ndarray]:
        texts = [self.data[step.row] for step in steps]
        noise = [self.noise[i] for step in steps for i in step.noise] if self.noise is not None else []
        labels = np.concatenate([self.labels[[s.row for s in steps]], np.full(len(noise), -1)]).astype(np.int64)
        ids, types = zip(*texts, *noise, strict=True)
        return {"ids": list(ids), "types": list(types), "labels": labels}
