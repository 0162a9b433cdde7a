"""Columns on disk: Parquet, CSV, JSONL and NPZ to plain columns and back. What a column means is not known here.

`FileColumns` are what every format is read into and written from. Anything that a damaged file makes a decoder raise
becomes an `EbmcalError` that names the file. Nothing is ever unpickled.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.storage.atomic import writing

META_KEY = b"ebmcal"  # in the schema metadata of Parquet: {"label_names": [...], "meta": {...}}


@dataclass
class FileColumns:
    """Columns of equal length by name: numbers as arrays, anything else as lists (None = missing)."""

    columns: dict[str, np.ndarray | list[Any]]
    label_names: tuple[str, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.columns.values()), []))


def read_columns(path: str | PathLike[str]) -> FileColumns:
    """Read a file by its suffix.

    >>> import tempfile; p = Path(tempfile.mkdtemp()) / "p.csv"
    >>> _ = p.write_text("label,prob_no,prob_yes\\nyes,0.2,0.8\\n")
    >>> read_columns(p).columns["prob_yes"]
    array([0.8])
    """
    if os.fspath(path) == "-":
        return _read_stdin()
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise EbmcalError(f"{path}: {unknown_name('suffix', path.suffix, READERS)}")
    if not path.is_file():
        raise EbmcalError(
            f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; a prediction file is needed."
        )
    try:
        table = reader(path)
    except EbmcalError:
        raise
    # Decoders raise whatever they stumble over in damaged bytes: ArrowInvalid, zlib.error, struct.error, …
    except Exception as error:
        kind = path.suffix.lower().lstrip(".")
        raise EbmcalError(
            f"{path} cannot be read as {kind} (damaged, cut short, or something else): {error}"
        ) from error
    if not table.n_rows:
        raise EbmcalError(f"{path} has no rows.")
    return table


def _read_stdin() -> FileColumns:
    """What is piped in: Parquet, NPZ, JSON or CSV, by its first characters."""
    content = sys.stdin.buffer.read()
    first = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:4]
    kinds = {b"PAR1": ".parquet", b"PK\x03\x04": ".npz"}
    suffix = kinds.get(first, ".json" if first[:1] in (b"{", b"[") else ".csv")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"stdin{suffix}"
        path.write_bytes(content)
        return read_columns(path)


def write_columns(path: str | PathLike[str], table: FileColumns) -> None:
    """Write a file by its suffix, whole or not at all."""
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise EbmcalError(f"{path}: {unknown_name('suffix', path.suffix, WRITERS)}")
    try:
        with writing(path) as aside:
            writer(aside, table)
    except UnicodeEncodeError as error:  # half a character, in a text or a name
        raise EbmcalError(
            f"{path} cannot be written: {error.object!r:.80} is no text ({error.reason}). Clean it."
        ) from error


def bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    """Numbers of bfloat16 kept as two bytes each: the upper half of a float32.

    >>> bfloat16_bits(np.array([0x3F80, 0xC000], dtype=np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _read_parquet(path: Path) -> FileColumns:
    import pyarrow.parquet as pq

    # A plain file handle: pq.read_table(path) would take columns from folder names such as `seed=1`.
    with open(path, "rb") as handle:
        arrow = pq.ParquetFile(handle, page_checksum_verification=True).read()
    _refuse_twice(path, arrow.column_names)
    note = json.loads((arrow.schema.metadata or {}).get(META_KEY, b"{}"))
    names = note.get("label_names")
    columns = {name: _from_arrow(arrow.column(name)) for name in arrow.column_names}
    return FileColumns(columns, None if names is None else tuple(str(name) for name in names), note.get("meta", {}))


def _from_arrow(column: Any) -> np.ndarray | list[Any]:
    import pyarrow.types as types

    if types.is_fixed_size_binary(column.type) and column.type.byte_width == 2 and not column.null_count:
        return bfloat16_bits(np.frombuffer(b"".join(column.to_pylist()), dtype=np.uint16))
    if types.is_floating(column.type):
        return column.to_numpy()  # missing becomes NaN
    if types.is_integer(column.type) and not column.null_count:
        return column.to_numpy()
    return column.to_pylist()


def _write_parquet(path: Path, table: FileColumns) -> None:
    import pyarrow.parquet as pq

    note = json.dumps({"label_names": table.label_names, "meta": table.meta}).encode()
    arrow = _to_arrow(table).replace_schema_metadata({META_KEY: note})
    pq.write_table(arrow, path, compression="zstd", write_page_checksum=True)


def _to_arrow(table: FileColumns) -> Any:
    import pyarrow as pa

    strings = {name: pa.array(c, pa.string()) for name, c in table.columns.items() if isinstance(c, list)}
    return pa.table({name: strings.get(name, column) for name, column in table.columns.items()})


def _read_csv(path: Path) -> FileColumns:
    import pyarrow as pa
    from pyarrow import csv

    options = csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True)
    header = csv.open_csv(path, parse_options=options).schema.names
    _refuse_twice(path, header)
    # Only class columns and energies are numbers; a label "01" or an id "007" stays as it is written.
    types = {name: pa.float64() if _is_number_column(name) else pa.string() for name in header}
    as_types = {"column_types": types, "strings_can_be_null": False}
    try:
        arrow = csv.read_csv(path, parse_options=options, convert_options=csv.ConvertOptions(**as_types))
    except pa.ArrowInvalid:
        if options.delimiter != ";":
            raise
        comma = csv.ConvertOptions(**as_types, decimal_point=",")  # where columns have ; numbers may have a comma
        arrow = csv.read_csv(path, parse_options=options, convert_options=comma)
    return FileColumns({name: _from_arrow(arrow.column(name)) for name in header})


def _delimiter(path: Path) -> str:
    """What separates the columns: of these marks the first that the header line has."""
    with open(path, "rb") as handle:
        header = handle.readline(1 << 20)
    return next((mark for mark in (",", ";", "\t", "|") if mark.encode() in header), ",")


def _is_number_column(name: str) -> bool:
    return name == "energy" or name.startswith(("prob_", "logit_", "human_"))


def _write_csv(path: Path, table: FileColumns) -> None:
    from pyarrow import csv

    csv.write_csv(_to_arrow(table), path)


def _read_jsonl(path: Path) -> FileColumns:
    rows = []
    with open(path, encoding="utf-8") as handle:
        for number, line in enumerate(handle, start=1):
            if line.strip():
                rows.append(_json_row(path, number, line))
    names = dict.fromkeys(name for row in rows for name in row)
    return FileColumns({name: [row.get(name) for row in rows] for name in names})


def _read_json(path: Path) -> FileColumns:
    """A list of objects, an object of columns, or objects a line."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return _read_jsonl(path)
    if isinstance(value, dict) and all(isinstance(column, list) for column in value.values()):
        return FileColumns(value)
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise EbmcalError(f"{path} holds neither a list of JSON objects nor columns.")
    return FileColumns({name: [row.get(name) for row in value] for name in dict.fromkeys(n for r in value for n in r)})


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EbmcalError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise EbmcalError(f"{path}, line {number} is not a JSON object with a key a column.")
    return row


def _write_jsonl(path: Path, table: FileColumns) -> None:
    columns = [column.tolist() if isinstance(column, np.ndarray) else column for column in table.columns.values()]
    with open(path, "w", encoding="utf-8") as handle:
        for values in zip(*columns, strict=True):
            row = dict(zip(table.columns, values, strict=True))
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _refuse_twice(path: Path, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EbmcalError(f"{path} has the column {twice!r} more than once.")


def _read_npz(path: Path) -> FileColumns:
    with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as arrays:
        columns = {name: _from_npz(arrays[name]) for name in arrays.files}
    names, meta = columns.pop("label_names", None), columns.pop("meta", "{}")
    as_json = [name for name in ("texts", "text_pairs") if name in columns and not columns[name].ndim]
    texts = {name: list(json.loads(str(columns[name]))) for name in as_json}
    return FileColumns(
        {name: column for name, column in columns.items() if column.ndim} | texts,
        None if names is None else tuple(str(name) for name in np.atleast_1d(names)),
        json.loads(str(meta)),
    )


def _from_npz(array: np.ndarray) -> np.ndarray:
    # numpy stores bfloat16 as two nameless bytes; others store it as a uint16 view.
    if array.dtype == np.dtype("V2") or (array.dtype == np.uint16 and array.ndim == 2):
        return bfloat16_bits(np.ascontiguousarray(array))
    return array


def _write_npz(path: Path, table: FileColumns) -> None:
    # Texts as one JSON string: an array of strings would pad each to the length of the longest.
    arrays: dict[str, Any] = {
        name: np.array(json.dumps(c)) if isinstance(c, list) else c for name, c in table.columns.items()
    }
    arrays["label_names"] = np.array(table.label_names, dtype=str)
    arrays["meta"] = np.array(json.dumps(table.meta))
    with open(path, "wb") as handle:  # given a name, numpy would add a suffix to it
        np.savez_compressed(handle, **arrays)


READERS: dict[str, Callable[[Path], FileColumns]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".npz": _read_npz,
}
WRITERS: dict[str, Callable[[Path, FileColumns], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".npz": _write_npz,
}
