"""What a training step sees: its rows, their noise texts, and both packed into micro-batches.

All of it is a pure function of the seed and the step. So an interrupted training continues exactly, and several
processes see the same texts as one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from ebmcal.data.splits import ShuffledOrder
from ebmcal.methods.joint import MicroBatch
from ebmcal.modeling.classifier import tokenize
from ebmcal.modeling.packing import divide, micro_batches, pack
from ebmcal.noise.sources import NoiseStream


class Item(NamedTuple):
    """A training row and the numbers of its noise texts."""

    row: int
    noise: range


class TrainingRows(Dataset):
    """Places of the training (epoch × n + position) → rows in the random order of their epoch, with noise numbers.

    Every n-th step has noise: K texts per row, numbered over the whole training.
    """

    def __init__(
        self, n_rows: int, batch_size: int, steps_per_epoch: int, seed: int, noise_ratio: int = 0, noise_every: int = 1
    ) -> None:
        self.n_rows, self.batch_size, self.steps_per_epoch = n_rows, batch_size, steps_per_epoch
        self.noise_ratio, self.noise_every = noise_ratio, noise_every
        self._order = ShuffledOrder(n_rows, seed)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, place: int) -> Item:
        epoch, position = divmod(place, self.n_rows)
        step, offset = divmod(position, self.batch_size)
        step += epoch * self.steps_per_epoch
        first = (step // self.noise_every * self.batch_size + offset) * self.noise_ratio
        return Item(self._order[place], range(first, first + (0 if step % self.noise_every else self.noise_ratio)))


class EpochSampler(Sampler[int]):
    """The places of the current epoch, in order; the epoch follows from the step the trainer is at."""

    def __init__(self, rows: TrainingRows, step: Callable[[], int]) -> None:
        self.rows, self.step = rows, step

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        start = self.step() // self.rows.steps_per_epoch * len(self.rows)
        return iter(range(start, start + len(self.rows)))


@dataclass
class EnergyCollator:
    """Training items → micro-batches of data and noise texts; (tokens, label) of evaluation → one packed batch."""

    tokenizer: Any
    max_length: int
    budget: int = 0  # tokens per micro-batch
    is_parallel: bool = False  # steps are divided into two micro-batches for two threads
    noise: NoiseStream | None = None
    tokens: Any = ()  # of the training rows, a `TokenTable`
    labels: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        if isinstance(items[0], Item):
            return self._training_batch(items)
        texts, labels = zip(*items, strict=True)
        batch = {"texts": pack(texts)}
        return batch if labels[0] is None else batch | {"labels": torch.tensor(labels)}

    def _training_batch(self, items: Sequence[Item]) -> dict[str, Any]:
        rows = [item.row for item in items]
        numbers = [number for item in items for number in item.noise]
        drawn = self.noise.draw(numbers) if self.noise is not None and numbers else []
        noise = [text if pair is None else (text, pair) for text, pair in drawn]
        texts = [*(self.tokens[row] for row in rows), *tokenize(noise, self.tokenizer, self.max_length)]
        labels = torch.from_numpy(np.concatenate([self.labels[rows], np.zeros(len(noise), dtype=np.int64)]))
        is_noise = torch.arange(len(texts)) >= len(rows)
        lengths = np.array([len(text.ids) for text in texts])
        parts = divide(lengths, self.budget) if self.is_parallel else micro_batches(lengths, self.budget)
        batches = [
            MicroBatch(pack([texts[i] for i in part]), labels[part], is_noise[part], step_has_noise=bool(noise))
            for part in parts
        ]
        return {"micro_batches": batches, "n_data": len(rows)}
