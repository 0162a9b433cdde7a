"""Rows of a file or of standard input, one at a time, with all of the user's columns. No torch.

A row that cannot be read keeps its place and carries the reason: it becomes an error row of the output.
"""

import io
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebmcal.data.tables import check_file, format_of, open_binary
from ebmcal.data.text_files import (
    RawRow,
    check_encoding,
    delimited_table,
    json_lines_table,
    json_table,
    read_lines,
)
from ebmcal.data.values import NOT_UTF8, Tally, as_text
from ebmcal.errors import EbmcalError, error_context, unknown_name

STDIN = "-"
FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "lines")

#: JSON objects that are searched for columns; keys that appear later go into the column `other`.
PEEKED_ROWS = 1000


@dataclass(frozen=True)
class InputRow:
    """A row: its line (its number from 0 in Parquet and JSON files), the user's values, and what is wrong with it."""

    line: int
    values: dict[str, Any]
    error: str | None = None


@dataclass(frozen=True)
class Input:
    """An opened input: its columns and its rows."""

    name: str
    format: str
    columns: list[str]
    rows: Iterator[InputRow]
    nested: Sequence[str] = ()  # of JSON: names such as meta.text that reach into objects
    schema: Any = None  # of Parquet
    is_complete: bool = True  # False: later JSON objects may have further keys
    tally: Tally = field(default_factory=Tally)

    def warning(self) -> str | None:
        """What was changed in the rows that have been read; None if nothing."""
        found = self.tally.as_dict()["cleaned"].get(NOT_UTF8)
        if not found:
            return None
        return f"{self.name}, line {found['first'][0]}: {NOT_UTF8} were replaced. Is --encoding right?"


def detect_format(source: str | Path, given: str | None = None) -> str:
    """The format of an input: as given, by its suffix (also before .gz), or lines of text on standard input.

    >>> detect_format("-"), detect_format("new.csv.gz"), detect_format("notes.txt"), detect_format("-", "jsonl")
    ('lines', 'csv', 'lines', 'jsonl')
    """
    if given is not None and given not in FORMATS:
        raise unknown_name("input format", given, FORMATS)
    if str(source) == STDIN:
        if given in ("parquet", "json"):
            raise EbmcalError(f"{given} cannot be read from standard input. Pass a file, or use jsonl.")
        return given or "lines"
    found = given or format_of(Path(source))
    return "lines" if found == "txt" else found


def check_input(source: str | Path, encoding: str | None) -> None:
    """Raise for a file that cannot be read, or an encoding that does not exist."""
    check_encoding(encoding)
    if str(source) != STDIN:
        check_file(Path(source))


def open_input(source: str | Path, format: str, wanted: Sequence[str], encoding: str | None = None) -> Input:
    """Open an input and read its header; the `wanted` columns help to find the separator."""
    name = "standard input" if str(source) == STDIN else str(source)
    with error_context(name):
        if format == "parquet":
            return _parquet_input(name, Path(source))
        tally = Tally("line")
        lines = _lines(source, tally, encoding)
        if format == "lines":
            rows = (RawRow(i, i + 1, {"text": line.rstrip("\r\n")}) for i, line in enumerate(lines))
            return Input(name, format, ["text"], _input_rows(rows, tally, name), tally=tally)
        if format in ("csv", "tsv"):
            table = delimited_table(lines, tally, separator="," if format == "csv" else "\t", wanted=wanted)
            columns = [_clean(column, 1, tally) for column in table.columns]
            _check_distinct(columns)
            return Input(name, format, columns, _input_rows(table.rows, tally, name), tally=tally)
        table = (json_table if format == "json" else json_lines_table)(lines, tally)
        return _object_input(name, format, table.columns, _input_rows(table.rows, tally, name), tally)


def count_rows(source: str | Path, format: str) -> int | None:
    """About how many rows a file has, for the progress bar; None if that is not cheap to find out."""
    if str(source) == STDIN or Path(source).suffix.lower() == ".gz" or format == "json":
        return None
    if format == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(source).num_rows)
    with open(source, "rb") as handle:
        n_lines = sum(block.count(b"\n") for block in iter(lambda: handle.read(1 << 20), b""))
    return max(n_lines - (format in ("csv", "tsv")), 1)


def _lines(source: str | Path, tally: Tally, encoding: str | None) -> Iterator[str]:
    if str(source) == STDIN:
        raw: Any = sys.stdin.buffer
        yield from read_lines(raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw), tally, encoding)
    else:
        with open_binary(Path(source)) as file:
            yield from read_lines(file, tally, encoding)


def _check_distinct(columns: Sequence[str]) -> None:
    repeated = next((column for column in columns if columns.count(column) > 1), None)
    if repeated is not None:
        raise EbmcalError(f"{columns.count(repeated)} columns are named {repeated!r}; rename all but one.")


def _input_rows(rows: Iterator[RawRow], tally: Tally, name: str) -> Iterator[InputRow]:
    """Rows with values that every format can store; an error that ends the reading names the input."""
    with error_context(name):
        for row in rows:
            error = row.error
            if error is None:
                try:
                    yield InputRow(row.place, _clean(row.values, row.place, tally))
                    continue
                except RecursionError:
                    error = "the object is nested too deeply"
            yield InputRow(row.place, {}, f"{tally.unit} {row.place}: {error}")


def _clean(value: Any, place: int, tally: Tally) -> Any:
    """Half characters are replaced, NUL becomes a space."""
    if isinstance(value, str):
        return as_text(value, "", place, tally)
    if isinstance(value, list):
        return [_clean(entry, place, tally) for entry in value]
    if isinstance(value, dict):
        return {_clean(key, place, tally): _clean(entry, place, tally) for key, entry in value.items()}
    return value


def _object_input(name: str, format: str, nested: Sequence[str], rows: Iterator[InputRow], tally: Tally) -> Input:
    """JSON objects; the columns are the keys of the first ones."""
    peeked = list(itertools.islice(rows, PEEKED_ROWS))
    if not peeked:
        raise EbmcalError("there are no rows; expected JSON objects.")
    columns = list(dict.fromkeys(key for row in peeked for key in row.values))[:PEEKED_ROWS]
    is_complete = len(peeked) < PEEKED_ROWS and len(columns) < PEEKED_ROWS
    return Input(name, format, columns, itertools.chain(peeked, rows), nested, is_complete=is_complete, tally=tally)


def _parquet_input(name: str, path: Path) -> Input:
    import pyarrow as pa
    import pyarrow.parquet as pq

    failures = (pa.ArrowException, OSError, ValueError, MemoryError)

    def rows() -> Iterator[InputRow]:
        number = itertools.count()
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(512):
                    yield from (InputRow(next(number), values) for values in batch.to_pylist())
        except failures as error:
            raise EbmcalError(f"{name} is not a complete Parquet file: {str(error)[:300]}. Save it again.") from error

    try:
        schema = pq.read_schema(path)
        _check_distinct(schema.names)
        return Input(name, "parquet", list(schema.names), rows(), schema=schema)
    except failures as error:
        raise (
            error if isinstance(error, EbmcalError) else EbmcalError(f"not a Parquet file: {str(error)[:300]}.")
        ) from error
