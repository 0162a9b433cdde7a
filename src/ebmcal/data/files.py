"""Files → rows: CSV, TSV, JSON lines, JSON and plain lines. Each irregularity is an error, an error row or counted.

The `csv` module in strict mode is used because pandas fills short rows with empty values and both pandas and pyarrow
rewrite fields with unmatched quotes, without a word. All formats except JSON are read in bounded memory. Errors do not
name the file: callers add it (`error_context`). Parquet and objects in memory are in `tables`.
"""

import codecs
import contextlib
import csv
import difflib
import gzip
import io
import itertools
import json
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ebmcal.data.columns import NUL, Tally
from ebmcal.errors import EbmcalError

SUFFIXES = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet",
    ".txt": "txt",
}  # fmt: skip
LINE_FORMATS = ("csv", "tsv", "glue", "jsonl", "txt")  # messages name lines from 1; for other formats rows from 0
SEPARATORS = (",", ";", "\t", "|")
_MAX_FIELD = 2**31 - 1  # characters; the csv module stops at 131,072


class RawRow(NamedTuple):
    """A row as it is in the source. `error` says why it cannot be used; it is then without values.

    `number` counts rows from 0; `place` is what messages name: the line from 1, or the row from 0.
    """

    number: int
    place: int
    values: dict[str, Any]
    error: str | None = None


class Table(NamedTuple):
    """Column names and an iterator over the rows of an open source."""

    columns: list[str]
    rows: Iterator[RawRow]


def format_of(path: Path) -> str:
    """The format of a file by its suffix; text formats may be compressed (.gz).

    >>> format_of(Path("a/train.csv")), format_of(Path("a/train.jsonl.gz"))
    ('csv', 'jsonl')
    """
    is_packed = path.suffix.lower() == ".gz"
    suffix = (Path(path.stem) if is_packed else path).suffix.lower()
    if suffix not in SUFFIXES or (is_packed and suffix == ".parquet"):
        found = f"ends in {path.suffix!r}" if path.suffix else "has no suffix"
        raise EbmcalError(
            f"{path} {found}; expected {', '.join(SUFFIXES)}, or a text format with .gz. Convert or rename the file."
        )
    return SUFFIXES[suffix]


