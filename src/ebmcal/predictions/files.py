"""File formats: Parquet, CSV, TSV, JSONL, JSON and NPZ to plain columns and back; `columns` defines what they mean.

Whatever a decoder raises on a damaged file becomes an `EbmcalError` that names the file. Nothing is ever unpickled.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.storage import PathLike, atomic_write

META_KEY = b"ebmcal"  # in the schema metadata of Parquet: {"label_names": [...], "meta": {...}}
#: Columns of a CSV that are parsed as numbers; a label "01" or an id "007" stays a string.
NUMBER_PREFIXES = ("prob_", "logit_", "human_", "distance_")


@dataclass
class FileColumns:
    """Columns of a file by name: numbers as arrays, anything else as lists (None = missing)."""

    columns: dict[str, np.ndarray | list[Any]]
    label_names: tuple[str, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def rows(self, index: np.ndarray) -> "FileColumns":
        """The rows at these positions, in this order."""
        columns = {n: c[index] if isinstance(c, np.ndarray) else [c[i] for i in index] for n, c in self.columns.items()}
        return FileColumns(columns, self.label_names, self.meta)


def read_columns(path: PathLike) -> FileColumns:
    """Read a file by its suffix; "-" is standard input.

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
        problem = "is a directory" if path.is_dir() else "does not exist"
        raise EbmcalError(f"{path} {problem}; expected a prediction file.")
    try:
        table = reader(path)
    except EbmcalError:
        raise
    except Exception as error:  # decoders raise anything on damaged bytes: ArrowInvalid, zlib.error, struct.error, …
        kind = path.suffix.lower().lstrip(".")
        raise EbmcalError(f"{path} cannot be read as {kind} (damaged, truncated or another format): {error}") from error
    if not table.n_rows:
        raise EbmcalError(f"{path} has no rows.")
    return table


def write_columns(path: PathLike, table: FileColumns) -> None:
    """Write a file by its suffix, atomically."""
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise EbmcalError(f"{path}: {unknown_name('suffix', path.suffix, WRITERS)}")
    try:
        with atomic_write(path) as temporary:
            writer(temporary, table)
    except UnicodeEncodeError as error:  # half of a surrogate pair, in a text or a name
        raise EbmcalError(f"{path}: {error.object!r:.80} is not valid Unicode ({error.reason}). Clean it.") from error


def _read_stdin() -> FileColumns:
    """Parquet, NPZ, JSON or CSV, detected from the first bytes."""
    content = sys.stdin.buffer.read()
    first = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:4]
    kinds = {b"PAR1": ".parquet", b"PK\x03\x04": ".npz"}
    suffix = kinds.get(first, ".json" if first[:1] in (b"{", b"[") else ".csv")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"stdin{suffix}"
        path.write_bytes(content)
        return read_columns(path)


def _read_parquet(path: Path) -> FileColumns:
    import pyarrow.parquet as pq

    # A plain file handle: pq.read_table(path) would add columns for directory names such as `seed=1`.
    with open(path, "rb") as handle:
        arrow = pq.ParquetFile(handle, page_checksum_verification=True).read(use_threads=_is_large(path))
    note = json.loads((arrow.schema.metadata or {}).get(META_KEY, b"{}"))
    names = note.get("label_names")
    names = None if names is None else tuple(map(str, names))
    return FileColumns(_from_arrow(path, arrow), names, dict(note.get("meta", {})))


def _is_large(path: Path) -> bool:
    """Whether reading a file with several threads is worth starting them."""
    return path.stat().st_size > 50_000_000


def _from_arrow(path: Path, arrow: Any) -> dict[str, np.ndarray | list[Any]]:
    import pyarrow.types as types

    names = arrow.column_names
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise EbmcalError(f"{path} has the column {twice!r} more than once.")
    return {
        name: column.to_numpy()  # missing becomes NaN
        if types.is_floating(column.type) or (types.is_integer(column.type) and not column.null_count)
        else column.to_pylist()
        for name, column in zip(names, arrow.columns, strict=True)
    }


def _write_parquet(path: Path, table: FileColumns) -> None:
    import pyarrow.parquet as pq

    note = json.dumps({"label_names": table.label_names, "meta": table.meta}).encode()
    arrow = _to_arrow(table).replace_schema_metadata({META_KEY: note})
    pq.write_table(arrow, path, compression="zstd", write_page_checksum=True)


def _to_arrow(table: FileColumns) -> Any:
    import pyarrow as pa

    def as_array(values: Any) -> Any:
        return pa.array(values, pa.string()) if all(isinstance(v, str | None) for v in values) else pa.array(values)

    return pa.table({name: as_array(c) if isinstance(c, list) else c for name, c in table.columns.items()})


