"""What users pass to an `EnergyTrainer` → tokens, labels and noise: any dataset with texts or `input_ids`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ebmcal.errors import EbmcalError
from ebmcal.modeling.classifier import tokenize
from ebmcal.modeling.packing import Tokens, TokenTable
from ebmcal.noise.build import online_stream
from ebmcal.noise.sources import NoiseStream
from ebmcal.training import recipe
from ebmcal.training.config import EnergyConfig


def check_arguments(model: Any, args: Any, data_collator: Any, kwargs: dict[str, Any]) -> None:
    """Raise for arguments of a Trainer that an `EnergyTrainer` does not take."""
    if model is None or kwargs.get("model_init") is not None:
        raise EbmcalError("EnergyTrainer needs a model; model_init is not supported.")
    if not isinstance(args, EnergyConfig):
        raise EbmcalError(f"args must be an ebmcal.EnergyConfig, got {type(args).__name__}.")
    if data_collator is not None:
        raise EbmcalError("EnergyTrainer builds its own collator, which adds noise and packs. Remove data_collator=.")
    if getattr(model.config, "problem_type", None) in ("regression", "multi_label_classification"):
        raise EbmcalError(f"Expected a single-label classifier, got problem_type={model.config.problem_type!r}.")


def dataset_labels(dataset: Any) -> np.ndarray | None:
    """The column labels or label; None without one."""
    name = next((name for name in ("labels", "label") if name in dataset.column_names), None)
    return None if name is None else np.asarray(dataset[name])


def training_labels(train: Any, n_labels: int) -> np.ndarray:
    """The labels of a training set, checked: [n] int64."""
    labels = dataset_labels(train)
    if labels is None or labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < n_labels:
        raise EbmcalError(f"Labels must be integers from 0 to {n_labels - 1}, the classes of the model.")
    return labels.astype(np.int64)


def token_table(dataset: Any, tokenizer: Any, max_length: int | None) -> TokenTable:
    """The tokens of all rows of a user's dataset: of their `input_ids`, or of their texts."""
    if not hasattr(dataset, "column_names"):
        raise EbmcalError(f"Expected a datasets.Dataset, got {type(dataset).__name__}.")
    if "input_ids" in dataset.column_names:
        return TokenTable([_row_tokens(row) for row in dataset])
    columns = text_columns(dataset)
    if tokenizer is None or not columns:
        raise EbmcalError(
            "The dataset has no input_ids. Tokenise it, or pass processing_class=tokenizer and a text column."
        )
    texts = [dataset[name] for name in columns]
    rows = list(texts[0]) if len(texts) == 1 else list(zip(*texts, strict=True))
    return TokenTable(tokenize(rows, tokenizer, max_length or min(recipe.MAX_LENGTH, tokenizer.model_max_length)))


def _row_tokens(row: Mapping[str, Any]) -> Tokens:
    """The tokens of a tokenised row, without its padding."""
    ids = np.asarray(row["input_ids"], dtype=np.int32)
    types = np.asarray(row.get("token_type_ids", np.zeros(len(ids))), dtype=np.uint8)
    is_token = np.asarray(row.get("attention_mask", np.ones(len(ids))), dtype=bool)
    return Tokens(ids[is_token], types[is_token])


def text_columns(dataset: Any) -> list[str]:
    """The text column, or the two of pairs: `text` and `text_pair`, or the only string columns."""
    if "text" in dataset.column_names:
        return [name for name in ("text", "text_pair") if name in dataset.column_names]
    kinds = {name: getattr(kind, "dtype", "") for name, kind in dataset.features.items() if name != "id"}
    strings = [name for name, kind in kinds.items() if kind in ("string", "large_string")]
    return strings if len(strings) <= 2 else []


def noise_stream(noise: Any, train: Any, setting: str, seed: int) -> NoiseStream:
    """The noise of a training: given as a stream or a dataset, or made from the training texts (`setting`)."""
    if hasattr(noise, "draw"):
        stream: NoiseStream = noise
        return stream
    dataset = train if noise is None else noise
    columns = text_columns(dataset) if hasattr(dataset, "column_names") and len(dataset) else []
    if not columns:
        raise EbmcalError(
            "Noise is made from a datasets.Dataset with a text column (or two, for pairs) and at least one row: "
            "keep the text column of train_dataset, or pass noise=ebmcal.generate_noise(…)."
        )
    names = dict(zip(columns, ("text", "text_pair"), strict=False))
    dataset = dataset.select_columns(columns).rename_columns(names)
    if noise is None:
        return online_stream(setting, dataset, seed)
    from ebmcal.noise.store import StoredStream

    table = dataset.with_format("arrow")[:]
    if len(columns) == 1:
        table = table.append_column("text_pair", pa.nulls(len(table), pa.string()))
    return StoredStream(table, seed)
