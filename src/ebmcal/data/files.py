"""Files and Arrow tables → rows of values: CSV, TSV, JSON lines, JSON, Parquet and plain lines.

`TableSource.open` yields column names and rows; `as_text` and `as_label` clean single values. Each irregularity is an
error, an error row, or counted in a `Tally`, which the audit prints. Errors do not name the file: callers add it.

The `csv` module in strict mode is used because pandas fills short rows with empty values and both pandas and pyarrow
rewrite fields with unmatched quotes, without a word. All formats except JSON are read in bounded memory.
"""

import codecs
import contextlib
import csv
import difflib
import gzip
import hashlib
import io
import itertools
import json
import math
import re
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ebmcal.errors import EbmcalError, error_context, unknown_name

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet",
    ".txt": "txt",
}  # fmt: skip
LINE_FORMATS = ("csv", "tsv", "glue", "jsonl", "txt", "lines")  # messages name lines from 1; else rows from 0
SEPARATORS = (",", ";", "\t", "|")

#: A visible character, in a form that all regular expression dialects understand: no space, control character or BOM.
INK = r"[^\s\x00-\x20\x7f-\xa0\ufeff]"

#: Reasons in the tally that other modules look up.
NOT_UTF8, NUL, SPACES = "characters that are not UTF-8", "NUL characters", "spaces around the label"
NOT_UTF8_LABEL = "a label that is not UTF-8"

#: Advice for files with bytes that are not UTF-8.
PASS_ENCODING = (
    "Pass the encoding of the file (--encoding cp1252 for most files from Windows or Excel, latin-1, …), or utf-8 to "
    "replace the invalid characters."
)

MAX_LABELS = 1000
N_PLACES = 5  # lines or rows remembered per reason
_BATCH = 512  # rows; a text may have 100,000 characters
_MAX_FIELD = 2**31 - 1  # characters; the csv module stops at 131,072
# Bytes that are not UTF-8 are decoded as lone surrogates ("surrogateescape"); JSON escapes can spell them out.
_SURROGATES = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_WHOLE_FLOAT = re.compile(r"^(-?[0-9]{1,18})\.0+$")


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read. A `text` of None becomes "text", "sentence" or the only column, see `resolve`."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None

    def names(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.text, self.pair, self.label, self.id) if name is not None]

    def texts(self) -> list[str]:
        """The text column, and that of the second text of a pair."""
        return [name for name in (self.text, self.pair) if name is not None]

    def resolve(self, present: Sequence[str]) -> "Columns":
        """Fill in the text column and check that each column exists once in `present`.

        >>> Columns(label="y").resolve(["sentence", "y"]).text
        'sentence'
        """
        usual = [name for name in ("text", "sentence") if name in present] or ["text"]
        columns = replace(self, text=self.text or (present[0] if len(present) == 1 else usual[0]))
        roles = {"text": columns.text, "text_pair": columns.pair, "label": columns.label, "id": columns.id}
        for role, name in roles.items():
            if name is None:
                continue
            if role != "id" and list(roles.values()).index(name) != list(roles).index(role):
                raise EbmcalError(f"Column {name!r} was given twice, also as {role}_column; use two columns.")
            if name not in present:
                shown = [column if len(column) <= 60 else column[:57] + "..." for column in present[:30]]
                option = f"{role}_column (--{role.replace('_', '-')}-column)"
                raise EbmcalError(f"{unknown_name('column', name, shown)} Name the right one with {option}.")
            if (n := list(present).count(name)) > 1:
                raise EbmcalError(f"{n} columns are named {name!r}; rename all but one.")
        return columns


