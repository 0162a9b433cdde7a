"""CSV, TSV, JSON lines, JSON and plain lines → rows. Each irregularity is an error, an error row or counted.

The `csv` module in strict mode is used because pandas fills short rows with empty values and both pandas and pyarrow
rewrite fields with unmatched quotes, without a word. All formats except JSON are read in bounded memory. Errors do not
name the file: callers add it (`error_context`).
"""

import codecs
import csv
import io
import itertools
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ebmcal.data.values import NUL, Tally
from ebmcal.errors import EbmcalError

MAX_LINE = 20_000_000  # characters; a longer line is a binary file or a file without line ends
MAX_JSON = 1 << 30  # characters; JSON is read as a whole
SEPARATORS = (",", ";", "\t", "|")
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")


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


def read_lines(raw: "io.BufferedReader[Any]", tally: Tally, encoding: str | None = None) -> Generator[str, None, None]:
    r"""The lines of a binary stream, with their line ends (\n, \r\n or \r).

    Without `encoding`: UTF-8 with or without BOM, where invalid bytes become lone surrogates for `as_text` to count.
    """
    is_utf8 = encoding is None or codecs.lookup(encoding).name == "utf-8"
    if is_utf8:
        _refuse_wide_encodings(raw.peek(4096)[:4096])
    chosen = "utf-8-sig" if is_utf8 else encoding  # utf-8-sig drops a BOM
    handle = io.TextIOWrapper(raw, encoding=chosen, errors="surrogateescape", newline="")
    number = 0
    try:
        while line := handle.readline(MAX_LINE):
            number += 1
            if len(line) >= MAX_LINE:
                raise EbmcalError(f"line {number} is longer than {MAX_LINE:,} characters: not a text table.")
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


def check_encoding(encoding: str | None) -> None:
    """Raise unless Python knows the encoding."""
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError as error:
        raise EbmcalError(f"Unknown encoding {encoding!r}. Common ones are utf-8, utf-16, latin-1, cp1252.") from error


def _refuse_wide_encodings(head: bytes) -> None:
    if head.startswith(_WIDE_BOMS) or head.count(0) > len(head) // 4:
        raise EbmcalError(
            "this is not UTF-8 text; it looks like UTF-16 or a binary file. Pass its encoding (--encoding utf-16) or "
            "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE"
        )


def delimited_table(
    lines: Iterator[str],
    tally: Tally,
    *,
    separator: str = ",",
    quoted: bool = True,
    header: Sequence[str] | None = None,
    wanted: Sequence[str] = (),
) -> Table:
    r"""Rows of CSV or TSV. Rows with a wrong number of fields or unmatched quotes become error rows.

    If the header is a single column without the `wanted` names, the separator that it contains is used instead.

    >>> table = delimited_table(iter(["text;label\n", "fine, really;1\n", "dull\n"]), Tally("line"))
    >>> table.columns, [row.values or row.error for row in table.rows]
    (['text', 'label'], [{'text': 'fine, really', 'label': '1'}, 'too few fields'])
    """
    if header is None:
        head = _up_to_text(lines)
        if not head[-1].strip():
            raise EbmcalError("the file is empty; expected a first line with the column names.")
        detected = _detect_separator(head[-1], separator, wanted) if quoted else separator
        if detected != separator:
            tally.add("notes", f"columns separated by {detected!r}", len(head))
        records = _records(itertools.chain(head, lines), detected, quoted, tally)
        _, header, problem = next(record for record in records if "".join(record[1]).strip() or record[2])
        if problem:
            raise EbmcalError("the header line has unmatched quotes. Correct the first line.")
    else:
        records = _records(lines, separator, quoted, tally)
    columns = [column.strip() for column in header]
    return Table(columns, _delimited_rows(records, columns, tally))


def _up_to_text(lines: Iterator[str]) -> list[str]:
    """The lines up to the first that is not blank."""
    head = [""]
    while not head[-1].strip() and (line := next(lines, None)) is not None:
        head.append(line)
    return head[1:] or head


def _detect_separator(first: str, usual: str, wanted: Sequence[str]) -> str:
    def fields(separator: str) -> list[str]:
        try:
            return [field.strip() for field in next(csv.reader([first], delimiter=separator))]
        except csv.Error:
            return []

    header = fields(usual)
    if len(header) > 1 or (wanted and all(name in header for name in wanted)):
        return usual
    return next((mark for mark in SEPARATORS if mark in first and len(fields(mark)) > 1), usual)


def _records(
    lines: Iterator[str], separator: str, quoted: bool, tally: Tally
) -> Iterator[tuple[int, list[str], str | None]]:
    """(first line, fields, error) of each record; a quote that is never closed is an `EbmcalError` with its line."""
    csv.field_size_limit(max(MAX_LINE, csv.field_size_limit()))
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
    records: Iterator[tuple[int, list[str], str | None]], columns: list[str], tally: Tally
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
    rows = _json_line_rows(lines, tally)
    head = list(itertools.islice(rows, 1))
    while head and head[-1].error is not None:
        following = next(rows, None)
        if following is None:
            raise EbmcalError(f"line {head[0].place}: {head[0].error}; no line is a JSON object.")
        head.append(following)
    if not head:
        raise EbmcalError("the file is empty; expected one JSON object per line.")
    return Table(list(_flat_names(head[-1].values)), itertools.chain(head, rows))


def _json_line_rows(lines: Iterator[str], tally: Tally) -> Iterator[RawRow]:
    number = 0
    for line, content in enumerate(lines, start=1):
        if not content.strip():
            tally.add("notes", "blank lines", line)
            continue
        yield _json_row(number, line, content)
        number += 1


def _json_row(number: int, line: int, content: str) -> RawRow:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        return RawRow(number, line, {}, f"not valid JSON ({error})")
    if not isinstance(value, dict):
        return RawRow(number, line, {}, f"a JSON {type(value).__name__}; expected an object with named fields")
    return RawRow(number, line, value)


def json_table(lines: Iterator[str], tally: Tally) -> Table:
    """JSON: a list of objects, one list of them inside an object, or an object of columns; also JSON lines."""
    content = "".join(_limited(lines))
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        if content.lstrip().startswith("["):
            raise EbmcalError(f"not valid JSON ({error}).") from error
        table = json_lines_table(io.StringIO(content, newline=""), tally)
        return Table(table.columns, (row._replace(place=row.number) for row in table.rows))
    objects = _objects(value)
    if objects is None:
        raise EbmcalError("expected a list of JSON objects with named fields, or columns of equal length.")
    names = list(_flat_names(objects[0])) if objects else []
    return Table(names, (RawRow(i, i, value) for i, value in enumerate(objects)))


def _limited(lines: Iterator[str]) -> Iterator[str]:
    n_characters = 0
    for line in lines:
        n_characters += len(line)
        if n_characters > MAX_JSON:
            raise EbmcalError(
                f"the file is larger than {MAX_JSON >> 30} GB; JSON is read as a whole. Save it as JSONL."
            )
        yield line


def _objects(value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        columns = list(value.values())
        if len(columns) == 1 and all(isinstance(row, dict) for row in columns[0]):
            value = columns[0]
        elif len({len(column) for column in columns}) == 1:
            value = [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return value if isinstance(value, list) and all(isinstance(row, dict) for row in value) else None


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
