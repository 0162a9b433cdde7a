"""The input: rows of a file or of standard input with all of the user's columns, in chunks. No torch.

A row that cannot be read keeps its place and carries the reason: it becomes an error row of the output.
"""

import contextlib
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebmcal.data.columns import NOT_UTF8, Columns, Tally, as_text
from ebmcal.data.files import RawRow, Table, check_encoding, check_file, format_of, open_binary, read_lines
from ebmcal.data.tables import TableSource
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.storage import PathLike

STDIN = "-"
FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "lines")

#: JSON objects that are searched for columns; keys that appear later go into the column `other`.
PEEKED_ROWS = 1000

CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 4_000_000


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
    nested: Sequence[str] = ()  # of JSON: names such as meta.text that reach into objects
    schema: Any = None  # of Parquet
    is_complete: bool = True  # False: later JSON objects may have further keys

    def resolve(self, columns: Columns) -> Columns:
        """Fill in the text column and check that all columns exist."""
        with error_context(self.name):
            return columns.resolve([*self.columns, *(name for name in self.nested if name not in self.columns)])

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


def find_input_format(source: PathLike, given: str | None = None, encoding: str | None = None) -> str:
    """The format of an input: as given, by its suffix (also before .gz), or lines of text on standard input.

    Raises for a file that cannot be read and for an unknown format or encoding.

    >>> find_input_format("-"), find_input_format("-", "jsonl")
    ('lines', 'jsonl')
    """
    check_encoding(encoding)
    if given is not None and given not in FORMATS:
        raise unknown_name("input format", given, FORMATS)
    if str(source) == STDIN:
        if given == "parquet":
            raise EbmcalError("parquet cannot be read from standard input. Pass a file, or use jsonl.")
        return given or "lines"
    check_file(Path(source))
    found = given or format_of(Path(source))
    return "lines" if found == "txt" else found


def open_input(source: PathLike, format: str, columns: Columns, encoding: str | None = None) -> Input:
    """Open an input and read its header; the names of the `columns` help to find the separator."""
    name = "standard input" if str(source) == STDIN else str(source)
    tally = Tally("row" if format in ("json", "parquet") else "line")
    stream = _read(TableSource(name, Path(source), format, encoding=encoding), columns, tally)
    header = next(stream)
    if format in ("json", "jsonl"):
        peeked = list(itertools.islice(stream, PEEKED_ROWS))
        if not peeked:
            raise EbmcalError(f"{name}: there are no rows; expected JSON objects.")
        keys = list(dict.fromkeys(key for row in peeked for key in row.values))[:PEEKED_ROWS]
        is_complete = len(peeked) < PEEKED_ROWS and len(keys) < PEEKED_ROWS
        return Input(name, format, keys, itertools.chain(peeked, stream), tally, header, is_complete=is_complete)
    repeated = next((column for column in header if header.count(column) > 1), None)
    if repeated is not None:
        raise EbmcalError(f"{name}: {header.count(repeated)} columns are named {repeated!r}; rename all but one.")
    return Input(name, format, header, stream, tally, schema=_schema(source) if format == "parquet" else None)


def _schema(source: PathLike) -> Any:
    import pyarrow.parquet as pq

    return pq.read_schema(source)


def count_rows(source: str, format: str) -> int | None:
    """About how many rows a file has, for the progress bar; None if that is not cheap to find out."""
    if source == STDIN or source.lower().endswith(".gz") or format == "json":
        return None
    if format == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(source).num_rows)
    with open(source, "rb") as file:
        n_lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return max(n_lines - (format in ("csv", "tsv")), 1)


def _read(table: TableSource, columns: Columns, tally: Tally) -> Iterator[Any]:
    """The column names, then the rows, with values that every output format can store."""
    open_table = {"lines": _open_lines, "parquet": _open_parquet}.get(table.format, TableSource.open)
    with error_context(table.name), open_table(table, columns, tally) as (names, rows):
        yield _clean(names, 1, tally)
        for row in rows:
            try:
                row = row._replace(values=_clean(row.values, row.place, tally))
            except RecursionError:
                row = row._replace(values={}, error="the object is nested too deeply")
            yield row


@contextlib.contextmanager
def _open_lines(table: TableSource, _: Columns, tally: Tally) -> Iterator[Table]:
    """Like the format txt of `TableSource`, but a blank line is a row as well."""
    with open_binary(table.path or Path(STDIN)) as raw:
        lines = enumerate(read_lines(raw, tally, table.encoding))
        yield Table(["text"], (RawRow(i, i + 1, {"text": line.rstrip("\r\n")}) for i, line in lines))


@contextlib.contextmanager
def _open_parquet(table: TableSource, _: Columns, __: Tally) -> Iterator[Table]:
    """Like the format parquet of `TableSource`, but with all columns, also nested ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(table.path, page_checksum_verification=True) as file:
            rows = (values for batch in file.iter_batches(512) for values in batch.to_pylist())
            yield Table(list(file.schema_arrow.names), (RawRow(i, i, values) for i, values in enumerate(rows)))
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise EbmcalError(f"not a complete Parquet file: {str(error)[:300]}. Save it again.") from error


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
