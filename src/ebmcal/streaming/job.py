"""`predict_file`: a model, or several, over an input of any length; order is kept, and a killed job goes on.

Rows are read, predicted and written a chunk at a time. Chunks are cut by the input alone, so a job that was taken up
again gives the same bytes as one that was not.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ebmcal.config import check_encoding
from ebmcal.data.labels import class_map
from ebmcal.data.parts import check_file
from ebmcal.data.values import Columns, Tally, as_label
from ebmcal.decisions import Rule
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.locks import locked
from ebmcal.streaming.layout import Layout, figures_of
from ebmcal.streaming.reading import STDIN, Input, InputRow, count_rows, kind_of, open_input, text_of
from ebmcal.streaming.writing import ToFile, ToStdout, check_output, format_of_output, part_folder

CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 4_000_000


class Predictor(Protocol):
    """What predicts: a `Model`, or an `Ensemble` of them."""

    @property
    def label_names(self) -> tuple[str, ...]: ...

    def predict_rows(self, texts: list[Any], *, calibrated: bool) -> tuple[Predictions, np.ndarray | None]:
        """Predictions, and how far the members disagree [n] where there are several."""
        ...

    def columns_of(self, text: str | None, pair: str | None, label: str | None) -> Columns: ...

    def fingerprint(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Summary:
    """What a job did: rows, error rows, rows that were abstained from or unusual, and rows that were there already."""

    n_rows: int
    n_errors: int
    n_abstained: int
    n_unusual: int
    n_before: int
    first_error: str | None
    meta: dict[str, Any]


def predict_file(
    model: Predictor,
    source: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    *,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    calibrated: bool = True,
    rule: Rule | None = None,
    strict: bool = False,
    overwrite: bool = False,
    input_format: str | None = None,
    encoding: str | None = None,
    output_format: str | None = None,
    reporter: Reporter = Reporter(),
) -> Summary:
    """Predict every row of a file (CSV, TSV, JSONL, Parquet, lines of text; "-" is standard input) into a file.

    The user's columns come back, with `predicted`, a probability for each class, `confidence` and `energy`, and, by the
    `rule`, `decision`, `reason`, `unusual`, `unusual_p` and `label_set`. A row that cannot be read keeps its place and
    says why in `error`; `strict` stops there. Without `output` rows go to standard output. `encoding` is that of the
    input, UTF-8 by default. The same call again goes on with a job that was killed; an output that is there is refused
    unless it may be overwritten.

        predict_file(ebmcal.load("model"), "new.csv", "predicted.csv", rule=ebmcal.load("model").rule)
    """
    source, output = str(source), None if output is None else Path(output).expanduser()
    kind, form = check_places(source, output, overwrite, input_format, encoding, output_format)
    columns = model.columns_of(text_column, text_pair_column, label_column)
    given = open_input(source, kind, columns.wanted(), None if encoding is None else check_encoding(encoding))
    given.check(columns)
    trial, disagreement = model.predict_rows(["a text" if columns.pair is None else ("a", "b")], calibrated=calibrated)
    ours = [*figures_of(trial, disagreement, rule, calibrated), "error"]  # refuses a rule for other predictions
    layout = Layout.of(given, columns, ours, form, trial)
    with contextlib.ExitStack() as stack:
        if output is None:
            target: ToStdout | ToFile = ToStdout(form, layout.columns)
        else:
            stack.enter_context(locked(part_folder(output)))
            job = _job(model, source, layout, rule) | ({"encoding": encoding} if encoding else {})
            target = ToFile(output, form, layout.columns, layout.types, layout.note, job, overwrite)
        work = _Work(model, layout, rule, calibrated, strict)
        return work.run(given, target, reporter, count_rows(source, kind))


def check_places(
    source: str, output: Path | None, overwrite: bool = False, input_format: str | None = None,
    encoding: str | None = None, output_format: str | None = None,
) -> tuple[str, str]:  # fmt: skip
    """Formats of input and output; refuses what cannot be read or written, which takes no model to tell."""
    kind = kind_of(source, input_format)
    form = format_of_output(output, output_format, kind)
    if output is not None:
        check_output(output, source, overwrite)
    if encoding is not None:
        check_encoding(encoding)
    if source != STDIN:
        check_file(Path(source))
    return kind, form


@dataclass(frozen=True)
class _Work:
    model: Predictor
    layout: Layout
    rule: Rule | None
    calibrated: bool
    strict: bool

    def run(self, given: Input, target: ToStdout | ToFile, reporter: Reporter, total: int | None) -> Summary:
        counts: Counter[str] = Counter()
        for earlier in target.earlier():
            counts.update(earlier)
        n_before, n_done, first_error, n_read = counts["rows"], target.n_done, None, 0
        with reporter.stage(given.name, total) as advance:
            for i, chunk in enumerate(_chunks(given.rows, self.layout.read)):
                if i >= n_done:
                    made, wrong = self.predicted(chunk, n_read)
                    first_error = first_error or next(iter(wrong), None)
                    if self.strict and wrong:
                        raise EbmcalError(f"{given.name}, {wrong[0]}. Mend it; without --strict it is an error row.")
                    found = _counted(made, len(wrong))
                    target.write(made, found)
                    counts.update(found)
                n_read += len(chunk)
                advance(len(chunk), note=f"{counts['errors']:,} errors" if counts["errors"] else "")
        if counts["errors"] == counts["rows"]:
            what = f"no row could be read. The first: {first_error}" if counts["rows"] else "there are no rows"
            raise EbmcalError(f"{given.name}: {what}.")
        target.finish()
        rows, errors, abstained, unusual = (counts[name] for name in ("rows", "errors", "abstained", "unusual"))
        return Summary(rows, errors, abstained, unusual, n_before, first_error, self.layout.note["meta"])

    def predicted(self, chunk: list[InputRow], start: int) -> tuple[list[dict[str, Any]], list[str]]:
        """Rows of the output for a chunk of the input that begins at row `start`, and what was wrong."""
        texts: list[Any] = []
        labels: list[str | None] = []
        errors: dict[int, str] = {}
        for i, row in enumerate(chunk):
            try:
                text, label = _text_and_label(row, self.layout)
            except EbmcalError as error:
                errors[i] = str(error) if str(error).startswith("line") else f"row {start + i}: {error}"
            else:
                texts.append(text)
                labels.append(label)
        figures = iter(self.figures(texts))
        known = iter(labels)
        rows = []
        for i, row in enumerate(chunk):
            out: dict[str, Any] = {} if "id" in self.layout.users else {"id": str(start + i)}
            out |= self.layout.given(row.values)
            if i in errors:
                out["error"] = errors[i]
            else:
                label = next(known)
                out |= (
                    {"label": label} if self.layout.has_label and (self.layout.read.label or "label" not in out) else {}
                )
                out |= next(figures)
            rows.append(out)
        return rows, list(errors.values())

    def figures(self, texts: list[Any]) -> list[dict[str, Any]]:
        if not texts:
            return []
        found = figures_of(*self.model.predict_rows(texts, calibrated=self.calibrated), self.rule, self.calibrated)
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def _counted(rows: list[dict[str, Any]], n_errors: int) -> dict[str, int]:
    abstained = sum(row.get("decision") == "abstain" for row in rows)
    unusual = sum(row.get("unusual") is True for row in rows)
    return {"rows": len(rows), "errors": n_errors, "abstained": abstained, "unusual": unusual}


def _text_and_label(row: InputRow, layout: Layout) -> tuple[Any, str | None]:
    """The text, or the pair, and the class its label means (None where it is missing)."""
    if row.error is not None:
        raise EbmcalError(row.error)
    text, pair = text_of(row, layout.read)
    asked = text if pair is None else (text, pair)
    if layout.read.label is None:
        return asked, None
    label = as_label(row.values.get(layout.read.label), layout.read.label, row.place, Tally("line"))
    mapping = class_map(layout.label_names, by_number=True)
    if label is not None and label not in mapping:
        raise EbmcalError(f"the label {label!r:.60} is none of {', '.join(layout.label_names)}")
    known = label is not None and mapping[label] >= 0
    return asked, layout.label_names[mapping[label]] if known and label is not None else None


def _chunks(rows: Iterator[InputRow], columns: Columns) -> Iterator[list[InputRow]]:
    chunk: list[InputRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(str(row.values.get(columns.text, "")))
        if len(chunk) == CHUNK_ROWS or size > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _job(model: Predictor, source: str, layout: Layout, rule: Rule | None) -> dict[str, Any]:
    """What an output is made from; a job with another one does not go on with its chunks."""
    about: dict[str, Any] = {"input": STDIN}
    if source != STDIN:
        stat = Path(source).stat()
        about = {"input": str(Path(source).resolve()), "input size": stat.st_size, "input time": stat.st_mtime_ns}
    return {
        **about,
        "columns": layout.columns,
        "model": model.fingerprint(),
        "rule": rule and fingerprint(rule.to_json()),
    }
