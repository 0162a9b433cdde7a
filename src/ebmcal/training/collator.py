"""What a training step sees: its rows, their noise texts, and both packed into micro-batches.

All of it is a pure function of the seed and the step. So an interrupted training continues exactly, and several
processes see the same texts as one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from ebmcal.methods.joint import MicroBatch
from ebmcal.modeling.classifier import tokenize
from ebmcal.modeling.packing import Tokens, micro_batches, pack
from ebmcal.noise.sources import NoiseStream, ShuffledOrder


class Item(NamedTuple):
    """A training row and the numbers of its noise texts."""

    row: int
    noise: tuple[int, ...]


@dataclass(frozen=True)
class NoiseSchedule:
    """Which steps have noise, and how much: K texts per row, after a share of the steps, in every n-th step."""

    ratio: int = 0  # 0: no noise
    first_step: int = 0
    every: int = 1

    def numbers(self, step: int, offset: int, batch_size: int) -> tuple[int, ...]:
        """The numbers of the noise texts of row `offset` of a step; counted over the whole training.

        >>> NoiseSchedule(ratio=2).numbers(step=1, offset=0, batch_size=4)
        (8, 9)
        """
        since = step - self.first_step
        if not self.ratio or since < 0 or since % self.every:
            return ()
        first = (since // self.every * batch_size + offset) * self.ratio
        return tuple(range(first, first + self.ratio))


class TrainingRows(Dataset):
    """Places of the training (epoch × n + position) → rows in the random order of their epoch, with noise numbers."""

    def __init__(self, n_rows: int, batch_size: int, steps_per_epoch: int, seed: int, noise: NoiseSchedule) -> None:
        self.n_rows, self.batch_size, self.steps_per_epoch, self.noise = n_rows, batch_size, steps_per_epoch, noise
        self._order = ShuffledOrder(n_rows, seed)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, place: int) -> Item:
        epoch, position = divmod(place, self.n_rows)
        step, offset = divmod(position, self.batch_size)
        step += epoch * self.steps_per_epoch
        return Item(self._order[place], self.noise.numbers(step, offset, self.batch_size))


class EpochSampler(Sampler[int]):
    """The places of the current epoch, in order; the epoch follows from the step the trainer is at."""

    def __init__(self, rows: TrainingRows, trainer_state: Any) -> None:
        self.rows, self.state = rows, trainer_state

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        start = self.state().global_step // self.rows.steps_per_epoch * len(self.rows)
        return iter(range(start, start + len(self.rows)))


@dataclass
class EnergyCollator:
    """Training items → micro-batches of data and noise texts; (tokens, label) of evaluation → one packed batch."""

    tokens: Sequence[Tokens]  # of the training rows
    labels: np.ndarray
    noise: NoiseStream | None
    tokenizer: Any
    max_length: int
    budget: int  # tokens per micro-batch

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
        noise = [text.text if text.text_pair is None else (text.text, text.text_pair) for text in drawn]
        texts = [*(self.tokens[row] for row in rows), *tokenize(noise, self.tokenizer, self.max_length)]
        labels = np.concatenate([self.labels[rows], np.zeros(len(drawn), dtype=np.int64)])
        source = np.array([-1] * len(rows) + [text.source for text in drawn], dtype=np.int64)
        batches = [
            MicroBatch(
                pack([texts[i] for i in part]),
                torch.from_numpy(labels[part]),
                torch.from_numpy(source[part] >= 0),
                torch.from_numpy(source[part]),
                step_has_noise=bool(drawn),
            )
            for part in micro_batches(np.array([len(text.ids) for text in texts]), self.budget)
        ]
        return {"micro_batches": batches, "n_data": len(rows)}
