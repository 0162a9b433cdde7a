"""Parquet files and Arrow streams (what `datasets` saves) → rows, a batch at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ebmcal.data.values import Columns, SourceRow, Tally, as_row
from ebmcal.errors import EbmcalError

_BATCH = 512  # rows; texts may have 100,000 characters each
_FAILURES = (pa.ArrowException, OSError, ValueError, MemoryError)


def columnar_header(path: Path, kind: str) -> list[str]:
    """The column names of a Parquet file or an Arrow stream."""
    return list(columnar_schema(path, kind).names)


def read_columnar(path: Path, kind: str, columns: Columns, tally: Tally) -> Iterator[SourceRow]:
    """Rows of a Parquet file (`kind` "parquet") or of an Arrow stream ("arrow")."""
    schema = columnar_schema(path, kind)
    columns.check(path, schema.names)
    for name in columns.wanted():
        _refuse_nested(path, schema.field(name))
    start = 0
    for batch in column_batches(path, kind, columns.wanted()):
        yield from _rows(batch, columns, start, tally)
        start += batch.num_rows


def _rows(batch: pa.RecordBatch, columns: Columns, start: int, tally: Tally) -> Iterator[SourceRow]:
    found = {name: _values(batch.column(batch.schema.get_field_index(name)), name) for name in columns.wanted()}
    none = [None] * batch.num_rows
    triples = zip(*(found.get(name or "", none) for name in (columns.text, columns.pair, columns.label)), strict=True)
    for i, values in enumerate(triples):
        if columns.where and str(found[columns.where[0]][i]) != columns.where[1]:
            continue
        yield as_row(start + i, values, columns, start + i, tally)


def _values(column: pa.Array, name: str) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:  # written without checking: decode as for text files, so that it is counted
        return [None if value is None else value.decode("utf-8", "surrogateescape") for value in _raw(column)]
    except (*_FAILURES, OverflowError) as error:
        raise EbmcalError(f"Column {name!r} holds values that cannot be read as text ({error}). Convert it.") from error


def _raw(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary()).to_pylist()


def columnar_schema(path: Path, kind: str) -> pa.Schema:
    """Names and types of the columns."""
    try:
        schema = _read_schema(path, kind)
        _ = schema.names  # a damaged name is no UTF-8 and fails only when it is looked at
        return schema
    except _FAILURES as error:
        raise _unreadable(path, kind, error) from error


def _read_schema(path: Path, kind: str) -> pa.Schema:
    if kind == "parquet":
        import pyarrow.parquet as pq

        return pq.read_schema(path)
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).schema


def column_batches(path: Path, kind: str, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Batches of some rows with these columns; a damaged file is an error that names it."""
    try:
        if kind == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                yield from file.iter_batches(_BATCH, columns=names)
        else:
            with pa.memory_map(str(path)) as source:
                for batch in pa.ipc.open_stream(source):
                    batch.validate(full=True)  # a damaged stream could point outside itself
                    yield from (batch.slice(i, _BATCH) for i in range(0, batch.num_rows, _BATCH))
    except _FAILURES as error:
        raise _unreadable(path, kind, error) from error


def _unreadable(path: Path, kind: str, error: BaseException) -> EbmcalError:
    name = "Parquet" if kind == "parquet" else "Arrow"
    return EbmcalError(
        f"{path} is not a whole {name} file: {str(error)[:300] or type(error).__name__}. Write it again."
    )


def _refuse_nested(path: Path, field: pa.Field) -> None:
    if pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
        raise EbmcalError(
            f"{path}: column {field.name!r} has type {field.type}; texts and labels must be strings or numbers. "
            "Choose another column or convert this one."
        )
