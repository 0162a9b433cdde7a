"""Delimited text, JSON lines, JSON and plain lines → rows. Every oddity of a file is an error or a count in the tally.

BOM, invalid UTF-8, NUL bytes and any line ending are taken care of. All but JSON is read in bounded memory.
"""

import codecs
import contextlib
import csv
import io
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ebmcal.data.values import Columns, SourceRow, Tally, as_row
from ebmcal.errors import EbmcalError

MAX_LINE = 20_000_000  # characters; a longer "line" is a binary file or a file with no line ends
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written; `header` names the columns when the file has no header line."""

    delimiter: str
    quoted: bool
    header: tuple[str, ...] | None = None
    encoding: str | None = None  # UTF-8, with what is not replaced, where none is named


CSV, TSV, GLUE_TSV = Dialect(",", True), Dialect("\t", True), Dialect("\t", False)
MARKS = (",", ";", "\t", "|")
MAX_JSON = 1 << 30  # bytes; JSON is read whole


def as_written(path: Path, dialect: Dialect, wanted: Sequence[str]) -> Dialect:
    """The dialect with the separator that the header shows, where the usual one finds neither columns nor a cut."""
    header = delimited_header(path, dialect)
    if len(header) > 1 or all(name in header for name in wanted):
        return dialect
    others = (replace(dialect, delimiter=mark) for mark in MARKS if mark in header[0])
    return next((other for other in others if len(delimited_header(path, other)) > 1), dialect)


def delimited_header(path: Path, dialect: Dialect) -> list[str]:
    """The column names, after checking that there is a header at all."""
    if dialect.header:
        return list(dialect.header)
    with contextlib.closing(text_lines(path, Tally("line"), dialect.encoding)) as lines:
        first = next((fields for _, fields in records(lines, path, dialect, Tally("line")) if fields != []), None)
    if first is None:
        raise EbmcalError(f"{path} is empty; a first line with the column names was expected.")
    if first is BROKEN:
        raise EbmcalError(f"{path}: the quotes of the header line do not match. Mend the first line.")
    return [name.strip() for name in first]


def read_delimited(path: Path, dialect: Dialect, columns: Columns, tally: Tally) -> Iterator[SourceRow]:
    """Rows of a CSV or TSV file; lines with too few or too many fields are set aside in the tally."""
    usual, dialect = dialect, as_written(path, dialect, columns.wanted())
    if dialect != usual:
        tally.add("met", f"header line with columns separated by {dialect.delimiter!r}", 1)
    header = delimited_header(path, dialect)
    columns.check(path, header, delimiter_hint(header, dialect))
    places = [None if name is None else header.index(name) for name in (columns.text, columns.pair, columns.label)]
    where, kept = (header.index(columns.where[0]), columns.where[1]) if columns.where else (None, None)
    number, has_header = -1, dialect.header is None
    for line, fields in records(text_lines(path, tally, dialect.encoding), path, dialect, tally):
        if fields == []:
            tally.add("met", "blank lines", line)
            continue
        if has_header:
            has_header = False
            continue
        number += 1
        if fields is BROKEN or len(fields) != len(header):
            tally.add("set_aside", trouble_with(fields, header), line)
            continue
        if where is not None and fields[where] != kept:
            continue
        yield as_row(number, [None if i is None else fields[i] for i in places], columns, line, tally)


BROKEN = ["quotes that do not match"]  # stands, by identity, for the fields of a record that cannot be parsed


def trouble_with(fields: list[str], header: list[str]) -> str:
    """Why a record is no row of the table."""
    if fields is BROKEN:
        return BROKEN[0]
    return "too few fields" if len(fields) < len(header) else "too many fields"


def records(
    lines: Iterator[str], path: object, dialect: Dialect, tally: Tally
) -> Generator[tuple[int, list[str]], None, None]:
    """(first line, fields) of each record; a quote that is never closed is an error that says where it opened."""
    csv.field_size_limit(max(MAX_LINE, csv.field_size_limit()))
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    # strict: a quote in the wrong place is noticed instead of gluing rows together
    reader = csv.reader(lines, delimiter=dialect.delimiter, quoting=quoting, strict=True)
    line = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "expected after" not in str(error):
                raise _open_quote(path, line) from error
            fields = BROKEN
        if reader.line_num > line:
            tally.add("met", "rows over several lines", line)
        yield line, fields
        line = reader.line_num + 1


def _open_quote(path: object, line: int) -> EbmcalError:
    return EbmcalError(
        f"{path}, line {line}: a field opens with a quote that is never closed, so the lines after it cannot be told "
        'apart. Write quotes inside a field twice ("") and quote the whole field, or save the file as JSONL or Parquet.'
    )


def delimiter_hint(header: list[str], dialect: Dialect) -> str:
    """A guess for the error about a missing column: the file may use another separator."""
    if len(header) == 1 and any(mark in header[0] for mark in ",;\t|"):
        return f" The columns must be separated by {dialect.delimiter!r}; this header looks otherwise."
    return ""


def json_header(path: Path, kind: str, encoding: str | None = None) -> list[str]:
    """The keys of the first object; those of objects inside it with dots, as in "meta.label"."""
    for _, value in objects_in(path, kind, Tally("line"), encoding):
        return list(_flat_names(value))
    raise EbmcalError(f"{path} is empty; {'one JSON object a line' if kind == 'jsonl' else 'a list'} was expected.")


def read_json_rows(path: Path, kind: str, columns: Columns, tally: Tally, encoding: str | None) -> Iterator[SourceRow]:
    """Rows of a file of JSON (lines); an object without the text (or pair) key is set aside in the tally."""
    columns.check(path, json_header(path, kind, encoding))
    for number, (line, value) in enumerate(objects_in(path, kind, tally, encoding)):
        if any(_find(value, name) is _ABSENT for name in (columns.text, columns.pair) if name):
            tally.add("set_aside", "too few fields", line)
            continue
        if columns.where and str(value.get(columns.where[0])) != columns.where[1]:
            continue
        found = [None if n is None else _find(value, n) for n in (columns.text, columns.pair, columns.label)]
        yield as_row(number, [None if v is _ABSENT else v for v in found], columns, line, tally)


_ABSENT = object()


def _find(value: Any, name: str) -> Any:
    """The field of an object; a name with dots goes into objects and lists inside it."""
    if isinstance(value, dict) and name in value:
        return value[name]
    first, dot, rest = name.partition(".")
    if isinstance(value, list) and first.isdecimal() and int(first) < len(value):
        return _find(value[int(first)], rest) if dot else value[int(first)]
    return _find(value[first], rest) if dot and isinstance(value, dict) and first in value else _ABSENT


def _flat_names(value: Any, prefix: str = "") -> Iterator[str]:
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value[:10])
    for key, inner in items:
        yield f"{prefix}{key}"
        if isinstance(inner, dict | list) and prefix.count(".") < 5:
            yield from _flat_names(inner, f"{prefix}{key}.")


def objects_in(path: Path, kind: str, tally: Tally, encoding: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line or number, object) of a file of JSON lines, or of a whole JSON file."""
    if kind == "json":
        found = _whole_json(path, encoding)
        if found is not None:
            yield from enumerate(found, start=1)
            return
    for line, content in enumerate(text_lines(path, tally, encoding), start=1):
        if not content.strip():
            tally.add("met", "blank lines", line)
            continue
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise EbmcalError(f"{path}, line {line} is not JSON ({error}); one object a line was expected.") from error
        if not isinstance(value, dict):
            raise EbmcalError(f"{path}, line {line} is a JSON {type(value).__name__}, not an object with named fields.")
        yield line, value


