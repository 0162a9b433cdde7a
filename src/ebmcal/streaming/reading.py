"""Rows of a file or of standard input, one after the other, with every column the user has. No torch.

A row that cannot be read keeps its place and says why: it becomes an error row of the output.
"""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebmcal.data.columnar import column_batches, columnar_schema
from ebmcal.data.delimited import (
    BROKEN,
    CSV,
    TSV,
    Dialect,
    as_written,
    delimiter_hint,
    lines_in,
    objects_in,
    records,
    text_lines,
    trouble_with,
)
from ebmcal.data.parts import SUFFIXES, check_file
from ebmcal.data.values import Columns, Tally, as_text, is_blank
from ebmcal.errors import EbmcalError, unknown_name

KINDS = ("csv", "tsv", "jsonl", "json", "parquet", "lines")
STDIN = "-"
MOST_COLUMNS = 1000  # keys of objects; further ones go into one column, `other`
_COUNTED = 1 << 20  # bytes at a time
_UNCOUNTED = Tally("line")


@dataclass(frozen=True)
class InputRow:
    """A row of the input: its line or row number, the user's values by column, and what is wrong with it, if so."""

    place: int
    values: dict[str, Any]
    error: str | None = None


@dataclass(frozen=True)
class Input:
    """An opened input: the columns of its header (of objects: their keys; from a pipe, of the first) and its rows."""

    name: str
    kind: str
    columns: list[str]
    rows: Iterator[InputRow]
    types: Any = None  # of Parquet: the schema
    is_whole: bool = True  # whether no column can come later: in objects from a pipe one may

    def check(self, columns: Columns) -> None:
        """Raise unless the columns that are read are there; a label may come with a later object."""
        dialect = {"csv": CSV, "tsv": TSV}.get(self.kind)
        columns = columns if self.is_whole or columns.label in self.columns else replace(columns, label=None)
        columns.check(Path(self.name), self.columns, delimiter_hint(self.columns, dialect) if dialect else "")


def kind_of(source: str | Path, given: str | None = None) -> str:
    """The format of an input: as given, by its ending, or lines of text from standard input.

    >>> kind_of("-"), kind_of("new.csv"), kind_of("notes.txt"), kind_of("-", "jsonl")
    ('lines', 'csv', 'lines', 'jsonl')
    """
    if given is not None:
        if given not in KINDS:
            raise unknown_name("input format", given, KINDS)
        if str(source) == STDIN and given in ("parquet", "json"):
            raise EbmcalError(f"{given} cannot be read from a pipe, a row at a time. Give a file.")
        return given
    suffix = Path(source).suffix.lower()
    if str(source) == STDIN or suffix == ".txt":
        return "lines"
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise EbmcalError(f"{source}: what is in it? Known endings are {known}; else say --input-format.")
    return SUFFIXES[suffix]


def open_input(source: str | Path, kind: str, wanted: list[str], encoding: str | None = None) -> Input:
    """Open an input, in which these columns are wanted, and look at its header."""
    is_stdin = str(source) == STDIN
    name = "standard input" if is_stdin else str(source)
    if not is_stdin:
        check_file(Path(source))
    if kind == "parquet":
        schema = columnar_schema(Path(source), kind)
        return Input(name, kind, list(schema.names), _columnar_rows(Path(source), schema.names), schema)
    if kind == "json" or (kind == "jsonl" and not is_stdin):
        return _object_input(name, _objects(source, kind, encoding), _keys(_objects(source, kind, encoding)))
    stdin = lines_in(_stdin(), name, _UNCOUNTED, encoding) if is_stdin else None
    lines = stdin or text_lines(Path(source), _UNCOUNTED, encoding)
    if kind == "lines":
        texts = (line.rstrip("\r\n") for line in lines)
        return Input(name, kind, ["text"], (InputRow(i, {"text": clean(t)}) for i, t in enumerate(texts, start=1)))
    if kind == "jsonl":
        return _object_input(name, (_json_row(i, line) for i, line in enumerate(lines, start=1) if line.strip()))
    dialect = replace(CSV if kind == "csv" else TSV, encoding=encoding)
    return _delimited_input(name, kind, lines, dialect if is_stdin else as_written(Path(source), dialect, wanted))