def check_file(path: Path) -> None:
    """Raise unless `path` is a readable file with content; suggests similar names."""
    try:
        if path.is_dir():
            inside = sorted(p.name for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
            raise EbmcalError(f"{path} is a directory; expected a file{f' such as {inside[0]}' if inside else ''}.")
        if not path.exists():
            raise EbmcalError(f"{path} does not exist.{_suggestion(path)}")
        if not path.is_file():
            raise EbmcalError(f"{path} is not a regular file. It is read more than once, so it cannot be a pipe.")
        if path.stat().st_size == 0:
            raise EbmcalError(f"{path} is empty (0 bytes).")
    except OSError as error:
        raise EbmcalError(f"{path} cannot be read: {error.strerror or error}.") from error


def _suggestion(path: Path) -> str:
    if not path.parent.is_dir():
        return f" Neither does its directory {path.parent}."
    names = sorted(p.name for p in path.parent.iterdir())
    if close := difflib.get_close_matches(path.name, names, n=3, cutoff=0.5):
        return f" Did you mean {' or '.join(repr(name) for name in close)}?"
    return f" Its directory contains {', '.join(names[:8]) or 'nothing'}."


def check_encoding(encoding: str | None) -> None:
    """Raise unless Python knows the encoding."""
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError as error:
        raise EbmcalError(f"Unknown encoding {encoding!r}. Common ones are utf-8, utf-16, latin-1, cp1252.") from error


@contextlib.contextmanager
def open_binary(path: Path) -> Iterator["io.BufferedReader[Any]"]:
    """Open a file for reading, decompressed if it ends in .gz; "-" is standard input."""
    if str(path) == "-":
        piped: Any = sys.stdin.buffer
        yield piped if isinstance(piped, io.BufferedReader) else io.BufferedReader(piped)
        return
    try:
        with open(path, "rb") as raw:
            if path.suffix.lower() != ".gz":
                yield raw
            else:
                with gzip.GzipFile(fileobj=raw) as unpacked, io.BufferedReader(unpacked) as buffered:
                    yield buffered
    except (OSError, EOFError, zlib.error) as error:
        raise EbmcalError(f"the file cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def read_lines(raw: "io.BufferedReader[Any]", tally: Tally, encoding: str | None = None) -> Generator[str, None, None]:
    r"""The lines of a binary stream, with their line ends (\n, \r\n or \r).

    Without `encoding`: UTF-8 with or without BOM, where invalid bytes become lone surrogates for `as_text` to count.
    """
    is_utf8 = encoding is None or codecs.lookup(encoding).name == "utf-8"
    head = raw.peek(4096)[:4096] if is_utf8 else b""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head.count(0) > len(head) // 4:
        raise EbmcalError(
            "this is not UTF-8 text; it looks like UTF-16 or a binary file. Pass its encoding (--encoding utf-16) or "
            "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE"
        )
    chosen = "utf-8-sig" if is_utf8 else encoding  # utf-8-sig drops a BOM
    handle = io.TextIOWrapper(raw, encoding=chosen, errors="surrogateescape", newline="")
    number = 0
    try:
        for number, line in enumerate(handle, start=1):
            if "\0" in line:  # the csv module of Python 3.10 does not accept them
                tally.add("cleaned", NUL, number)
                line = line.replace("\0", " ")
            yield line
    except UnicodeError as error:
        raise EbmcalError(
            f"line {number + 1} or a later one cannot be decoded as {encoding} ({error}). Pass the right encoding."
        ) from error
    finally:
        handle.detach()  # closed by the caller


def delimited_table(
    lines: Iterator[str], tally: Tally, *, separator: str = ",", quoted: bool = True,
    header: Sequence[str] | None = None, wanted: Sequence[str] = (),
) -> Table:  # fmt: skip
    r"""Rows of CSV or TSV. Rows with a wrong number of fields or unmatched quotes become error rows.

    If the header is a single column without the `wanted` names, the separator that it contains is used instead.

    >>> table = delimited_table(iter(["text;label\n", "fine, really;1\n", "dull\n"]), Tally("line"))
    >>> table.columns, [row.values or row.error for row in table.rows]
    (['text', 'label'], [{'text': 'fine, really', 'label': '1'}, 'too few fields'])
    """
    if header is not None:
        return Table(list(header), _delimited_rows(_records(lines, separator, quoted, tally), header, tally))
    head: list[str] = []
    while not head or not head[-1].strip():  # blank lines before the header
        line = next(lines, None)
        if line is None:
            raise EbmcalError("the file is empty; expected a first line with the column names.")
        head.append(line)
    detected = _detect_separator(head[-1], separator, wanted) if quoted else separator
    if detected != separator:
        tally.add("notes", f"columns separated by {detected!r}", len(head))
    records = _records(itertools.chain(head, lines), detected, quoted, tally)
    _, header, problem = next(itertools.islice(records, len(head) - 1, None))
    if problem:
        raise EbmcalError("the header line has unmatched quotes. Correct the first line.")
    columns = [column.strip() for column in header]
    return Table(columns, _delimited_rows(records, columns, tally))


def _detect_separator(first: str, usual: str, wanted: Sequence[str]) -> str:
    headers = {mark: [field.strip().strip('"') for field in first.split(mark)] for mark in (usual, *SEPARATORS)}
    if len(headers[usual]) > 1 or (wanted and set(wanted) <= set(headers[usual])):
        return usual
    return next((mark for mark in SEPARATORS if len(headers[mark]) > 1), usual)


def _records(
    lines: Iterator[str], separator: str, quoted: bool, tally: Tally
) -> Iterator[tuple[int, list[str], str | None]]:
    """(first line, fields, error) of each record; a quote that is never closed is an `EbmcalError` with its line."""
    csv.field_size_limit(_MAX_FIELD)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    # strict: a misplaced quote is an error instead of joining rows
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    line = 1
    while True:
        fields, problem = [], None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "expected after" not in str(error):
                raise EbmcalError(
                    f"line {line}: a field starts with a quote that is never closed. Double the quotes inside "
                    'a field ("") and quote the whole field, or save the file as JSONL or Parquet.'
                ) from error
            problem = "unmatched quotes"
        n_lines = reader.line_num + 1 - line
        if n_lines > 1 and problem:
            tally.add("notes", "lines joined by unmatched quotes", line, n_lines)
        elif n_lines > 1:
            tally.add("notes", "rows that span several lines", line)
        yield line, fields, problem
        line = reader.line_num + 1


def _delimited_rows(
    records: Iterator[tuple[int, list[str], str | None]], columns: Sequence[str], tally: Tally
) -> Iterator[RawRow]:
    number = 0
    for line, fields, problem in records:
        if not fields and not problem:
            tally.add("notes", "blank lines", line)
            continue
        if problem is None and len(fields) != len(columns):
            problem = "too few fields" if len(fields) < len(columns) else "too many fields"
        yield RawRow(number, line, {} if problem else dict(zip(columns, fields, strict=True)), problem)
        number += 1


def line_table(lines: Iterator[str], tally: Tally, column: str = "text") -> Table:
    """One text per line; blank lines are counted and left out. Rows are numbered by their line."""

    def rows() -> Iterator[RawRow]:
        for number, line in enumerate(lines):
            if line.strip():
                yield RawRow(number, number + 1, {column: line.rstrip("\r\n")})
            else:
                tally.add("notes", "blank lines", number + 1)

    return Table([column], rows())


def json_lines_table(lines: Iterator[str], tally: Tally) -> Table:
    """One JSON object per line; other lines become error rows. Nested fields are columns with dots: "meta.label"."""
    rows, head = _json_line_rows(lines, tally), list[RawRow]()
    while not head or head[-1].error is not None:
        row = next(rows, None)
        if row is None and not head:
            raise EbmcalError("the file is empty; expected one JSON object per line.")
        if row is None:
            raise EbmcalError(f"line {head[0].place}: {head[0].error}; no line is a JSON object.")
        head.append(row)
    return Table(list(_flat_names(head[-1].values)), itertools.chain(head, rows))


def _json_line_rows(lines: Iterator[str], tally: Tally) -> Iterator[RawRow]:
    number = 0
    for line, content in enumerate(lines, start=1):
        if not content.strip():
            tally.add("notes", "blank lines", line)
            continue
        try:
            value, error = json.loads(content), None
        except (ValueError, RecursionError) as problem:
            value, error = {}, f"not valid JSON ({problem})"
        if not isinstance(value, dict):
            value, error = {}, f"a JSON {type(value).__name__}; expected an object with named fields"
        yield RawRow(number, line, value, error)
        number += 1


def json_table(lines: Iterator[str], tally: Tally) -> Table:
    """JSON: a list of objects, one list of them inside an object, or an object of columns; also JSON lines."""
    content = "".join(lines)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        if content.lstrip().startswith("["):
            raise EbmcalError(f"not valid JSON ({error}).") from error
        table = json_lines_table(io.StringIO(content, newline=""), tally)
        return Table(table.columns, (row._replace(place=row.number) for row in table.rows))
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        columns = list(value.values())
        if len(columns) == 1 and all(isinstance(row, dict) for row in columns[0]):
            value = columns[0]
        elif len({len(column) for column in columns}) == 1:
            value = [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise EbmcalError("expected a list of JSON objects with named fields, or columns of equal length.")
    return Table(list(_flat_names(value[0])) if value else [], (RawRow(i, i, row) for i, row in enumerate(value)))


def find_value(values: Any, name: str, default: Any = None) -> Any:
    """A field of a row; a name with dots reaches into nested objects and lists.

    >>> find_value({"turns": [{"text": "hi"}]}, "turns.0.text")
    'hi'
    """
    if isinstance(values, dict) and name in values:
        return values[name]
    first, dot, rest = name.partition(".")
    if isinstance(values, list) and first.isdecimal() and int(first) < len(values):
        return find_value(values[int(first)], rest, default) if dot else values[int(first)]
    if dot and isinstance(values, dict) and first in values:
        return find_value(values[first], rest, default)
    return default


def _flat_names(value: Any, prefix: str = "") -> Iterator[str]:
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value[:10])
    for key, inner in items:
        yield f"{prefix}{key}"
        if isinstance(inner, dict | list) and prefix.count(".") < 5:
            yield from _flat_names(inner, f"{prefix}{key}.")
