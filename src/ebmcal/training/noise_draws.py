"""The noise that `EnergyTrainer` draws: which draws go with a batch, and the features of a draw.

Draws are numbered over the whole training by a `TrainingPlan`, as in `ebmcal run`: a resumed training goes on with the
next number, and each process has numbers of its own. A supply turns a number into the features of a text: a row of a
dataset, or a text written fresh from the training texts.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainingArguments

from ebmcal.errors import EbmcalError
from ebmcal.noise.sources import Row
from ebmcal.noise.supply import fresh_supply
from ebmcal.training.plan import Draw, NoiseSupply, Shuffled, TrainingPlan

#: Rows of the training set that are looked at to see how long its texts are.
LOOKED_AT = 1000


class DrawNumbers(TrainerCallback):
    """The numbers of the draws that go with each batch of this process. `n_noise` is None where noise has no end."""

    def __init__(self, n_noise: int | None, noise_ratio: int, noise_start: float, noise_every: int) -> None:
        self.n_noise = n_noise
        self._plan_for = partial(
            TrainingPlan, n_rows=1, seed=0, noise_ratio=noise_ratio, noise_start=noise_start, noise_every=noise_every
        )
        self._plan: TrainingPlan  # known when the training begins
        self._n_batches = 0  # of the step, so far

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        size = state.train_batch_size * args.world_size * args.gradient_accumulation_steps
        self._plan = self._plan_for(n_steps=state.max_steps, batch_size=size)
        n_draws = self._plan.n_noise_draws
        if self.n_noise is not None and n_draws > self.n_noise and state.is_world_process_zero:
            warnings.warn(
                f"The training draws {n_draws:,} noise texts and there are {self.n_noise:,}: they come round "
                f"{n_draws / self.n_noise:.1f} times. Noise that is known by heart teaches little: make more of it.",
                stacklevel=2,
            )

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._n_batches = 0

    def next(self, args: TrainingArguments, state: Any, n_data: int) -> list[int]:
        """K numbers for each data text of the next batch; none in a step without noise."""
        batch = (state.global_step * args.gradient_accumulation_steps + self._n_batches) * args.world_size
        first = (batch + args.process_index) * state.train_batch_size
        self._n_batches += 1
        return [number for place in range(first, first + n_data) for number in self._plan[place].noise]


class DatasetRows:
    """The rows of a dataset in endless rounds: none is drawn twice before all have been drawn once."""

    names: tuple[str, ...] = ("noise",)

    def __init__(self, dataset: Any, columns: Sequence[str], seed: int) -> None:
        self.dataset, self.columns, self._order = dataset, columns, Shuffled(len(dataset), seed + 1)

    def draw(self, numbers: Sequence[int]) -> list[Draw]:
        picks = [self._order[n] for n in numbers]
        many = hasattr(self.dataset, "__getitems__")
        rows = self.dataset.__getitems__(picks) if many else [self.dataset[i] for i in picks]
        return [Draw(0, {name: row[name] for name in self.columns}) for row in rows]


class DatasetTexts:
    """The text columns of a dataset as the sources of noise see texts."""

    def __init__(self, dataset: Any, columns: Sequence[str], label: str | None) -> None:
        self.dataset, self.columns, self.is_pair = dataset, columns, len(columns) == 2
        self.labels = np.full(len(dataset), -1) if label is None else np.asarray(dataset[label])

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, indices: Sequence[int] | np.ndarray) -> list[Row]:
        found = self.dataset.__getitems__([int(i) for i in indices])
        return [(row[self.columns[0]], row[self.columns[1]] if self.is_pair else None) for row in found]


def rows_of(noise: Any, train: Any, names: Sequence[str], labels: set[str], seed: int) -> DatasetRows:
    """The supply of a tokenised noise dataset, with the columns that the model reads (`names`) of the training set."""
    _require_rows(noise)
    there = column_names(noise) or []
    if "input_ids" not in there:
        raise EbmcalError(
            f"noise_dataset has the columns {', '.join(there)} and no input_ids: tokenise it as you tokenised the "
            "training set, noise.map(tokenize, batched=True)."
        )
    read = [name for name in column_names(train) or there if name in names and name not in labels]
    if missing := [name for name in read if name not in there]:
        raise EbmcalError(
            f"noise_dataset lacks {', '.join(missing)}, which the training set has: tokenise both in the same way."
        )
    return DatasetRows(noise, read, seed)


def fresh_rows_of(noise: str, train: Any, tokenizer: Any, seed: int) -> NoiseSupply:
    """The supply of a `noise` setting such as "splice", written from the text columns of the training set."""
    features = getattr(train, "features", None) or {}
    columns = [name for name, kind in features.items() if getattr(kind, "dtype", "") in ("string", "large_string")]
    if tokenizer is None or not 1 <= len(columns) <= 2 or not hasattr(train, "__getitems__"):
        raise EbmcalError(
            f"noise_dataset={noise!r} is made from the texts of the training set, and needs a train_dataset that is a "
            "datasets.Dataset with its column of texts, or two of pairs, and the processing_class; the text columns "
            f"are: {', '.join(columns) or 'none'}. ebmcal.write_noise(texts, source={noise!r}, count=…) writes a "
            "dataset of such noise."
        )
    label = next((name for name in ("label", "labels", "label_ids") if name in features), None)
    lengths = {len(ids) for ids in train[: min(len(train), LOOKED_AT)]["input_ids"]}
    shape = {"truncation": True, "max_length": max(lengths), "padding": "max_length" if len(lengths) == 1 else False}

    def encode(rows: Sequence[Row]) -> list[dict[str, Any]]:
        firsts, seconds = zip(*rows, strict=True)
        given = tokenizer(list(firsts), list(seconds) if len(columns) == 2 else None, **shape)
        read = [name for name in given if name in features]
        return [{name: given[name][i] for name in read} for i in range(len(rows))]

    return fresh_supply(noise, DatasetTexts(train, columns, label), encode, seed)


def column_names(dataset: Any) -> list[str] | None:
    """The columns of a dataset; None where there is none, or a stream does not know them."""
    if hasattr(dataset, "column_names"):
        return dataset.column_names
    return list(dataset[0]) if hasattr(dataset, "__getitem__") else None


def _require_rows(noise: Any) -> None:
    if noise is None:
        raise EbmcalError(
            "EnergyTrainer needs noise_dataset: 'splice', which makes noise from the training texts, or noise texts "
            "that are tokenised like the training set. ebmcal.write_noise(texts, count=…) writes some."
        )
    if not hasattr(noise, "__len__") or not hasattr(noise, "__getitem__"):
        raise EbmcalError(
            "noise_dataset must be a dataset whose rows have numbers, such as a datasets.Dataset; "
            f"a {type(noise).__name__} came."
        )
    if not len(noise):
        raise EbmcalError("noise_dataset is empty. ebmcal.write_noise(texts, count=…) writes noise.")
