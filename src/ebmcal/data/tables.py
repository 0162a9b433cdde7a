"""`TableSource`: a file or an Arrow table, read row by row through one interface. `store_table`: its rows as Arrow.

A file is converted once: the Arrow file in the cache directory is named by the content of the file and by the columns
that were read; `info.json` next to it, written last, marks it as complete and holds the counts of the audit.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.data.columns import Columns, Tally, as_label, as_text, row_key
from ebmcal.data.files import (
    LINE_FORMATS,
    RawRow,
    Table,
    check_encoding,
    check_file,
    delimited_table,
    find_value,
    format_of,
    json_lines_table,
    json_table,
    line_table,
    open_binary,
    read_lines,
)  # fmt: skip
from ebmcal.errors import EbmcalError, error_context
from ebmcal.progress import Reporter
from ebmcal.storage import (
    atomic_write,
    file_checksum,
    fingerprint,
    locked,
    read_json,
    remove_temporary_files,
    write_json,
)  # fmt: skip

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from datasets import Dataset

VERSION = 2  # increase it when reading changes
_BATCH = 512  # rows; a text may have 100,000 characters
_STORED_ROWS, _STORED_CHARACTERS = 4096, 4_000_000  # of a batch of the Arrow file
_ABSENT = object()


@dataclass(frozen=True)
class TableSource:
    """A table to read: a file, or an Arrow `table` in memory.

    `format`: a value of `SUFFIXES`, or "glue" (TSV without quoting). `header` names the columns of files without a
    header line; `label_names` are the classes, if they are known.
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
            return columns.resolve(table.columns)

    def fingerprint(self) -> str:
        """A key of the content of the file and of how it is read."""
        return fingerprint([file_checksum(self.path or "")], self.format, self.header, self.encoding)

    @contextlib.contextmanager
    def open(self, columns: Columns, tally: Tally) -> Iterator[Table]:
        """The rows with at least these columns. Errors do not name the source."""
        if self.path is None:
            assert self.table is not None
            yield _arrow_table(self.table.schema, self.table.to_batches(), columns)
        elif self.format == "parquet":
            with _open_parquet(self.path, columns) as table:
                yield table
        else:
            with open_binary(self.path) as raw, contextlib.closing(read_lines(raw, tally, self.encoding)) as lines:
                yield self._parse(lines, columns, tally)

    def _parse(self, lines: Iterator[str], columns: Columns, tally: Tally) -> Table:
        if self.format in ("jsonl", "json"):
            return (json_lines_table if self.format == "jsonl" else json_table)(lines, tally)
        if self.format == "txt":
            return line_table(lines, tally, columns.text or "text")
        return delimited_table(
            lines, tally, separator="," if self.format == "csv" else "\t", quoted=self.format != "glue",
            header=self.header, wanted=columns.names(),
        )  # fmt: skip