def _read_csv(path: Path) -> FileColumns:
    import pyarrow as pa
    from pyarrow import csv

    with open(path, "rb") as handle:
        start = handle.readline(1 << 20)
    encoding = "utf16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf8"
    delimiter = next((mark for mark in (",", ";", "\t", "|") if mark.encode() in start), ",")
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = csv.ReadOptions(encoding=encoding, use_threads=_is_large(path))
    header = csv.open_csv(path, read_options=read, parse_options=parse).schema.names
    is_number = {name: name == "energy" or name.startswith(NUMBER_PREFIXES) for name in header}
    types = {name: pa.float64() if is_number[name] else pa.string() for name in header}
    for decimal_point in (".", ","):
        convert = csv.ConvertOptions(column_types=types, strings_can_be_null=False, decimal_point=decimal_point)
        try:
            return FileColumns(_from_arrow(path, csv.read_csv(path, read, parse, convert)))
        except pa.ArrowInvalid:
            if delimiter == "," or decimal_point == ",":
                raise  # only in files separated by something else may numbers have a decimal comma
    raise AssertionError("not reached")


def _write_csv(path: Path, table: FileColumns) -> None:
    from pyarrow import csv

    csv.write_csv(_to_arrow(table), path)  # quotes every string, also one with a lone carriage return


def _read_jsonl(path: Path) -> FileColumns:
    with open(path, encoding="utf-8-sig") as handle:
        return _from_json([_json_row(path, number, line) for number, line in enumerate(handle, 1) if line.strip()])


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EbmcalError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise EbmcalError(f"{path}, line {number}: expected a JSON object with one key per column.")
    return row


def _read_json(path: Path) -> FileColumns:
    """A list of objects, an object of columns, or one object per line."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return _read_jsonl(path)
    if isinstance(value, dict) and all(isinstance(column, list) for column in value.values()):
        return FileColumns(value)
    value = [value] if isinstance(value, dict) else value
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise EbmcalError(f"{path}: expected a list of JSON objects, or an object of columns.")
    return _from_json(value)


def _from_json(rows: list[dict[str, Any]]) -> FileColumns:
    names = dict.fromkeys(name for row in rows for name in row)
    return FileColumns({name: [row.get(name) for row in rows] for name in names})


def _write_jsonl(path: Path, table: FileColumns) -> None:
    columns = [column.tolist() if isinstance(column, np.ndarray) else column for column in table.columns.values()]
    with open(path, "w", encoding="utf-8") as handle:
        for values in zip(*columns, strict=True):
            row = dict(zip(table.columns, values, strict=True))
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False, default=str) + "\n")


def _read_npz(path: Path) -> FileColumns:
    with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as arrays:
        columns: dict[str, Any] = {name: _from_npz(name, arrays[name]) for name in arrays.files}
    names, meta = columns.pop("label_names", None), dict(json.loads(str(columns.pop("meta", "{}"))))
    for name in ("texts", "text_pairs"):
        if name in columns and not columns[name].ndim:
            columns[name] = list(json.loads(str(columns[name])))
    columns = {name: column for name, column in columns.items() if np.ndim(column)}
    return FileColumns(columns, None if names is None else tuple(map(str, np.atleast_1d(names))), meta)


def _from_npz(name: str, array: np.ndarray) -> np.ndarray:
    # numpy stores bfloat16 as two nameless bytes; others store the logits or probabilities as a uint16 view.
    is_view = array.dtype == np.uint16 and array.ndim == 2 and name in ("logits", "probs")
    if not is_view and array.dtype != np.dtype("V2"):
        return array
    return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _write_npz(path: Path, table: FileColumns) -> None:
    # Texts as one JSON string: an array of strings would pad each to the length of the longest.
    arrays: dict[str, Any] = {
        name: np.array(json.dumps(c)) if isinstance(c, list) else c for name, c in table.columns.items()
    }
    arrays |= {"label_names": np.array(table.label_names, dtype=str), "meta": np.array(json.dumps(table.meta))}
    with open(path, "wb") as handle:  # given a name, numpy would add a suffix to it
        np.savez_compressed(handle, **arrays)


READERS: dict[str, Callable[[Path], FileColumns]] = {
    ".parquet": _read_parquet, ".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_jsonl, ".json": _read_json,
    ".npz": _read_npz,
}  # fmt: skip
WRITERS: dict[str, Callable[[Path, FileColumns], None]] = {
    ".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_jsonl, ".npz": _write_npz,
}  # fmt: skip