class Tally:
    """Counts by group ("left_out", "cleaned", "notes") and reason, with the first places; `unit` is "line" or "row"."""

    def __init__(self, unit: str = "row") -> None:
        self.unit = unit
        self._groups: dict[str, dict[str, dict[str, Any]]] = {"left_out": {}, "cleaned": {}, "notes": {}}

    def add(self, group: str, reason: str, place: int) -> None:
        entry = self._groups[group].setdefault(reason, {"count": 0, "first": []})
        entry["count"] += 1
        if len(entry["first"]) < N_PLACES:
            entry["first"].append(place)

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Group → reason → {"count", "first"}."""
        return {group: dict(sorted(reasons.items())) for group, reasons in self._groups.items()}


def as_text(value: Any, column: str, place: int, tally: Tally) -> str:
    """A text; null becomes "", numbers are written out, lists and objects are an error."""
    if type(value) is not str:
        if isinstance(value, list | tuple | dict | bytes):
            kind = {"dict": "an object", "bytes": "binary data"}.get(type(value).__name__, "a list")
            raise EbmcalError(
                f"Column {column!r} has {kind} at {tally.unit} {place}; expected strings or numbers. Choose another "
                "column or flatten this one."
            )
        value = "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
    if "\0" in value:
        tally.add("cleaned", NUL, place)
        value = value.replace("\0", " ")
    if not value.isascii() and _SURROGATES.search(value):
        tally.add("cleaned", NOT_UTF8, place)
        value = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


def as_label(value: Any, column: str, place: int, tally: Tally) -> str | None:
    """A label as a string, None if it is missing; 1.0 and "1.0" are the class "1"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not value.isascii() and _SURROGATES.search(value):
        tally.add("cleaned", NOT_UTF8_LABEL, place)
    written = as_text(value, column, place, tally)
    label = written.strip()
    if label != written and label:
        tally.add("cleaned", SPACES, place)
    return (_WHOLE_FLOAT.sub(r"\1", label) if "." in label else label) or None


def is_empty(texts: str | Sequence[str]) -> bool:
    """Whether a text, or one of a pair, has only spaces.

    >>> is_empty(" "), is_empty(("a", "")), is_empty("a")
    (True, True, False)
    """
    return not all(str(text).strip() for text in ([texts] if isinstance(texts, str) else texts))


def row_key(text: str, pair: str | None = None) -> int:
    """64 bits that identify the content of a row; equal texts have equal keys."""
    content = f"{len(text)} {text}{pair or ''}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def infer_label_names(values: Sequence[str]) -> tuple[str, ...]:
    """Class names from the distinct labels of a source: integers in numeric order, other names sorted."""
    if len(values) > MAX_LABELS:
        raise EbmcalError(
            f"The label column has {len(values):,} distinct values ({listed(values, 3)}); expected at most "
            f"{MAX_LABELS:,} classes. Choose another label column."
        )
    numbers = [value for value in values if _INTEGER.fullmatch(value)]
    if numbers and len(numbers) < len(values):
        names = [value for value in values if value not in numbers]
        raise EbmcalError(f"The labels mix numbers ({listed(numbers)}) and names ({listed(names)}). Use one kind.")
    are_plain = all(str(int(value)) == value for value in numbers)  # "01" is a name, not the number 1
    return tuple(sorted(values, key=int if numbers and are_plain else None))


def class_map(names: Sequence[str], by_number: bool) -> dict[str, int]:
    """Label as written → class. With `by_number` and names that are words, "0", "1", … are classes and "-1" is none.

    >>> class_map(("no", "yes"), by_number=True), class_map(("-1", "1"), by_number=True)
    ({'no': 0, 'yes': 1, '0': 0, '1': 1, '-1': -1, '-': -1}, {'-1': 0, '1': 1})
    """
    mapping = {name: i for i, name in enumerate(names)}
    if by_number and not any(_INTEGER.fullmatch(name) for name in names):
        # "-1" and "-" are how the hub and GLUE write a missing label
        mapping |= {str(i): i for i in range(len(names))} | {"-1": -1, "-": -1}
    return mapping


def listed(values: Iterable[str], n: int = 5) -> str:
    """Some values, quoted, for a message."""
    values = list(values)
    return ", ".join(repr(value[:60]) for value in values[:n]) + (", …" if len(values) > n else "")


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


