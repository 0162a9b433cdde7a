"""Delimited text and JSON lines → rows, in bounded memory. Every oddity of a file is an error or a count in the tally.

BOM, invalid UTF-8, NUL bytes and any line ending are taken care of.
"""

import contextlib
import csv
import io
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
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


CSV, TSV, GLUE_TSV = Dialect(",", True), Dialect("\t", True), Dialect("\t", False)


def delimited_header(path: Path, dialect: Dialect) -> list[str]:
    """The column names, after checking that there is a header at all."""
    if dialect.header:
        return list(dialect.header)
    with contextlib.closing(_records(path, dialect, Tally("line"))) as records:
        first = next((fields for _, fields in records if fields != []), None)
    if first is None:
        raise EbmcalError(f"{path} is empty; a first line with the column names was expected.")
    if first is _BROKEN:
        raise EbmcalError(f"{path}: the quotes of the header line do not match. Mend the first line.")
    return [name.strip() for name in first]


def read_delimited(path: Path, dialect: Dialect, columns: Columns, tally: Tally) -> Iterator[SourceRow]:
    """Rows of a CSV or TSV file; lines with too few or too many fields are set aside in the tally."""
    header = delimited_header(path, dialect)
    columns.check(path, header, delimiter_hint(header, dialect))
    places = [None if name is None else header.index(name) for name in (columns.text, columns.pair, columns.label)]
    where, kept = (header.index(columns.where[0]), columns.where[1]) if columns.where else (None, None)
    number, has_header = -1, dialect.header is None
    for line, fields in _records(path, dialect, tally):
        if fields == []:
            tally.add("met", "blank lines", line)
            continue
        if has_header:
            has_header = False
            continue
        number += 1
        if fields is _BROKEN or len(fields) != len(header):
            tally.add("set_aside", _trouble(fields, header), line)
            continue
        if where is not None and fields[where] != kept:
            continue
        yield as_row(number, [None if i is None else fields[i] for i in places], columns, line, tally)


_BROKEN = ["quotes that do not match"]  # stands, by identity, for the fields of a record that cannot be parsed


def _trouble(fields: list[str], header: list[str]) -> str:
    if fields is _BROKEN:
        return _BROKEN[0]
    return "too few fields" if len(fields) < len(header) else "too many fields"


def _records(path: Path, dialect: Dialect, tally: Tally) -> Generator[tuple[int, list[str]], None, None]:
    """(first line, fields) of each record; a quote that is never closed is an error that says where it opened."""
    csv.field_size_limit(max(MAX_LINE, csv.field_size_limit()))
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    # strict: a quote in the wrong place is noticed instead of gluing rows together
    reader = csv.reader(text_lines(path, tally), delimiter=dialect.delimiter, quoting=quoting, strict=True)
    line = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "expected after" not in str(error):
                raise _open_quote(path, line) from error
            fields = _BROKEN
        if reader.line_num > line:
            tally.add("met", "rows over several lines", line)
        yield line, fields
        line = reader.line_num + 1


def _open_quote(path: Path, line: int) -> EbmcalError:
    return EbmcalError(
        f"{path}, line {line}: a field opens with a quote that is never closed, so the lines after it cannot be told "
        'apart. Write quotes inside a field twice ("") and quote the whole field, or save the file as JSONL or Parquet.'
    )


def delimiter_hint(header: list[str], dialect: Dialect) -> str:
    """A guess for the error about a missing column: the file may use another separator."""
    if len(header) == 1 and any(mark in header[0] for mark in ",;\t|"):
        return f" The columns must be separated by {dialect.delimiter!r}; this header looks otherwise."
    return ""


def jsonl_header(path: Path) -> list[str]:
    """The keys of the first object."""
    for _, value in _objects(path, Tally("line")):
        return list(value)
    raise EbmcalError(f"{path} is empty; one JSON object a line was expected.")


def read_jsonl(path: Path, columns: Columns, tally: Tally) -> Iterator[SourceRow]:
    """Rows of a JSON-lines file; an object without the text (or pair) key is set aside in the tally."""
    columns.check(path, jsonl_header(path))
    for number, (line, value) in enumerate(_objects(path, tally)):
        if columns.text not in value or (columns.pair and columns.pair not in value):
            tally.add("set_aside", "too few fields", line)
            continue
        if columns.where and str(value.get(columns.where[0])) != columns.where[1]:
            continue
        values = [None if name is None else value.get(name) for name in (columns.text, columns.pair, columns.label)]
        yield as_row(number, values, columns, line, tally)


def _objects(path: Path, tally: Tally) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text_lines(path, tally), start=1):
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


def text_lines(path: Path, tally: Tally) -> Iterator[str]:
    """The lines of a file with their endings; bytes that are not UTF-8 arrive as lone surrogates."""
    try:
        with open(path, "rb") as raw:
            _refuse_other_encodings(path, raw.peek(4096)[:4096])
            # utf-8-sig drops a BOM; newline="" ends a line at \n, \r\n or \r and leaves the ending in place
            handle = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
            yield from _bounded(path, handle, tally)
    except OSError as error:
        raise EbmcalError(f"Could not read {path}: {error.strerror or error}.") from error


def _bounded(path: Path, handle: io.TextIOWrapper, tally: Tally) -> Iterator[str]:
    number = 0
    while line := handle.readline(MAX_LINE):
        number += 1
        if len(line) >= MAX_LINE:
            raise EbmcalError(f"{path}, line {number} is longer than {MAX_LINE:,} characters: not a text table.")
        if "\0" in line:  # the csv module of Python 3.10 cannot take them
            tally.add("cleaned", "NUL characters turned to spaces", number)
            line = line.replace("\0", " ")
        yield line


def _refuse_other_encodings(path: Path, head: bytes) -> None:
    if head.startswith(_WIDE_BOMS) or head.count(0) > len(head) // 4:
        raise EbmcalError(
            f"{path} is not UTF-8 text (it looks like UTF-16 or a binary file). Save it as UTF-8, "
            f"for example: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}"
        )
