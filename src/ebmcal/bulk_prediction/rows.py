"""Input rows → output rows: `id`, `label`, the user's own columns, then the results.

A row that cannot be read keeps its place and carries the reason: it becomes an error row of the output. `Input` reads,
`OutputColumns` arranges the columns, `ChunkPredictor` fills them, in this process or in a worker.
"""

import functools
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.data.files import INK, NOT_UTF8, Columns, RawRow, TableSource, Tally, as_label, as_text, class_map
from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions import Predictions
from ebmcal.predictions.files import NUMBER_PREFIXES
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.model import Ensemble, Model
    from ebmcal.selective import AbstentionRule

STDIN = "-"

#: JSON objects that are searched for columns; keys that appear later go into the column `other`.
PEEKED_ROWS = 1000

CHUNK_ROWS, CHUNK_CHARACTERS = 2048, 4_000_000

_STRINGS = ("predicted", "decision", "reason", "error", "label", "other")


@dataclass(frozen=True)
class Chunk:
    """Consecutive input rows; `start` is the number of the first one, counted from 0."""

    number: int
    start: int
    rows: list[RawRow]

    @property
    def hash(self) -> str:
        """Depends on everything that the output of the chunk depends on, apart from the settings of the job."""
        return hashlib.sha256(repr((self.start, self.rows)).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Input:
    """An opened input: its columns and its rows."""

    name: str
    format: str
    columns: list[str]
    rows: Iterator[RawRow]
    tally: Tally
    schema: Any = None  # of Parquet
    is_complete: bool = True  # False: later JSON objects may have further keys

    @classmethod
    def open(cls, source: PathLike, format: str, columns: Columns, encoding: str | None = None) -> "Input":
        """Open an input and read its header; the names of the `columns` help to find the separator."""
        name = "standard input" if str(source) == STDIN else str(source)
        table = TableSource(name, Path(source), format, encoding=encoding)
        tally = Tally(table.unit)
        stream = _read(table, columns, tally)
        header = next(stream)
        if format in ("json", "jsonl"):
            peeked = list(itertools.islice(stream, PEEKED_ROWS))
            if not peeked:
                raise EbmcalError(f"{name}: there are no rows; expected JSON objects.")
            keys = list(dict.fromkeys(key for row in peeked for key in row.values))[:PEEKED_ROWS]
            is_complete = len(peeked) < PEEKED_ROWS and len(keys) < PEEKED_ROWS
            return cls(name, format, keys, itertools.chain(peeked, stream), tally, is_complete=is_complete)
        for column, n in Counter(header).most_common(1):
            if n > 1:
                raise EbmcalError(f"{name}: {n} columns are named {column!r}; rename all but one.")
        schema = None
        if format == "parquet":
            import pyarrow.parquet as pq

            schema = pq.read_schema(source)
        return cls(name, format, header, stream, tally, schema)

    def chunks(self, text_column: str) -> Iterator[Chunk]:
        """Chunks of at most `CHUNK_ROWS` rows; the input alone determines where they end."""
        number, start, size, found = 0, 0, 0, list[RawRow]()
        for row in self.rows:
            found.append(row)
            size += len(str(row.values.get(text_column, "")))
            if len(found) == CHUNK_ROWS or size > CHUNK_CHARACTERS:
                yield Chunk(number, start, found)
                number, start, size, found = number + 1, start + len(found), 0, []
        if found:
            yield Chunk(number, start, found)

    def warning(self) -> str | None:
        """What was changed in the rows that have been read; None if nothing."""
        found = self.tally.as_dict()["cleaned"].get(NOT_UTF8)
        if not found:
            return None
        return f"{self.name}, line {found['first'][0]}: {NOT_UTF8} were replaced. Is --encoding right?"


def _read(table: TableSource, columns: Columns, tally: Tally) -> Iterator[Any]:
    """The column names, then the rows, with values that every output format can store."""
    with error_context(table.name), table.open(columns, tally, all_columns=True) as (names, rows):
        yield _clean(names, 1, tally)
        for row in rows:
            try:
                row = row._replace(values=_clean(row.values, row.place, tally))
            except RecursionError:
                row = row._replace(values={}, error="the object is nested too deeply")
            yield row


def _clean(value: Any, place: int, tally: Tally) -> Any:
    """Half characters are replaced, NUL becomes a space, NaN and infinity become null, as JSON has neither."""
    if isinstance(value, str):
        return as_text(value, "", place, tally)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_clean(entry, place, tally) for entry in value]
    if isinstance(value, dict):
        return {_clean(key, place, tally): _clean(entry, place, tally) for key, entry in value.items()}
    return value