def _whole_json(path: Path, encoding: str | None) -> list[dict[str, Any]] | None:
    """The objects of a JSON file: a list of them, a list inside an object, or columns; None where it has JSON lines."""
    if path.stat().st_size > MAX_JSON:
        raise EbmcalError(f"{path} is larger than {MAX_JSON >> 30} GB of JSON, which is read whole. Write it as JSONL.")
    try:
        value = json.loads("".join(text_lines(path, Tally("line"), encoding)))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        columns = list(value.values())
        if len(columns) == 1 and all(isinstance(row, dict) for row in columns[0]):
            value = columns[0]
        elif len({len(column) for column in columns}) == 1:
            value = [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise EbmcalError(f"{path} holds no list of JSON objects with named fields, nor columns of equal length.")
    return value


def read_lines(path: Path, columns: Columns, tally: Tally, encoding: str | None) -> Iterator[SourceRow]:
    """Rows of a text file, a text a line; blank lines are counted and left out."""
    for number, content in enumerate(text_lines(path, tally, encoding)):
        if content.strip():
            yield as_row(number, [content.rstrip("\r\n"), None, None], columns, number + 1, tally)
        else:
            tally.add("met", "blank lines", number + 1)


def text_lines(path: Path, tally: Tally, encoding: str | None = None) -> Generator[str, None, None]:
    """The lines of a file with their endings; bytes that are not of its encoding arrive as lone surrogates."""
    try:
        with open(path, "rb") as raw:
            yield from lines_in(raw, path, tally, encoding)
    except OSError as error:
        raise EbmcalError(f"Could not read {path}: {error.strerror or error}.") from error


def lines_in(raw: io.BufferedReader, path: object, tally: Tally, encoding: str | None = None) -> Iterator[str]:
    """The same of an open file or a pipe; `path` is its name in errors."""
    # utf-8-sig drops a BOM
    encoding = "utf-8-sig" if encoding is None or codecs.lookup(encoding).name == "utf-8" else encoding
    if encoding == "utf-8-sig":
        _refuse_other_encodings(path, raw.peek(4096)[:4096])
    # newline="" ends a line at \n, \r\n or \r and leaves the ending in place
    handle = io.TextIOWrapper(raw, encoding=encoding, errors="surrogateescape", newline="")
    try:
        yield from _bounded(path, handle, tally)
    except UnicodeError as error:
        raise EbmcalError(f"{path} is not of the encoding {encoding}: {error}. Name another one (encoding).") from error
    finally:
        handle.detach()  # whoever opened it closes it


def _bounded(path: object, handle: io.TextIOWrapper, tally: Tally) -> Iterator[str]:
    number = 0
    while line := handle.readline(MAX_LINE):
        number += 1
        if len(line) >= MAX_LINE:
            raise EbmcalError(f"{path}, line {number} is longer than {MAX_LINE:,} characters: not a text table.")
        if "\0" in line:  # the csv module of Python 3.10 cannot take them
            tally.add("cleaned", "NUL characters turned to spaces", number)
            line = line.replace("\0", " ")
        yield line


def _refuse_other_encodings(path: object, head: bytes) -> None:
    if head.startswith(_WIDE_BOMS) or head.count(0) > len(head) // 4:
        name = Path(str(path)).name
        raise EbmcalError(
            f"{path} is not UTF-8 text (it looks like UTF-16 or a binary file). Name its encoding (--encoding utf-16) "
            f"or save it as UTF-8, for example: iconv -f UTF-16 -t UTF-8 {name} > utf8-{name}"
        )
