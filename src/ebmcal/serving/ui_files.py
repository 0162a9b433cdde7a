"""Evaluation of a CSV file that was uploaded to the web UI: labelled texts, or predictions of any classifier."""

import asyncio
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.data import as_dataset
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.model import Model
from ebmcal.predictions import Predictions
from ebmcal.predictions.files import FileColumns, read_columns
from ebmcal.serving.service import Service

MAX_ROWS = 2000
N_RESAMPLES = 200

_ONE_REPORT = threading.Lock()  # matplotlib is not thread-safe, and a report of a disconnected client is still drawn


def describe_columns(model: Model, content: bytes) -> dict[str, Any]:
    """The columns of a file and the most likely choice of text, second text and label."""
    with _as_file(content) as path:
        table = read_columns(path)
    names = list(table.columns)
    sample = {name: [str(value) for value in values[:20]] for name, values in table.columns.items()}

    def first(*wanted: Any) -> str | None:
        return next((name for name in wanted if name in names), None)

    known = [name for name in names if set(sample[name]) <= set(model.label_names)]
    label = first("label", *known, "labels", "class", "category", "target") or names[-1]
    by_length = sorted((name for name in names if name != label), key=lambda name: -sum(map(len, sample[name])))
    text = first(model.card.get("text_column"), "text", "sentence", "sentence1", *by_length) or names[0]
    pair = first(model.card.get("text_pair_column"), "text_pair", "sentence2") if model.is_pair else None
    return {"columns": names, "text": text, "text_pair": pair, "label": label, "is_predictions": _has_classes(table)}


async def predict_file(
    service: Service, content: bytes, text: str, text_pair: str | None, label: str
) -> dict[str, Predictions]:
    """The predictions in a file, or those of each served model for its texts."""
    model = next(iter(service.engines.values())).model
    found = await asyncio.to_thread(_read, content, model.label_names, text, text_pair, label)
    if isinstance(found, Predictions):
        return {"your file": found}
    return {name: await _predict(service, name, found) for name in service.engines}


def report_html(named: Mapping[str, Predictions]) -> str:
    """The evaluation report, as `ebmcal evaluate --report` writes it."""
    from ebmcal.evaluation import evaluate

    with _ONE_REPORT, tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about few rows: the report states their number
        path = Path(scratch) / "report.html"
        evaluate(named, n_resamples=N_RESAMPLES).report(path)
        return path.read_text(encoding="utf-8")


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "your file.csv"
        path.write_bytes(content)
        try:
            yield path
        except EbmcalError as error:  # the user does not know the temporary directory
            raise EbmcalError(str(error).replace(str(path), path.stem)) from error


def _has_classes(table: FileColumns) -> bool:
    return any(name.startswith(("prob_", "logit_")) for name in table.columns)


def _read(content: bytes, label_names: tuple[str, ...], text: str, text_pair: str | None, label: str) -> Any:
    """The predictions in a file, or its texts and labels as a dataset."""
    with _as_file(content) as path:
        table = read_columns(path)
        if table.n_rows > MAX_ROWS:
            raise EbmcalError(
                f"The file has {table.n_rows:,} rows; at most {MAX_ROWS:,} are possible here. Use ebmcal predict and "
                "evaluate."
            )
        if not _has_classes(table):
            return as_dataset(
                path, text_column=text, text_pair_column=text_pair, label_column=label, label_names=label_names
            )
        if label not in table.columns:
            raise unknown_name("column", label, table.columns)
        table.columns["label"] = table.columns[label]
        return Predictions.from_columns(table)


async def _predict(service: Service, name: str, rows: Any) -> Predictions:
    texts, pairs = list(rows["text"]), list(rows["text_pair"]) if "text_pair" in rows.column_names else None
    inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
    answers: list[dict[str, Any]] = []
    for start in range(0, len(inputs), service.limits.max_texts):
        answers += await service.answer(inputs[start : start + service.limits.max_texts], name)
    return Predictions(
        np.asarray(rows["label"]),
        service.engines[name].model.label_names,
        probs=np.array([list(answer["probabilities"].values()) for answer in answers]),
        energies=np.array([answer["energy"] for answer in answers]),
        texts=texts,
        text_pairs=pairs,
    )
