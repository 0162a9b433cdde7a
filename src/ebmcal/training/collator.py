"""From rows to training batches: the order of the rows, the noise texts of each row, and packing.

Which rows and which noise texts a step sees is a pure function of the seed and the step. So an interrupted training
continues exactly, and several processes see the same texts as one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from ebmcal.methods.joint import MicroBatch
from ebmcal.modeling.packing import Tokens, TokenTable, micro_batches, pack
from ebmcal.modeling.predictor import tokenize


class NoiseStream(Protocol):
    """A source of noise texts; the text with a number is a pure function of the number."""

    names: tuple[str, ...]

    def draw(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Noise texts (`text`, `text_pair`, `source`) with these numbers."""


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
        self.n_rows, self.batch_size, self.steps_per_epoch = n_rows, batch_size, steps_per_epoch
        self.seed, self.noise = seed, noise
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, place: int) -> Item:
        epoch, position = divmod(place, self.n_rows)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.n_rows)
        step, offset = divmod(position, self.batch_size)
        step += epoch * self.steps_per_epoch
        return Item(int(self._order[position]), self.noise.numbers(step, offset, self.batch_size))


class EpochSampler(Sampler[int]):
    """The places of the current epoch, in order; the epoch follows from the step the trainer is at."""

    def __init__(self, rows: TrainingRows, trainer_state: Any) -> None:
        self.rows, self.state = rows, trainer_state

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        start = self.state().global_step // self.rows.steps_per_epoch * len(self.rows)
        return iter(range(start, start + len(self.rows)))


class EnergyCollator:
    """Training items → micro-batches of data and noise texts; dictionaries of an evaluation set → one packed batch."""

    def __init__(
        self, tokens: TokenTable, labels: np.ndarray, noise: NoiseStream | None, tokenizer: Any, max_length: int,
        budget: int,
    ) -> None:  # fmt: skip
        self.tokens, self.labels, self.noise = tokens, labels, noise
        self.tokenizer, self.max_length, self.budget = tokenizer, max_length, budget

    def __call__(self, items: Sequence[Item] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not isinstance(items[0], Item):
            return self._evaluation_batch(items)
        return self._training_batch(items)  # type: ignore[arg-type]  # all are items if the first is

    def _training_batch(self, items: Sequence[Item]) -> dict[str, Any]:
        rows = [item.row for item in items]
        drawn = self._draw([number for item in items for number in item.noise])
        texts = [*(self.tokens[row] for row in rows), *(tokens for tokens, _ in drawn)]
        labels = np.concatenate([self.labels[rows], np.zeros(len(drawn), dtype=np.int64)])
        source = np.array([-1] * len(rows) + [source for _, source in drawn], dtype=np.int64)
        parts = micro_batches(np.array([len(text.ids) for text in texts]), self.budget)
        batches = [
            MicroBatch(
                pack([texts[i] for i in part]),
                torch.from_numpy(labels[part]),
                torch.from_numpy(source[part] >= 0),
                torch.from_numpy(source[part]),
                step_has_noise=bool(drawn),
            )
            for part in parts
        ]
        return {"micro_batches": batches, "n_data": len(rows)}

    def _draw(self, numbers: list[int]) -> list[tuple[Tokens, int]]:
        if self.noise is None or not numbers:
            return []
        texts = self.noise.draw(numbers)
        pairs = [text.text if text.text_pair is None else (text.text, text.text_pair) for text in texts]
        tokens = tokenize(pairs, self.tokenizer, self.max_length)
        return [(found, text.source) for found, text in zip(tokens, texts, strict=True)]

    def _evaluation_batch(self, items: Sequence[Any]) -> dict[str, Any]:
        if "input_ids" in items[0]:
            tokens = [row_tokens(item) for item in items]
        else:
            columns = [name for name, value in items[0].items() if isinstance(value, str) and name != "id"][:2]
            texts: list[Any] = [tuple(item[name] for name in columns) for item in items]
            texts = texts if len(columns) == 2 else [text for (text,) in texts]
            tokens = tokenize(texts, self.tokenizer, self.max_length)
        batch: dict[str, Any] = {"texts": pack(tokens)}
        label = next((name for name in ("labels", "label") if name in items[0]), None)
        return batch if label is None else batch | {"labels": torch.tensor([int(item[label]) for item in items])}


def row_tokens(item: Mapping[str, Any]) -> Tokens:
    """The tokens of a tokenised row, without its padding."""
    ids = np.asarray(item["input_ids"], dtype=np.int32)
    types = np.asarray(item.get("token_type_ids", np.zeros(len(ids))), dtype=np.uint8)
    if "attention_mask" in item:
        real = np.asarray(item["attention_mask"], dtype=bool)
        ids, types = ids[real], types[real]
    return Tokens(ids, types)