@dataclass(frozen=True)
class TableSource:
    """A table to read: a file ("-" is standard input), or an Arrow `table` in memory.

    `format`: a value of `SUFFIXES`, "glue" (TSV without quoting) or "lines" (text lines, also blank ones). `header`
    names the columns of files without a header line; `label_names` are the classes, if they are known.
    """

    name: str
    path: Path | None = None
    format: str = "arrow"
    header: tuple[str, ...] | None = None
    encoding: str | None = None
    table: "pa.Table | None" = field(default=None, compare=False)
    label_names: tuple[str, ...] = ()

    @classmethod
    def from_path(cls, path: Path, encoding: str | None = None) -> "TableSource":
        """A user's file; the format follows from its suffix."""
        check_file(path)
        check_encoding(encoding)
        return cls(str(path), path, format_of(path), encoding=encoding)

    @property
    def unit(self) -> str:
        """What `RawRow.place` counts."""
        return "line" if self.format in LINE_FORMATS else "row"

    def resolve(self, columns: Columns) -> Columns:
        """Fill in and check the columns; reads the header only."""
        with error_context(self.name), self.open(columns, Tally()) as table:
            if self.encoding is None and (odd := [name for name in table.columns if _SURROGATES.search(name)]):
                name = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", odd[0])
                raise EbmcalError(f"The column name {name[:60]!r} is not UTF-8. {PASS_ENCODING}")
            return columns.resolve(table.columns)

    @contextlib.contextmanager
    def open(self, columns: Columns, tally: Tally, *, all_columns: bool = False) -> Iterator[Table]:
        """The rows with at least these columns; Parquet files with `all_columns` only if requested."""
        if self.table is not None:
            yield Table(self.table.column_names, _arrow_rows(self.table.to_batches(max_chunksize=_BATCH)))
        elif self.format == "parquet":
            with _open_parquet(self.path, None if all_columns else columns.names()) as table:
                yield table
        else:
            with _open_lines(self.path or Path("-"), tally, self.encoding) as lines:
                yield self._parse(lines, columns, tally)

    def _parse(self, lines: Iterator[str], columns: Columns, tally: Tally) -> Table:
        if self.format in ("jsonl", "json"):
            return (_json_lines_table if self.format == "jsonl" else _json_table)(lines)
        if self.format in ("txt", "lines"):
            return _line_table(lines, columns.text or "text", keep_blank=self.format == "lines")
        return _delimited_table(
            lines, tally, "," if self.format == "csv" else "\t", self.format != "glue", self.header, columns.names()
        )


def format_of(path: Path) -> str:
    """The format of a file by its suffix; text formats may be compressed (.gz)."""
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
            inside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
            close = " or ".join(map(repr, difflib.get_close_matches(path.name, inside, n=3, cutoff=0.5)))
            found = f"Its directory has {', '.join(inside[:8])}." if inside else "Its directory is empty or missing."
            raise EbmcalError(f"{path} does not exist. {f'Did you mean {close}?' if close else found}")
        if not path.is_file():
            raise EbmcalError(f"{path} is not a regular file. It is read more than once, so it cannot be a pipe.")
        if path.stat().st_size == 0:
            raise EbmcalError(f"{path} is empty (0 bytes).")
    except OSError as error:
        raise EbmcalError(f"{path} cannot be read: {error.strerror or error}.") from error


def check_encoding(encoding: str | None) -> None:
    """Raise unless Python knows the encoding, as one of texts."""
    try:
        "".encode(encoding or "utf-8")  # rejects encodings of bytes, such as hex
    except (LookupError, ValueError) as error:
        raise EbmcalError(f"Unknown encoding {encoding!r}. Common ones are utf-8, utf-16, latin-1, cp1252.") from error


@contextlib.contextmanager
def _open_lines(path: Path, tally: Tally, encoding: str | None = None) -> Iterator[Generator[str, None, None]]:
    """The lines of a file, decompressed if it ends in .gz; "-" is standard input."""
    try:
        with contextlib.ExitStack() as stack:
            if str(path) == "-":
                raw: Any = sys.stdin.buffer
                raw = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
            elif path.suffix.lower() == ".gz":
                raw = stack.enter_context(io.BufferedReader(stack.enter_context(gzip.open(path))))
            else:
                raw = stack.enter_context(open(path, "rb"))
            yield stack.enter_context(contextlib.closing(_decode_lines(raw, tally, encoding)))
    except (OSError, EOFError, zlib.error) as error:
        raise EbmcalError(f"the file cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _decode_lines(
    raw: "io.BufferedReader[Any]", tally: Tally, encoding: str | None = None
) -> Generator[str, None, None]:
    r"""The lines of a binary stream, with their line ends (\n, \r\n or \r).

    Without `encoding`: UTF-8 with or without BOM, where invalid bytes become lone surrogates for `as_text` to count.
    """
    is_utf8 = encoding is None or codecs.lookup(encoding).name == "utf-8"
    head = raw.peek(4096)[:4096] if is_utf8 else b""
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"PAR1", b"PK\x03\x04")) or head.count(0) > len(head) // 4:
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