@dataclass(frozen=True)
class OutputColumns:
    """Which columns are read and which are written."""

    read: Columns
    label_names: tuple[str, ...]
    users: dict[str, str]  # the user's column → its name in the output
    results: list[str]
    unit: str  # what `RawRow.place` counts
    writes_id: bool  # the id is not simply the user's column `id`
    has_other: bool  # later JSON objects may have further keys, which go as JSON into the column `other`

    @classmethod
    def arrange(
        cls, given: Input, read: Columns, results: list[str], label_names: tuple[str, ...], format: str
    ) -> "OutputColumns":
        writes_id = "id" not in given.columns or read.id not in (None, "id")
        has_other = format != "jsonl" and not given.is_complete
        ours = {*results, "error", *(["id"] if writes_id else []), *(["label"] if read.label else [])}
        ours |= {"other"} if has_other else set()
        kept = [name for name in given.columns if not (name == read.label == "label")]
        users, taken = dict[str, str](), ours | set(kept)
        for name in kept:
            users[name] = name if name == _free_name(name, ours) else _free_name(f"input_{name}", taken)
            taken.add(users[name])
        return cls(read, label_names, users, [*results, "error"], given.tally.unit, writes_id, has_other)

    @property
    def names(self) -> list[str]:
        first = [*(["id"] if self.writes_id else []), *(["label"] if self.read.label else [])]
        return [*first, *self.users.values(), *(["other"] if self.has_other else []), *self.results]

    def arrow_types(self, given: Input) -> dict[str, Any]:
        """The Arrow types that are known before any row is read, by column."""
        import pyarrow as pa

        types = dict.fromkeys(_STRINGS, pa.string()) | {"label_set": pa.list_(pa.string())}
        if given.schema is not None:
            return types | {self.users[entry.name]: entry.type for entry in given.schema if entry.name in self.users}
        known = pa.string() if given.format in ("csv", "tsv", "lines") else None
        return types | dict.fromkeys(self.users.values(), known)

    def start_row(self, row: RawRow, number: int) -> dict[str, Any]:
        """The output row with its id and the user's values."""
        out: dict[str, Any] = {}
        if self.writes_id:
            out["id"] = str(number) if self.read.id is None else row.values.get(self.read.id)
        if self.read.label:
            out["label"] = None
        values = {name: value for name, value in row.values.items() if not (name == self.read.label == "label")}
        out |= {self.users[name]: value for name, value in values.items() if name in self.users}
        other = {name: value for name, value in values.items() if name not in self.users}
        if self.has_other:
            return out | {"other": json.dumps(other, ensure_ascii=False, default=str) if other else None}
        return out | {_free_name(name, {*self.names, *out}): value for name, value in other.items()}

    def text_and_label(self, row: RawRow) -> tuple[str | tuple[str, str], str | None]:
        """The text (or pair) of a row and the class name of its label; an `EbmcalError` if it has no usable text."""
        with error_context(f"{self.unit} {row.place}"):
            if row.error is not None:
                raise EbmcalError(row.error)
            texts = []
            for name in self.read.texts():
                value = row.values.get(name)
                texts.append(as_text(value, name, row.place, Tally(self.unit)))
                if not re.search(INK, texts[-1]):
                    raise EbmcalError(f"{name!r} is {'missing' if value is None else 'empty'}")
            label = None if self.read.label is None else self._label(row, self.read.label)
            return (texts[0] if len(texts) == 1 else (texts[0], texts[1])), label

    def _label(self, row: RawRow, name: str) -> str | None:
        label = as_label(row.values.get(name), name, row.place, Tally(self.unit))
        if label is None or self._classes.get(label, 0) < 0:
            return None
        if label not in self._classes:
            raise EbmcalError(f"the label {label!r:.60} is not one of {', '.join(self.label_names[:20])}")
        return self.label_names[self._classes[label]]

    @functools.cached_property
    def _classes(self) -> dict[str, int]:
        return class_map(self.label_names, by_number=True)