@contextlib.contextmanager
def _open_parquet(path: Path, columns: Columns) -> Iterator[Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield _arrow_table(file.schema_arrow, file.iter_batches(_BATCH, columns=columns.names()), columns)
    except EbmcalError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = str(error)[:300] or type(error).__name__
        raise EbmcalError(f"not a complete Parquet file ({path.name}): {reason}. Save it again.") from error


def _arrow_table(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", columns: Columns) -> Table:
    import pyarrow as pa

    present = [name for name in dict.fromkeys(columns.names()) if name in schema.names]
    for name in present:
        kind = schema.field(schema.get_all_field_indices(name)[0]).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise EbmcalError(
                f"Column {name!r} has type {kind}; expected strings or numbers. Choose another column or convert it."
            )

    def rows() -> Iterator[RawRow]:
        numbers = itertools.count()
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH):
                part = batch.slice(start, _BATCH)
                lists = [part.column(part.schema.get_field_index(name)).to_pylist() for name in present]
                for values, i in zip(zip(*lists, strict=True), numbers, strict=False):
                    yield RawRow(i, i, dict(zip(present, values, strict=True)))

    return Table(list(schema.names), rows())


@dataclass(frozen=True)
class StoredTable:
    """The rows of a source. `info` has the number of rows, the unit of places and the groups of the tally."""

    dataset: "Dataset"  # id, text, [text_pair], label (as written), key, place
    info: dict[str, Any]

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """Per row: label (as written, a categorical), key (64 bits of the texts), place, is_empty."""
        import pyarrow.compute as pc

        table = self.dataset.data.table
        frame = table.select(["key", "place"]).to_pandas()
        frame["label"] = table["label"].dictionary_encode().unify_dictionaries().to_pandas()
        frame["is_empty"] = False
        for name in [name for name in ("text", "text_pair") if name in table.column_names]:
            is_empty = pc.or_(pc.equal(pc.binary_length(table[name]), 0), pc.utf8_is_space(table[name]))
            frame["is_empty"] |= is_empty.to_numpy()
        return frame


def store_table(
    source: TableSource, columns: Columns, cache_dir: Path | None = None, reporter: Reporter | None = None
) -> StoredTable:
    """Convert a source to Arrow: a file in `cache_dir` (memory-mapped), or in memory."""
    import pyarrow as pa
    from datasets import Dataset

    if cache_dir is None or source.table is not None:
        sink = pa.BufferOutputStream()
        info = _convert(source, columns, sink)
        return StoredTable(Dataset.from_buffer(sink.getvalue()), info)
    directory = cache_dir / "data" / fingerprint(VERSION, source.fingerprint(), vars(columns))
    stored = _read_cached(directory)
    if stored is None:
        inform = (reporter or Reporter()).info
        with locked(directory, on_wait=lambda owner: inform(f"{source.name}: waiting for {owner}, which reads it too")):
            remove_temporary_files(directory)
            stored = _read_cached(directory)
            if stored is None:
                with atomic_write(directory / "data.arrow") as temporary:
                    with pa.OSFile(str(temporary), "wb") as file:
                        info = _convert(source, columns, file)
                    info["n_bytes"] = temporary.stat().st_size
                write_json(directory / "info.json", info)
                stored = StoredTable(Dataset.from_file(str(directory / "data.arrow")), info)
    return stored


def _read_cached(directory: Path) -> StoredTable | None:
    """The cached conversion; None if it is missing, incomplete or corrupt."""
    import pyarrow as pa
    from datasets import Dataset

    path = directory / "data.arrow"
    try:
        info = read_json(directory / "info.json")
        if info["n_bytes"] != path.stat().st_size:
            return None
        return StoredTable(Dataset.from_file(str(path)), info)
    except (EbmcalError, KeyError, TypeError, OSError, ValueError, pa.ArrowException):
        return None


def _convert(source: TableSource, columns: Columns, sink: Any) -> dict[str, Any]:
    """Write the rows as an Arrow stream and return the info."""
    import pyarrow as pa

    pair = [("text_pair", pa.string())] if columns.pair else []
    fields = [("id", pa.string()), ("text", pa.string()), *pair, ("label", pa.string())]
    schema = pa.schema([*fields, ("key", pa.uint64()), ("place", pa.int64())])
    tally, n_rows = Tally(source.unit), 0
    with error_context(source.name), pa.ipc.new_stream(sink, schema) as writer:
        for batch in _batches(_clean_rows(source, columns, tally)):
            lists = zip(zip(*batch, strict=True), schema.types, strict=True)
            writer.write_batch(pa.record_batch([pa.array(values, kind) for values, kind in lists], schema=schema))
            n_rows += len(batch)
    return {"file": Path(source.name).name, "rows": n_rows, "unit": source.unit, **tally.as_dict()}


def _clean_rows(source: TableSource, columns: Columns, tally: Tally) -> Iterator[tuple[Any, ...]]:
    """Rows in the order of the schema; rows that cannot be used are counted and left out."""
    names = columns.texts()
    with source.open(columns, tally) as table:
        for row in table.rows:
            if row.error is not None and source.format in ("json", "jsonl"):
                raise EbmcalError(f"{source.unit} {row.place}: {row.error}.")
            texts = [] if row.error else [find_value(row.values, name, _ABSENT) for name in names]
            if row.error or any(text is _ABSENT for text in texts):
                tally.add("left_out", row.error or "too few fields", row.place)
                continue
            cleaned = [as_text(text, name, row.place, tally) for text, name in zip(texts, names, strict=True)]
            id_, label = str(row.number), None
            if columns.id is not None:
                id_ = as_text(find_value(row.values, columns.id), columns.id, row.place, tally)
                if not id_:
                    raise EbmcalError(f"Column {columns.id!r} has no id in {tally.unit} {row.place}. Fill it in.")
            if columns.label is not None:
                label = as_label(find_value(row.values, columns.label), columns.label, row.place, tally)
            yield id_, *cleaned, label, row_key(*cleaned), row.place


def _batches(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Lists of rows of limited length, also for very long texts."""
    batch: list[tuple[Any, ...]] = []
    n_characters = 0
    for row in rows:
        batch.append(row)
        n_characters += len(row[1])
        if len(batch) >= _STORED_ROWS or n_characters >= _STORED_CHARACTERS:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch
