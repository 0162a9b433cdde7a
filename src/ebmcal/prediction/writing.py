"""Rows of the output as CSV, JSON lines or Parquet. No torch."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions.files import META_KEY
from ebmcal.storage import explain_disk_errors

SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

#: What spreadsheets take for the start of a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

Rows = Sequence[Mapping[str, Any]]


def detect_output_format(output: Path | None, given: str | None, input_format: str) -> str:
    """The format by the suffix of the file; on standard output as given, else CSV for tables and JSON lines otherwise.

    >>> detect_output_format(Path("new.parquet"), None, "csv"), detect_output_format(None, None, "lines")
    ('parquet', 'jsonl')
    """
    if output is not None:
        if output.suffix.lower() not in SUFFIXES:
            raise EbmcalError(f"{output}: {unknown_name('suffix', output.suffix, SUFFIXES)}")
        return SUFFIXES[output.suffix.lower()]
    if given not in (None, "csv", "jsonl"):
        raise unknown_name("format of standard output", str(given), ("csv", "jsonl"))
    return given or ("csv" if input_format in ("csv", "tsv") else "jsonl")


def check_output(output: Path, source: str | Path, overwrite: bool) -> None:
    """Raise, before any work, if the output cannot be written or would replace a file."""
    if output.is_dir():
        raise EbmcalError(f"{output} is a directory; expected a file.")
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise EbmcalError(f"{output} is the input. Choose another output.")
    if output.exists() and not overwrite:
        raise EbmcalError(f"{output} exists already. Choose another name, or pass --overwrite.")
    with explain_disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise EbmcalError(f"Could not write {output}: no permission in {output.parent}. Choose another directory.")


@dataclass(frozen=True)
class Encoder:
    """Rows to bytes of a format: `header`, then `encode` for each chunk, or `join_tables` for Parquet."""

    format: str
    columns: list[str]
    escape_formulas: bool = False
    types: dict[str, Any] = field(default_factory=dict)  # Arrow types of columns, where known
    note: dict[str, Any] = field(default_factory=dict)  # label names and meta, stored in Parquet files

    def header(self) -> bytes:
        """The first line of a CSV; nothing for other formats."""
        return self._csv([self.columns]) if self.format == "csv" else b""

    def encode(self, rows: Rows) -> bytes:
        if self.format == "parquet":
            return self._table(rows)
        if self.format == "jsonl":
            return "".join(f"{_json(row)}\n" for row in rows).encode("utf-8", "replace")
        return self._csv([[row.get(column) for column in self.columns] for row in rows])

    def _csv(self, rows: Sequence[Sequence[Any]]) -> bytes:
        target = io.StringIO()
        plain = csv.writer(target, lineterminator="\n")
        quoted = csv.writer(target, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in rows:
            cells = [_cell(value, self.escape_formulas) for value in row]
            # csv quotes a field only for characters of its own line terminator; readers also end lines at \r
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (quoted if has_return else plain).writerow(cells)
        return target.getvalue().encode("utf-8", "replace")

    def _table(self, rows: Rows) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {name: _array([row.get(name) for row in rows], self.types.get(name)) for name in self.columns}
        target = io.BytesIO()
        pq.write_table(pa.table(arrays), target, compression="zstd")
        return target.getvalue()

    def join_tables(self, chunks: Sequence[Path], target: Path) -> None:
        """One Parquet file of all chunks; a column with different types in the chunks becomes a string."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schemas = [pq.read_schema(chunk) for chunk in chunks]
        try:
            schema = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException:
            types = {name: {schema.field(name).type for schema in schemas} - {pa.null()} for name in self.columns}
            schema = pa.schema(
                [(name, found.pop() if len(found) == 1 else pa.string()) for name, found in types.items()]
            )
        schema = schema.with_metadata({META_KEY: json.dumps(self.note).encode()})
        with pq.ParquetWriter(target, schema, compression="zstd", write_page_checksum=True) as writer:
            for chunk in chunks:
                table = pq.read_table(chunk)
                arrays = [_cast(table.column(entry.name), entry.type) for entry in schema]
                writer.write_table(pa.table(arrays, schema=schema))


def _json(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity
        return json.dumps(_finite(row), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list) else value


def _cell(value: Any, escape_formulas: bool) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | dict):
        value = _json_text(value)
    if escape_formulas and isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


def _json_text(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, default=str)


def _array(values: list[Any], type_: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values, type=type_)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):  # a column of JSON with values of several types
        return pa.array([v if v is None or isinstance(v, str) else _json_text(v) for v in values], pa.string())


def _cast(column: Any, type_: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string(type_) and not pa.types.is_string(column.type):
        return _array([None if v is None else _json_text(v) for v in column.to_pylist()], type_)
    return column.cast(type_)