def _free_name(name: str, taken: set[str]) -> str:
    """The name of a user's column in the output: `input_…` if it is taken or means something in prediction files."""
    while name in taken or name.startswith(NUMBER_PREFIXES):
        name = f"input_{name}"
    return name


@dataclass(frozen=True)
class OutputChunk:
    """The output rows of a chunk, their counts, and the first error."""

    number: int
    hash: str  # of the input rows
    rows: list[dict[str, Any]]
    counts: dict[str, int] = field(default_factory=dict)  # rows, errors, abstained, ood
    first_error: str | None = None


@dataclass(frozen=True)
class ChunkPredictor:
    """A model, or an ensemble, with the columns and the abstention rule of a job."""

    model: "Model | Ensemble"
    rule: "AbstentionRule | None"
    calibrated: bool
    columns: OutputColumns

    def __call__(self, chunk: Chunk) -> OutputChunk:
        rows = [self.columns.start_row(row, chunk.start + i) for i, row in enumerate(chunk.rows)]
        texts, places, errors = [], [], list[str]()
        for row, out in zip(chunk.rows, rows, strict=True):
            try:
                text, label = self.columns.text_and_label(row)
            except EbmcalError as error:
                out["error"] = str(error)
                errors.append(str(error))
                continue
            texts.append(text)
            places.append(out)
            if self.columns.read.label is not None:
                out["label"] = label
        results = predict_texts(self.model, texts, self.rule, self.calibrated)[1] if texts else {}
        for i, out in enumerate(places):
            out |= {name: values[i] for name, values in results.items()}
        counts = {
            "rows": len(rows), "errors": len(errors),
            "abstained": sum(row.get("decision") == "abstain" for row in places),
            "ood": sum(row.get("is_ood") is True for row in places),
        }  # fmt: skip
        return OutputChunk(chunk.number, chunk.hash, rows, counts, errors[0] if errors else None)


def predict_texts(
    model: "Model | Ensemble", texts: list[Any], rule: "AbstentionRule | None", calibrated: bool
) -> tuple[Predictions, dict[str, list[Any]]]:
    """Predictions of texts, and the columns that they and the rule add; logits instead of probabilities if raw."""
    from ebmcal.model import Ensemble, disagreement

    def predict(member: "Model", **options: Any) -> Predictions:
        # `Model.predict` without the conversion to a dataset, which would cost as much as a batch
        return member.finish(member.predictor(texts, **options), texts, calibrated=calibrated)

    found: dict[str, Any] = {}
    if isinstance(model, Ensemble):
        passes = (predict(member, dropout_seed=seed) for member, seed in model.passes())
        members = [predictions.reorder(model.label_names) for predictions in passes]
        predictions = model.average(members)
        found["disagreement"] = disagreement(members)
    else:
        predictions = predict(model, features=rule is not None and rule.needs_features)
    is_raw = not calibrated and predictions.logits is not None
    prefix, matrix = ("logit_", predictions.logits) if is_raw else ("prob_", predictions.probs)
    results: dict[str, np.ndarray] = {"predicted": predictions.predicted_labels}
    results |= {prefix + name: matrix[:, c] for c, name in enumerate(predictions.label_names)}  # type: ignore[index]
    results |= {"confidence": predictions.confidence, "energy": predictions.require_energies()}
    results |= {f"distance_{name}": values for name, values in (predictions.distances or {}).items()}
    columns = {name: values.tolist() for name, values in (results | found).items()}
    return predictions, columns | ({} if rule is None else rule.apply(predictions).columns())
