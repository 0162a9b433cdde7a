"""From a dataset to training batches: tokens, the order of the rows, the noise texts of each row, and packing.

Which rows and which noise texts a step sees is a pure function of the seed and the step. So an interrupted training
continues exactly, and several processes see the same texts as one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset, Sampler

from ebmcal.errors import EbmcalError
from ebmcal.methods.joint import MicroBatch
from ebmcal.modeling.classifier import tokenize
from ebmcal.modeling.packing import Tokens, TokenTable, micro_batches, pack
from ebmcal.training.recipe import MAX_LENGTH

if TYPE_CHECKING:
    from ebmcal.noise import NoiseStream


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
        self, tokens: TokenTable, labels: np.ndarray, noise: "NoiseStream | None", tokenizer: Any, max_length: int,
        budget: int,
    ) -> None:  # fmt: skip
        self.tokens, self.labels, self.noise = tokens, labels, noise
        self.tokenizer, self.max_length, self.budget = tokenizer, max_length, budget

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        return self._training_batch(items) if isinstance(items[0], Item) else self._evaluation_batch(items)

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

    def _evaluation_batch(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if "input_ids" in items[0]:
            tokens = [row_tokens(item) for item in items]
        else:
            columns = [name for name, value in items[0].items() if isinstance(value, str) and name != "id"][:2]
            texts: list[Any] = [tuple(item[name] for name in columns) for item in items]
            tokens = tokenize(
                texts if len(columns) == 2 else [text for (text,) in texts], self.tokenizer, self.max_length
            )
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


def token_table(dataset: Any, tokenizer: Any, max_length: int | None) -> TokenTable:
    """The tokens of all rows of a user's dataset: of their `input_ids`, or of their texts."""
    if not hasattr(dataset, "column_names"):
        raise EbmcalError(f"Expected a datasets.Dataset, got {type(dataset).__name__}.")
    if "input_ids" in dataset.column_names:
        return TokenTable([row_tokens(row) for row in dataset])
    columns = text_columns(dataset)
    if tokenizer is None or not columns:
        raise EbmcalError(
            "The dataset has no input_ids. Tokenise it, or pass processing_class=tokenizer and a text column."
        )
    texts = [dataset[name] for name in columns]
    rows = list(texts[0]) if len(texts) == 1 else list(zip(*texts, strict=True))
    return TokenTable(tokenize(rows, tokenizer, max_length or default_length(tokenizer)))


def default_length(tokenizer: Any) -> int:
    """Tokens per text where nothing else is given."""
    return MAX_LENGTH if tokenizer is None else min(MAX_LENGTH, tokenizer.model_max_length)


def text_columns(dataset: Any) -> list[str]:
    """The text column, or the two of pairs: `text` and `text_pair`, or the only string columns."""
    if "text" in dataset.column_names:
        return [name for name in ("text", "text_pair") if name in dataset.column_names]
    strings = [n for n, kind in dataset.features.items() if getattr(kind, "dtype", "") in ("string", "large_string")]
    return strings if len(strings) <= 2 else []


def noise_stream(noise: Any, train: Any, setting: str, seed: int) -> "NoiseStream":
    """The noise of a training: given as a stream or a dataset, or made from the training texts (`setting`)."""
    from ebmcal.noise import StoredStream, online_stream

    if hasattr(noise, "draw"):
        stream: NoiseStream = noise
        return stream
    dataset = train if noise is None else noise
    columns = text_columns(dataset) if hasattr(dataset, "column_names") and len(dataset) else []
    if not columns and noise is None:
        raise EbmcalError(
            f"Noise {setting!r} is made from the training texts, but train_dataset has no text column. Keep its text "
            "column (or two, for pairs), or pass noise=ebmcal.generate_noise(…)."
        )
    if not columns:
        raise EbmcalError("noise must be a datasets.Dataset with a text column and at least one row, or a NoiseStream.")
    names = dict(zip(columns, ("text", "text_pair"), strict=False))
    dataset = dataset.select_columns(columns).rename_columns(names)
    if noise is None:
        return online_stream(setting, dataset, seed)
    table = dataset.with_format("arrow")[:]
    if len(columns) == 1:
        table = table.append_column("text_pair", pa.nulls(len(table), pa.string()))
    return StoredStream("noise", table, seed)
