"""Evaluation of a CSV file that was uploaded to the web UI: labelled texts, or predictions of any classifier."""

import asyncio
import itertools
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.predictions.files import read_columns
from ebmcal.serving.batcher import Text
from ebmcal.serving.service import Service

MAX_ROWS = 2000
N_RESAMPLES = 200
N_SAMPLED = 20  # rows from which the columns are guessed
CLASS_PREFIXES = ("prob_", "logit_")

_ONE_REPORT = threading.Lock()  # matplotlib is not thread-safe, and a report of a disconnected client is still drawn


@dataclass(frozen=True)
class Columns:
    """The columns of a file that the user chose."""

    text: str = "text"
    text_pair: str | None = None
    label: str = "label"


def describe_columns(service: Service, content: bytes) -> dict[str, Any]:
    """The columns of a file and the most likely choice of text, second text and label."""
    with _as_file(content) as path:
        names, sample = _read_start(path)
    model = next(iter(service.engines.values())).model
    known = [name for name in names if sample and all(row.get(name) in model.label_names for row in sample)]
    label = _first(names, "label", *known, "labels", "class", "category", "target") or names[-1]
    texts = sorted((n for n in names if n != label), key=lambda n: -sum(len(str(row.get(n))) for row in sample))
    text = _first(names, model.card.get("text_column"), "text", "sentence", "sentence1", *texts) or names[0]
    pair = _first(names, model.card.get("text_pair_column"), "text_pair", "sentence2") if model.is_pair else None
    is_predictions = any(name.startswith(CLASS_PREFIXES) for name in names)
    return {"columns": names, "text": text, "text_pair": pair, "label": label, "is_predictions": is_predictions}


async def predict_file(service: Service, content: bytes, columns: Columns) -> dict[str, Predictions]:
    """The predictions in a file, or those of each served model for its texts, the baseline first."""
    found = await asyncio.to_thread(_read_file, service, content, columns)
    if isinstance(found, Predictions):
        return {"your file": found}
    return {name: await _predict(service, name, *found) for name in reversed(service.engines)}


def _read_file(service: Service, content: bytes, columns: Columns) -> Predictions | tuple[list[Text], np.ndarray]:
    with _as_file(content) as path:
        if any(name.startswith(CLASS_PREFIXES) for name in _read_start(path)[0]):
            return _read_predictions(path, columns)
        return _read_texts(service, path, columns)


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


def _read_start(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of a file and its first rows."""
    from ebmcal.prediction.reading import open_input

    opened = open_input(path, "csv", ("text", "label"))
    return opened.columns, [row.values for row in itertools.islice(opened.rows, N_SAMPLED)]


def _first(names: list[str], *wanted: str | None) -> str | None:
    return next((name for name in wanted if name in names), None)


def _read_predictions(path: Path, columns: Columns) -> Predictions:
    table = read_columns(path)
    _check_column(columns.label, table.columns)
    table.columns["label"] = table.columns[columns.label]
    _check_rows(table.n_rows)
    return Predictions.from_columns(table)


def _read_texts(service: Service, path: Path, columns: Columns) -> tuple[list[Text], np.ndarray]:
    from ebmcal.data import as_dataset

    model = next(iter(service.engines.values())).model
    rows = as_dataset(
        path, text_column=columns.text, text_pair_column=columns.text_pair, label_column=columns.label,
        label_names=model.label_names,
    )  # fmt: skip
    _check_rows(len(rows))
    texts: list[Text] = list(rows["text"])
    if columns.text_pair is not None:
        texts = list(zip(rows["text"], rows["text_pair"], strict=True))
    return texts, np.asarray(rows["label"])


def _check_column(name: str, columns: Mapping[str, Any]) -> None:
    if name not in columns:
        raise unknown_name("column", name, columns)


def _check_rows(n_rows: int) -> None:
    if n_rows > MAX_ROWS:
        raise EbmcalError(
            f"The file has {n_rows:,} rows; at most {MAX_ROWS:,} are possible here. Use ebmcal predict and evaluate."
        )


async def _predict(service: Service, name: str, texts: list[Text], labels: np.ndarray) -> Predictions:
    size, answers = service.limits.max_texts, list[dict[str, Any]]()
    for start in range(0, len(texts), size):
        answers += await service.answer(texts[start : start + size], name)
    is_pair = not isinstance(texts[0], str)
    return Predictions(
        labels,
        service.engines[name].model.label_names,
        probs=np.array([list(answer["probabilities"].values()) for answer in answers]),
        energies=np.array([answer["energy"] for answer in answers]),
        texts=[text[0] if is_pair else str(text) for text in texts],
        text_pairs=[text[1] for text in texts] if is_pair else None,
    )
