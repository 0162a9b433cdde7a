"""`TableSource`: files of one format, or an Arrow table in memory, read row by row through one interface."""

import contextlib
import difflib
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.data.text_files import (
    RawRow,
    Table,
    check_encoding,
    delimited_table,
    json_lines_table,
    json_table,
    line_table,
    read_lines,
)
from ebmcal.data.values import Columns, Tally
from ebmcal.errors import EbmcalError, error_context
from ebmcal.storage import file_checksum, fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet",
    ".txt": "txt",
}  # fmt: skip
LINE_FORMATS = ("csv", "tsv", "glue", "jsonl", "txt")  # messages name lines from 1; for other formats rows from 0
_BATCH = 512  # rows; a text may have 100,000 characters


@dataclass(frozen=True)
class TableSource:
    """A table to read: `paths` of one `format`, or an Arrow `table` in memory.

    Formats: the values of `SUFFIXES`, "glue" (TSV without quoting) and "arrow" (Arrow streams, as `datasets` writes
    them). `header` names the columns of files without a header line; `label_names` are the classes, if they are known.
    """

    name: str
    paths: tuple[Path, ...] = ()
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
        return cls(str(path), (path,), format_of(path), encoding=encoding)

    @property
    def unit(self) -> str:
        """What `RawRow.place` counts."""
        return "line" if self.format in LINE_FORMATS else "row"

    def resolve(self, columns: Columns) -> Columns:
        """Fill in and check the columns; reads the headers only."""
        resolved = columns
        for path in self.paths or (None,):
            with error_context(path or self.name), self._open(path, Tally(), columns) as table:
                resolved = columns.resolve(table.columns)
        return resolved

    def rows(self, columns: Columns, tally: Tally) -> Iterator[RawRow]:
        """All rows, numbered across files, with at least these columns. Errors do not name the source."""
        start = 0
        for path in self.paths or (None,):
            number = -1
            with self._open(path, tally, columns) as table:
                for row in table.rows:
                    number = row.number
                    yield row._replace(number=start + number, place=start + row.place) if start else row
            start += number + 1

    def fingerprint(self) -> str:
        """A key of the content of the files and of how they are read."""
        return fingerprint([file_checksum(path) for path in self.paths], self.format, self.header, self.encoding)

    @contextlib.contextmanager
    def _open(self, path: Path | None, tally: Tally, columns: Columns) -> Iterator[Table]:
        if path is None:
            assert self.table is not None
            yield arrow_table(self.table.schema, self.table.to_batches(), columns)
        elif self.format in ("parquet", "arrow"):
            with _open_arrow(path, self.format, columns) as table:
                yield table
        else:
            with open_binary(path) as raw, contextlib.closing(read_lines(raw, tally, self.encoding)) as lines:
                yield self._parse(lines, tally, columns)

    def _parse(self, lines: Iterator[str], tally: Tally, columns: Columns) -> Table:
        if self.format == "jsonl":
            return json_lines_table(lines, tally)
        if self.format == "json":
            return json_table(lines, tally)
        if self.format == "txt":
            return line_table(lines, tally, columns.text or "text")
        return delimited_table(
            lines,
            tally,
            separator="," if self.format == "csv" else "\t",
            quoted=self.format != "glue",
            header=self.header,
            wanted=columns.names(),
        )


@contextlib.contextmanager
def open_binary(path: Path) -> Iterator["io.BufferedReader[Any]"]:
    """Open a file for reading, decompressed if it ends in .gz."""
    try:
        with open(path, "rb") as raw:
            if path.suffix.lower() != ".gz":
                yield raw
            else:
                with gzip.GzipFile(fileobj=raw) as unpacked, io.BufferedReader(unpacked) as buffered:
                    yield buffered
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise EbmcalError(f"the file cannot be read: {reason}.") from error


@contextlib.contextmanager
def _open_arrow(path: Path, format: str, columns: Columns) -> Iterator[Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if format == "parquet":
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                present = columns.wanted(file.schema_arrow.names)
                yield arrow_table(file.schema_arrow, file.iter_batches(_BATCH, columns=present), columns)
        else:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
                yield arrow_table(stream.schema, _validated(stream), columns)
    except EbmcalError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = str(error)[:300] or type(error).__name__
        raise EbmcalError(
            f"not a complete {format.capitalize()} file ({path.name}): {reason}. Save it again."
        ) from error


def _validated(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        batch.validate(full=True)  # a corrupt Arrow stream could point outside its buffers
        yield batch


def arrow_table(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", columns: Columns) -> Table:
    """Rows of Arrow record batches with the `columns` that are needed."""
    import pyarrow as pa

    present = columns.wanted(schema.names)
    for name in [name for name in columns.names() if name in schema.names]:
        kind = schema.field(schema.get_all_field_indices(name)[0]).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise EbmcalError(
                f"Column {name!r} has type {kind}; expected strings or numbers. Choose another column or convert it."
            )

    def rows() -> Iterator[RawRow]:
        number = 0
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH):
                part = batch.slice(start, _BATCH)
                lists = [_values(part.column(part.schema.get_field_index(name)), name) for name in present]
                for values in zip(*lists, strict=True):
                    yield RawRow(number, number, dict(zip(present, values, strict=True)))
                    number += 1

    return Table(list(schema.names), rows())


def _values(column: "pa.Array", name: str) -> list[Any]:
    import pyarrow as pa

    try:
        return column.to_pylist()
    except UnicodeDecodeError:  # written without validation: decode like text files, so that it is counted
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "surrogateescape") for value in raw]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise EbmcalError(f"Column {name!r} cannot be read as text ({error}). Convert it to strings.") from error


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
            inside = sorted(p.name for p in path.iterdir() if p.suffix.lower() in SUFFIXES)[:5]
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
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {' or '.join(repr(name) for name in close)}?"
    return f" Its directory contains {', '.join(names[:8]) or 'nothing'}."
