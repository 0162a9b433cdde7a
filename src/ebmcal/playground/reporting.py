"""The report of a CSV file that came to the playground: texts with labels, or predictions of any classifier."""

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.data import load_texts
from ebmcal.errors import EbmcalError
from ebmcal.evaluation import evaluate
from ebmcal.predictions import Predictions
from ebmcal.serve.app import Service
from ebmcal.serve.batching import Row

MOST_ROWS = 2000
N_RESAMPLES = 200


async def predictions_of(service: Service, content: bytes) -> dict[str, Predictions]:
    """What the file holds: predictions as they are, or what each model of the server says of its texts."""
    header = columns_of(content)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "your file.csv"
        path.write_bytes(content)
        if any(name.startswith(("prob_", "logit_")) for name in header):
            return {"your file": _few(Predictions.read(path))}
        rows = _labelled_texts(service, path, header)
    return {name: await _ask(service, name, *rows) for name in reversed(service.models)}  # the baseline first


def columns_of(content: bytes) -> list[str]:
    """The names in the first line of a CSV file."""
    try:
        return next(csv.reader(io.StringIO(content.decode("utf-8-sig"))), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise EbmcalError(f"This is no CSV in UTF-8: {error}.") from error


def _labelled_texts(service: Service, path: Path, header: list[str]) -> tuple[list[Row], np.ndarray]:
    model = next(iter(service.models.values())).model
    columns = model.columns_of(None, None, "label")
    text = columns.text if columns.text in header else "text"
    missing = [name for name in (text, columns.pair, "label") if name and name not in header]
    if missing:
        raise EbmcalError(
            f"The file has the columns {', '.join(header) or '(none)'}; a report needs {text}"
            f"{f', {columns.pair}' if columns.pair else ''} and label, or a label and prob_<class> of each class."
        )
    rows = load_texts(path, path.parent / "cache", text, columns.pair, "label", model.label_names)
    _few(rows)
    return rows.texts(), np.asarray(rows.labels)


def _few(rows: Any) -> Any:
    n = rows.n_rows if isinstance(rows, Predictions) else len(rows)
    if n > MOST_ROWS:
        raise EbmcalError(f"The file has {n:,} rows; here {MOST_ROWS:,} are the most. Use ebmcal predict and evaluate.")
    return rows


async def _ask(service: Service, name: str, rows: list[Row], labels: np.ndarray) -> Predictions:
    size, answers = service.limits.max_texts, []
    for start in range(0, len(rows), size):
        answers += await service.ask(rows[start : start + size], name)
    pairs = [pair or "" for _, pair in rows]
    return Predictions(
        labels,
        service.models[name].names,
        probs=np.array([list(answer["probabilities"].values()) for answer in answers]),
        energies=np.array([answer["energy"] for answer in answers]),
        texts=[text for text, _ in rows],
        text_pairs=pairs if any(pairs) else None,
    )


def report_html(named: dict[str, Predictions]) -> str:
    """The page of an evaluation, as `ebmcal evaluate --report` writes it."""
    with tempfile.TemporaryDirectory() as scratch:
        return evaluate(named, n_resamples=N_RESAMPLES).report(Path(scratch) / "report.html").read_text("utf-8")
