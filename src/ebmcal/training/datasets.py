"""Datasets that users pass to `EnergyTrainer`: their text columns, their tokens, and noise made from them."""

from typing import Any

import pyarrow as pa

from ebmcal.errors import EbmcalError
from ebmcal.modeling.packing import TokenTable
from ebmcal.modeling.predictor import Text, tokenize
from ebmcal.training.collator import NoiseStream, row_tokens
from ebmcal.training.config import EnergyConfig
from ebmcal.training.recipe import MAX_LENGTH


def token_table(dataset: Any, tokenizer: Any, max_length: int | None) -> TokenTable:
    """The tokens of all rows: of their `input_ids`, or of their texts."""
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__getitem__"):
        raise EbmcalError(f"Expected a datasets.Dataset, got {type(dataset).__name__}.")
    if "input_ids" in dataset.column_names:
        return TokenTable([row_tokens(row) for row in dataset])
    columns = text_columns(dataset)
    if tokenizer is None or not columns:
        raise EbmcalError(
            "The dataset has no input_ids. Tokenise it, or pass processing_class=tokenizer and a text column."
        )
    return TokenTable(tokenize(row_texts(dataset, columns), tokenizer, max_length or default_length(tokenizer)))


def default_length(tokenizer: Any) -> int:
    """Tokens per text where nothing else is given."""
    return min(MAX_LENGTH, tokenizer.model_max_length)


def row_texts(dataset: Any, columns: list[str]) -> list[Text]:
    """The texts of a column, or the pairs of two columns."""
    if len(columns) == 2:
        return list(zip(dataset[columns[0]], dataset[columns[1]], strict=True))
    return list(dataset[columns[0]])


def text_columns(dataset: Any) -> list[str]:
    """The text column, or the two of pairs: `text` and `text_pair`, or the only string columns."""
    if "text" in dataset.column_names:
        return [name for name in ("text", "text_pair") if name in dataset.column_names]
    strings = [n for n, kind in dataset.features.items() if getattr(kind, "dtype", "") in ("string", "large_string")]
    return strings if len(strings) <= 2 else []


def noise_stream(noise: Any, train: Any, args: EnergyConfig) -> NoiseStream:
    """The noise of a training: given as a stream or a dataset, or made from the training texts."""
    from ebmcal.noise import online_stream
    from ebmcal.noise.mixture import StoredStream

    seed = args.seed if args.data_seed is None else args.data_seed
    if noise is None:
        columns = text_columns(train)
        if not columns:
            raise EbmcalError(
                f"Noise {args.noise!r} is made from the training texts, but train_dataset has no text column. Keep "
                "its text column (or two, for pairs), or pass noise=ebmcal.generate_noise(…)."
            )
        return online_stream(args.noise, _standard_names(train, columns), seed)
    if hasattr(noise, "draw"):
        stream: NoiseStream = noise
        return stream
    columns = text_columns(noise) if hasattr(noise, "column_names") else []
    if not columns or not len(noise):
        raise EbmcalError("noise must be a datasets.Dataset with a text column and at least one row, or a NoiseStream.")
    table = _standard_names(noise, columns).with_format("arrow")[:]
    if len(columns) == 1:
        table = table.append_column("text_pair", pa.nulls(len(table), pa.string()))
    return StoredStream("noise", table, seed)


def _standard_names(dataset: Any, columns: list[str]) -> Any:
    names = dict(zip(columns, ("text", "text_pair"), strict=False))
    return dataset.select_columns(columns).rename_columns(names)