def _objects(source: str | Path, kind: str, encoding: str | None) -> Iterator[InputRow]:
    """The objects of a file, one after the other."""
    if kind == "json":
        return (_checked(i, value) for i, value in objects_in(Path(source), kind, _UNCOUNTED, encoding))
    lines = text_lines(Path(source), _UNCOUNTED, encoding)
    return (_json_row(i, line) for i, line in enumerate(lines, start=1) if line.strip())


def _keys(rows: Iterator[InputRow]) -> list[str]:
    """Every key of the objects of a file, as they first come; of very many those that come first."""
    found: dict[str, None] = {}
    for row in rows:
        found |= dict.fromkeys(row.values)
        if len(found) > MOST_COLUMNS:
            break
    return list(found)[:MOST_COLUMNS]


def _stdin() -> io.BufferedReader:
    raw: Any = sys.stdin.buffer
    return raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)


def count_rows(source: str | Path, kind: str) -> int | None:
    """About how many rows a file has, for the bar; None of a pipe."""
    if str(source) == STDIN:
        return None
    if kind == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(source).num_rows)
    with open(source, "rb") as handle:
        n_lines = sum(block.count(b"\n") for block in iter(lambda: handle.read(_COUNTED), b""))
    return max(n_lines - (kind in ("csv", "tsv")), 1)


def text_of(row: InputRow, columns: Columns) -> tuple[str, str | None]:
    """The text, or both texts, of a row; raises an `EbmcalError` where there is none."""
    found = []
    for name in (columns.text, columns.pair):
        if name is not None:
            if row.values.get(name) is None:
                raise EbmcalError(f"no {name!r}")
            found.append(as_text(row.values[name], name, row.place, _UNCOUNTED))
            if is_blank(found[-1]):
                raise EbmcalError(f"{name!r} is empty")
    return found[0], found[1] if columns.pair is not None else None


def clean(value: Any) -> Any:
    """A value that every format can hold: bytes that are not UTF-8 are replaced, NUL becomes a space."""
    return as_text(value, "", 0, _UNCOUNTED) if isinstance(value, str) else value


def _delimited_input(name: str, kind: str, lines: Iterator[str], dialect: Dialect) -> Input:
    found = records(lines, name, dialect, _UNCOUNTED)
    header = next((fields for _, fields in found if fields != []), None)
    if header is None:
        raise EbmcalError(f"{name} is empty; a first line with the column names was expected.")
    if header is BROKEN:
        raise EbmcalError(f"{name}: the quotes of the header line do not match. Mend the first line.")
    columns = [clean(column.strip()) for column in header]
    return Input(name, kind, columns, _delimited_rows(found, columns))


def _delimited_rows(found: Iterator[tuple[int, list[str]]], columns: list[str]) -> Iterator[InputRow]:
    for line, fields in found:
        if fields == []:  # a blank line is no row
            continue
        if fields is BROKEN or len(fields) != len(columns):
            yield InputRow(line, {}, f"line {line}: {trouble_with(fields, columns)}")
        else:
            yield InputRow(line, {c: clean(value) for c, value in zip(columns, fields, strict=True)})


def _object_input(name: str, rows: Iterator[InputRow], columns: list[str] | None = None) -> Input:
    """Rows of objects; their columns are those of the first one where the others cannot be looked at before."""
    waiting = []
    for row in rows:
        waiting.append(row)
        if row.error is None:
            break
    if not waiting:
        raise EbmcalError(f"{name} is empty; one JSON object a line was expected.")
    if waiting[-1].error is not None:
        raise EbmcalError(f"{name} holds no JSON object at all: {waiting[0].error}.")

    def all_rows() -> Iterator[InputRow]:
        yield from waiting
        yield from rows

    return Input(name, "jsonl", columns or list(waiting[-1].values), all_rows(), is_whole=columns is not None)


def _json_row(line: int, content: str) -> InputRow:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        return InputRow(line, {}, f"line {line} is not JSON: {error}")
    return _checked(line, value)


def _checked(line: int, value: Any) -> InputRow:
    if not isinstance(value, dict):
        return InputRow(line, {}, f"line {line} is a JSON {type(value).__name__}, not an object with named fields")
    return InputRow(line, {clean(key): clean(entry) for key, entry in value.items()})


def _columnar_rows(path: Path, names: list[str]) -> Iterator[InputRow]:
    place = 0
    with closing(column_batches(path, "parquet", names)) as batches:  # type: ignore[type-var]  # a generator
        for batch in batches:
            for values in batch.to_pylist():
                yield InputRow(place, values)
                place += 1