def _delimited_table(
    lines: Iterator[str], tally: Tally, separator: str, quoted: bool, header: Sequence[str] | None, wanted: list[str]
) -> Table:
    """Rows of CSV or TSV. Rows with a wrong number of fields or unmatched quotes become error rows.

    If the header is a single column without the `wanted` names, the separator that it contains is used instead.
    """
    n_blank = 0
    if header is None:
        while not (first := next(lines, "")).strip():
            if not first:
                raise EbmcalError("the file is empty; expected a first line with the column names.")
            n_blank += 1
        names = [name.strip().strip('"') for name in first.split(separator)]
        if quoted and len(names) == 1 and not (wanted and set(wanted) <= set(names)):
            separator = next((mark for mark in SEPARATORS if mark in first), separator)
            if separator in first:
                tally.add("notes", f"columns separated by {separator!r}", n_blank + 1)
        lines = itertools.chain([first], lines)
    records = _records(lines, separator, quoted, n_blank + 1)
    if header is None:
        _, header, problem = next(records)
        if problem:
            raise EbmcalError("the header line has unmatched quotes. Correct the first line.")
    columns = [column.strip() for column in header]

    def rows() -> Iterator[RawRow]:
        number = itertools.count()
        for line, fields, problem in records:
            if problem is None and len(fields) != len(columns):
                problem = "too few fields" if len(fields) < len(columns) else "too many fields"
            yield RawRow(next(number), line, {} if problem else dict(zip(columns, fields, strict=True)), problem)

    return Table(columns, rows())


def _records(
    lines: Iterator[str], separator: str, quoted: bool, first: int
) -> Iterator[tuple[int, list[str], str | None]]:
    """(first line, fields, error) of each record; a quote that is never closed is an `EbmcalError` with its line."""
    csv.field_size_limit(_MAX_FIELD)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    # strict: a misplaced quote is an error instead of joining rows
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    while True:
        fields, problem, line = list[str](), None, reader.line_num + first
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
            is_one_line = reader.line_num + first == line + 1
            problem = "unmatched quotes" if is_one_line else "unmatched quotes that join several lines"
        if fields or problem:
            yield line, fields, problem


def _line_table(lines: Iterator[str], column: str, keep_blank: bool) -> Table:
    """One text per line, numbered by line."""
    chosen = ((i, line) for i, line in enumerate(lines) if keep_blank or line.strip())
    return Table([column], (RawRow(i, i + 1, {column: line.rstrip("\r\n")}) for i, line in chosen))


def _json_lines_table(lines: Iterator[str]) -> Table:
    """One JSON object per line; other lines become error rows. The first object has the columns."""

    def read() -> Iterator[RawRow]:
        number = itertools.count()
        for line, content in enumerate(lines, start=1):
            if not content.strip():
                continue
            try:
                value, error = json.loads(content), None
            except (ValueError, RecursionError) as problem:
                value, error = {}, f"not valid JSON ({problem})"
            if not isinstance(value, dict):
                value, error = {}, f"a JSON {type(value).__name__}; expected an object with named fields"
            yield RawRow(next(number), line, value, error)

    rows, head = read(), list[RawRow]()
    while not head or head[-1].error is not None:
        row = next(rows, None)
        if row is None:
            found = f"line {head[0].place}: {head[0].error}" if head else "the file is empty"
            raise EbmcalError(f"{found}; expected one JSON object per line.")
        head.append(row)
    return Table(list(head[-1].values), itertools.chain(head, rows))


def _json_table(lines: Iterator[str]) -> Table:
    """JSON: a list of objects, one list of them inside an object, or an object of columns; also JSON lines."""
    content = "".join(lines)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        if content.lstrip().startswith("["):
            raise EbmcalError(f"not valid JSON ({error}).") from error
        table = _json_lines_table(io.StringIO(content, newline=""))
        return Table(table.columns, (row._replace(place=row.number) for row in table.rows))
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        columns = list(value.values())
        if len(columns) == 1 and all(isinstance(row, dict) for row in columns[0]):
            value = columns[0]
        elif len({len(column) for column in columns}) == 1:
            value = [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise EbmcalError("expected a list of JSON objects with named fields, or columns of equal length.")
    return Table(list(value[0]) if value else [], (RawRow(i, i, row) for i, row in enumerate(value)))


@contextlib.contextmanager
def _open_parquet(path: Path | None, columns: list[str] | None) -> Iterator[Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield Table(file.schema_arrow.names, _arrow_rows(file.iter_batches(_BATCH, columns=columns)))
    except EbmcalError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = str(error)[:300] or type(error).__name__
        raise EbmcalError(f"not a complete Parquet file: {reason}. Save it again.") from error


def _arrow_rows(batches: "Iterator[pa.RecordBatch] | list[pa.RecordBatch]") -> Iterator[RawRow]:
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    return (RawRow(i, i, values) for i, values in enumerate(rows))
