"""File formats: Parquet, CSV, JSONL and NPZ to plain columns and back. What a column means is defined in `columns`.

Whatever a decoder raises on a damaged file becomes an `EbmcalError` that names the file. Nothing is ever unpickled.
"""

import collections
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
_NUMBER_PREFIXES = ("prob_", "logit_", "human_", "distance_")


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
    # Decoders raise anything on damaged bytes: ArrowInvalid, zlib.error, struct.error, …
    except Exception as error:
        kind = path.suffix.lower().lstrip(".")
        raise EbmcalError(f"{path} cannot be read as {kind} (damaged, truncated or another format): {error}") from error
    if not table.n_rows:
        raise EbmcalError(f"{path} has no rows.")
    return table


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


def bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    """bfloat16 numbers stored as two bytes each, the upper half of a float32, as float32.

    >>> bfloat16_bits(np.array([0x3F80, 0xC000], dtype=np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    return (np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _read_parquet(path: Path) -> FileColumns:
    import pyarrow.parquet as pq

    # A plain file handle: pq.read_table(path) would add columns for directory names such as `seed=1`.
    with open(path, "rb") as handle:
        arrow = pq.ParquetFile(handle, page_checksum_verification=True).read(use_threads=_is_large(path))
    _check_unique(path, arrow.column_names)
    note = json.loads((arrow.schema.metadata or {}).get(META_KEY, b"{}"))
    names = note.get("label_names")
    columns = {name: _from_arrow(arrow.column(name)) for name in arrow.column_names}
    return FileColumns(columns, None if names is None else tuple(str(name) for name in names), note.get("meta", {}))


def _is_large(path: Path) -> bool:
    """Whether reading a file with several threads is worth starting them."""
    return path.stat().st_size > 50_000_000


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

    columns = table.columns.items()
    return pa.table({name: _list_to_arrow(c) if isinstance(c, list) else c for name, c in columns})


def _list_to_arrow(values: list[Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values, pa.string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # other values, in a column of the user
        return pa.array(values)


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
    _check_unique(path, header)
    is_number = {name: name == "energy" or name.startswith(_NUMBER_PREFIXES) for name in header}
    types = {name: pa.float64() if is_number[name] else pa.string() for name in header}
    for decimal_point in (".", ","):
        convert = csv.ConvertOptions(column_types=types, strings_can_be_null=False, decimal_point=decimal_point)
        try:
            arrow = csv.read_csv(path, read_options=read, parse_options=parse, convert_options=convert)
            break
        except pa.ArrowInvalid:
            if delimiter == "," or decimal_point == ",":
                raise  # only in files separated by something else may numbers have a decimal comma
    return FileColumns({name: _from_arrow(arrow.column(name)) for name in header})


def _write_csv(path: Path, table: FileColumns) -> None:
    from pyarrow import csv

    csv.write_csv(_to_arrow(table), path)  # quotes every string, also one with a lone carriage return


def _read_jsonl(path: Path) -> FileColumns:
    with open(path, encoding="utf-8-sig") as handle:
        rows = [_json_row(path, number, line) for number, line in enumerate(handle, start=1) if line.strip()]
    return _from_json_rows(rows)


def _read_json(path: Path) -> FileColumns:
    """A list of objects, an object of columns, or one object per line."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return _read_jsonl(path)
    if isinstance(value, dict) and all(isinstance(column, list) for column in value.values()):
        return FileColumns(value)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise EbmcalError(f"{path}: expected a list of JSON objects, or an object of columns.")
    return _from_json_rows(value)


def _from_json_rows(rows: list[dict[str, Any]]) -> FileColumns:
    names = dict.fromkeys(name for row in rows for name in row)
    return FileColumns({name: [row.get(name) for row in rows] for name in names})


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EbmcalError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise EbmcalError(f"{path}, line {number}: expected a JSON object with one key per column.")
    return row


def _write_jsonl(path: Path, table: FileColumns) -> None:
    columns = [column.tolist() if isinstance(column, np.ndarray) else column for column in table.columns.values()]
    with open(path, "w", encoding="utf-8") as handle:
        for values in zip(*columns, strict=True):
            row = dict(zip(table.columns, values, strict=True))
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False, default=str) + "\n")


def _check_unique(path: Path, names: list[str]) -> None:
    name, count = collections.Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise EbmcalError(f"{path} has the column {name!r} more than once.")


def _read_npz(path: Path) -> FileColumns:
    with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as arrays:
        columns = {name: _from_npz(name, arrays[name]) for name in arrays.files}
    names, meta = columns.pop("label_names", None), columns.pop("meta", "{}")
    as_json = [name for name in ("texts", "text_pairs") if name in columns and not columns[name].ndim]
    texts = {name: list(json.loads(str(columns[name]))) for name in as_json}
    return FileColumns(
        {name: column for name, column in columns.items() if column.ndim} | texts,
        None if names is None else tuple(str(name) for name in np.atleast_1d(names)),
        json.loads(str(meta)),
    )


def _from_npz(name: str, array: np.ndarray) -> np.ndarray:
    # numpy stores bfloat16 as two nameless bytes; others store the logits or probabilities as a uint16 view.
    is_view = array.dtype == np.uint16 and array.ndim == 2 and name in ("logits", "probs")
    return bfloat16_bits(array) if is_view or array.dtype == np.dtype("V2") else array


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
