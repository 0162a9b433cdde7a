"""Prediction files: Parquet, CSV, TSV, JSONL and JSON to columns and back, and what the columns mean.

Columns are `label`, `prob_<class>` or `logit_<class>`, and optionally `energy`, `id`, `text`, `text_pair` and
`distance_<name>`. Other columns are ignored.

Whatever a decoder raises on a damaged file becomes an `EbmcalError` that names the file.
"""

import contextlib
import csv
import itertools
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, RowError, plural, unknown_name
from ebmcal.storage import PathLike, atomic_write

META_KEY = b"ebmcal"  # in the schema metadata of Parquet: {"label_names": [...], "meta": {...}}
#: Columns of a CSV that are parsed as numbers; a label "01" or an id "007" stays a string.
NUMBER_PREFIXES = ("prob_", "logit_", "distance_")

_LONGEST_ROW = 1 << 24  # bytes in a CSV; pyarrow's default is 1 MB

_PREFIXES = {"logits": "logit_", "probs": "prob_"}


@dataclass
class FileColumns:
    """Columns of a file by name: numbers as arrays, anything else as lists (None = missing)."""

    columns: dict[str, np.ndarray | list[Any]]
    label_names: tuple[str, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    positions: np.ndarray | None = None  # of the rows in the file, if some were left out

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def rows(self, index: np.ndarray) -> "FileColumns":
        """The rows at these positions, in this order."""
        columns = {n: c[index] if isinstance(c, np.ndarray) else [c[i] for i in index] for n, c in self.columns.items()}
        positions = index if self.positions is None else self.positions[index]
        return FileColumns(columns, self.label_names, self.meta, self.path, positions)

    @contextlib.contextmanager
    def name_rows(self) -> Iterator[None]:
        """Errors in a row name its line in the file, or the row if the format has no lines."""
        try:
            yield
        except RowError as error:
            row = error.row if self.positions is None else int(self.positions[error.row])
            line = _line_of(self.path, row) if self.path else None
            place = f"line {line}" if line else f"row {row} (counting from 0)"
            raise EbmcalError(f"{place}, {error.what}{error.problem}") from error


def _line_of(path: Path, row: int) -> int | None:
    """The line, from 1, of a row, from 0; None if the format has no lines."""
    with contextlib.suppress(OSError, csv.Error):
        if path.suffix.lower() == ".jsonl":
            with open(path, encoding="utf-8-sig") as lines:
                return next(itertools.islice((i for i, line in enumerate(lines, 1) if line.strip()), row, None), None)
        if path.suffix.lower() in (".csv", ".tsv"):
            encoding, delimiter = _csv_dialect(path)
            with open(path, encoding=encoding, errors="replace", newline="") as lines:
                return next(itertools.islice(_first_lines(csv.reader(lines, delimiter=delimiter)), row + 1, None), None)
    return None


def _first_lines(reader: Any) -> Iterator[int]:
    """The first line of each record of a CSV, the header included."""
    line = 1
    for fields in reader:
        if fields:
            yield line
        line = reader.line_num + 1


def to_fields(
    table: FileColumns, label_names: Sequence[str] | None = None, *, labels_required: bool = True
) -> dict[str, Any]:
    """The arguments of `Predictions` in a table; `label_names` names the classes of a file that numbers them."""
    columns: dict[str, Any] = dict(table.columns)
    _check_lengths(columns)
    kind, matrix, names = _class_matrix(columns, table.label_names)
    if not labels_required and "label" not in columns:
        columns["label"] = [None] * table.n_rows
    labels = _labels(columns, names, are_indices=table.label_names is not None)
    is_numbered = names == tuple(map(str, range(len(names)))) and len(label_names or ()) == len(names)
    if label_names is not None and is_numbered and sorted(label_names) != sorted(names):
        names = tuple(map(str, label_names))
    distances = {n.removeprefix("distance_"): numbers(c, n) for n, c in columns.items() if n.startswith("distance_")}
    fields = {"labels": labels, "label_names": names, kind: matrix, "distances": distances or None}
    for name in [name for name in ("text", "text_pair") if name in columns]:
        fields[f"{name}s"] = ["" if text is None else str(text) for text in columns[name]]
    if "energy" in columns:
        fields["energies"] = numbers(columns["energy"], "energy")
    return fields | {"ids": columns.get("id"), "meta": table.meta}


def to_columns(fields: Mapping[str, Any], kind: str, matrix: np.ndarray, suffix: str) -> FileColumns:
    """The columns to write for the attributes of `Predictions`, in the layout of the file format."""
    names, labels = fields["label_names"], fields["labels"]
    optional = {"energy": fields["energies"], "text": fields["texts"], "text_pair": fields["text_pairs"]}
    optional = {name: column for name, column in optional.items() if column is not None}
    distances = {f"distance_{name}": column for name, column in (fields["distances"] or {}).items()}
    ids = [str(i) for i in fields["ids"]]
    classes = {_PREFIXES[kind] + name: matrix[:, i] for i, name in enumerate(names)}
    by_name = [names[i] if i >= 0 else "" for i in labels]
    # Parquet stores the class names, so an integer is safe there; elsewhere "1" might be a class or an index.
    label = {"label": labels, "label_name": by_name} if suffix == ".parquet" else {"label": by_name}
    return FileColumns({"id": ids} | label | classes | optional | distances, names, fields["meta"])


def numbers(column: Any, name: str) -> np.ndarray:
    """A column of finite numbers: float32 and float64 as they are, anything else as float64; errors name the row."""
    if not (isinstance(column, np.ndarray) and column.dtype in (np.float32, np.float64)):
        column = np.array([_number(value, name, row) for row, value in enumerate(column)], dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        raise RowError(f"column {name!r}", f" is {column[bad[0]]}; every number must be finite.", bad[0])
    return column


def _number(value: Any, name: str, row: int) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RowError(f"column {name!r}", f" is {value!s:.60}; expected a number.", row) from error


def _check_lengths(columns: Mapping[str, Any]) -> None:
    """All columns must have the same number of rows."""
    lengths = {name: len(column) for name, column in columns.items()}
    first = next(iter(lengths), "")
    other = next((name for name, length in lengths.items() if length != lengths[first]), None)
    if other is not None:
        counts = f"{first!r} has {plural(lengths[first], 'row')} and {other!r} has {lengths[other]:,}"
        raise EbmcalError(f"columns differ in length: {counts}.")


def _class_matrix(columns: Mapping[str, Any], names: tuple[str, ...] | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    found = {kind: [c for c in columns if c.startswith(prefix)] for kind, prefix in _PREFIXES.items()}
    found = {kind: present for kind, present in found.items() if present}
    if len(found) == 2:
        raise EbmcalError(f"both {found['logits'][0]!r} and {found['probs'][0]!r} exist; keep one kind.")
    if not found:
        shown = ", ".join(repr(c) for c in list(columns)[:20]) or "none"
        raise EbmcalError(f"no class columns. Expected prob_<class> or logit_<class>; the columns are {shown}.")
    ((kind, present),) = found.items()
    prefix = _PREFIXES[kind]
    names = names or tuple(column.removeprefix(prefix) for column in present)
    missing = next((prefix + name for name in names if prefix + name not in columns), None)
    if missing is not None:
        raise EbmcalError(f"there is no column {missing!r} for the class {missing.removeprefix(prefix)!r}.")
    if len(present) > len(names):
        extra = min(set(present) - {prefix + name for name in names})
        raise EbmcalError(f"the column {extra!r} is not one of the classes {', '.join(names[:20])} of the file.")
    return kind, np.stack([numbers(columns[prefix + name], prefix + name) for name in names], axis=1), names


def _labels(columns: Mapping[str, Any], names: tuple[str, ...], *, are_indices: bool) -> np.ndarray:
    """Class indices [n]: a label is a class name, else an index, unless classes are named by integers; −1 = unknown.

    As in training files, only an empty field is a missing label: a class may be called "None" or "nan".
    """
    if "label" not in columns:
        shown = ", ".join(repr(c) for c in list(columns)[:20])
        raise EbmcalError(f"no column 'label' (empty or −1 where the label is unknown); the columns are {shown}.")
    column = columns["label"]
    if are_indices and isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        return column
    places = {name: i for i, name in enumerate(names)}
    known = {"": -1} | places  # each spelling is looked up once
    has_integer_names, is_index = any(_integer(name) is not None for name in names), False
    spelt = ["" if value is None or value != value else str(value) for value in column]  # NaN is not itself
    if isinstance(next((v for v in column if v is not None), None), bool) and "true" in places:  # as in training files
        spelt = [word.lower() for word in spelt]
    for row, word in enumerate(spelt):
        if word in known:
            continue
        number = _integer(word)
        name = word.strip() if number is None else str(number)  # "1.0" for a class "1": integers stored as floats
        if name in known:
            known[word] = known[name]
        elif number == -1:
            known[word] = -1
        elif number is not None and 0 <= number < len(places) and not has_integer_names:
            known[word], is_index = number, True
        elif len(places) == 1:
            problem = f" is {word:.60}, but there is only one class column ({names[0]}). Add a column for each class"
            raise RowError("column 'label'", f"{problem}, also with two classes.", row)
        else:
            problem = str(unknown_name("class", word[:60], places))
            raise RowError("column 'label'", f": {problem} Leave the field empty if the label is unknown.", row)
    if is_index and list(names) != sorted(names):
        raise EbmcalError(
            f"the labels are numbers and the classes have names: 0 may be {names[0]!r}, the first column, or "
            f"{min(names)!r}, the first in alphabetical order. Write the names of the classes into the column 'label'."
        )
    if is_index:
        read = ", ".join(f"{i} = {name}" for i, name in enumerate(names[:6])) + (", …" if len(names) > 6 else "")
        warnings.warn(f"The labels are numbers and were read as {read}.", stacklevel=2)
    return np.array([known[word] for word in spelt], dtype=np.int64)


def _integer(value: str) -> int | None:
    try:
        number = float(value)
        return int(number) if number.is_integer() else None
    except ValueError:
        return None


def read_columns(path: PathLike) -> FileColumns:
    """Read a file by its suffix, without error rows of `ebmcal predict`; "-" is standard input."""
    return _without_error_rows(_read_stdin() if os.fspath(path) == "-" else _read_file(Path(path)), path)


def _without_error_rows(table: FileColumns, where: object) -> FileColumns:
    """The table without the error rows of `ebmcal predict` (an `error` and no numbers); warns if there are any."""
    errors = table.columns.get("error", [])
    classes = [column for name, column in table.columns.items() if name.startswith(tuple(_PREFIXES.values()))]
    if not classes and not all(errors):
        return table
    bad = [i for i, e in enumerate(errors) if e and all(c[i] in (None, "") or c[i] != c[i] for c in classes)]
    if len(bad) == table.n_rows:
        raise EbmcalError(f"{where} has only error rows; the first: {errors[0]!s:.60}")
    if not bad:
        return table
    message = "1 row has an error and is" if len(bad) == 1 else f"{len(bad):,} rows have an error and are"
    warnings.warn(f"{where}: {message} left out.", stacklevel=4)
    return table.rows(np.delete(np.arange(table.n_rows), bad))


def _read_file(path: Path) -> FileColumns:
    if not path.is_file():
        problem = "is a directory" if path.is_dir() else "does not exist"
        raise EbmcalError(f"{path} {problem}; expected a prediction file.")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise EbmcalError(f"{path}: {unknown_name('suffix', path.suffix, READERS)}")
    try:
        table = reader(path)
    except EbmcalError:
        raise
    except Exception as error:  # decoders raise anything on damaged bytes: ArrowInvalid, zlib.error, struct.error, …
        kind = path.suffix.lower().lstrip(".")
        if kind != "parquet" and "utf" in str(error).lower():
            encoding = "utf-16" if path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252"
            raise EbmcalError(
                f"{path} is not UTF-8. Save it as UTF-8 (Excel: CSV UTF-8), or convert it: "
                f"iconv -f {encoding} -t utf-8 FILE > NEW_FILE"
            ) from error
        cause = "damaged, truncated or another format"
        raise EbmcalError(f"{path} cannot be read as {kind} ({cause}): {error}") from error
    if not table.n_rows:
        raise EbmcalError(f"{path} has no rows.")
    table.path = path
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
    """Parquet, JSON or CSV, detected from the first bytes."""
    content = sys.stdin.buffer.read()
    if not content.strip():
        raise EbmcalError("Standard input is empty; expected predictions.")
    first = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:4]
    suffix = ".parquet" if first == b"PAR1" else ".json" if first[:1] in (b"{", b"[") else ".csv"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"stdin{suffix}"
        path.write_bytes(content)
        return _read_file(path)


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
    for name, n in Counter(names).most_common(1):
        if n > 1:
            raise EbmcalError(f"{path} has the column {name!r} more than once.")
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

    encoding, delimiter = _csv_dialect(path)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = csv.ReadOptions(encoding=encoding, use_threads=_is_large(path), block_size=_LONGEST_ROW)
    header = csv.open_csv(path, read_options=read, parse_options=parse).schema.names
    is_number = {name: name == "energy" or name.startswith(NUMBER_PREFIXES) for name in header}
    types = {name: pa.float64() if is_number[name] else pa.string() for name in header}
    for decimal_point in (".", ","):
        convert = csv.ConvertOptions(column_types=types, strings_can_be_null=False, decimal_point=decimal_point)
        try:
            table = FileColumns(_from_arrow(path, csv.read_csv(path, read, parse, convert)))
            _check_last_quote(path, table)
            return table
        except pa.ArrowInvalid:
            if delimiter == "," or decimal_point == ",":
                raise  # only in files separated by something else may numbers have a decimal comma
    raise AssertionError("not reached")


def _csv_dialect(path: Path) -> tuple[str, str]:
    """The encoding and the delimiter of a CSV."""
    with open(path, "rb") as handle:
        start = handle.readline(1 << 20)
    encoding = "utf16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf8"
    return encoding, next((mark for mark in (",", ";", "\t", "|") if mark.encode() in start), ",")


def _check_last_quote(path: Path, table: FileColumns) -> None:
    """After a quote that is not closed, the rest of a file is read as one text."""
    last = next(reversed(table.columns.values()))
    if len(last) and "\n" in str(last[-1]):
        with open(path, "rb") as handle:
            handle.seek(-min(100, path.stat().st_size), 2)
            end = handle.read().rstrip(b"\r\n \0")
        if not end.endswith(b'"'):
            raise EbmcalError(f"{path}: a quote is not closed; its text is the rest of the file. Close the quote.")


def _write_csv(path: Path, table: FileColumns) -> None:
    from pyarrow import csv

    def as_cells(column: np.ndarray | list[Any]) -> np.ndarray | list[Any]:  # lists and objects as JSON
        if not isinstance(column, list) or not any(isinstance(value, list | dict) for value in column):
            return column
        return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in column]

    cells = FileColumns({name: as_cells(column) for name, column in table.columns.items()})
    csv.write_csv(_to_arrow(cells), path)  # quotes every string, also one with a lone carriage return


def _read_jsonl(path: Path) -> FileColumns:
    rows = []
    with open(path, encoding="utf-8-sig") as handle:
        for number, line in enumerate(handle, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except (ValueError, RecursionError) as error:
                    raise EbmcalError(f"{path}, line {number} is not JSON: {error}") from error
                if not isinstance(rows[-1], dict):
                    raise EbmcalError(f"{path}, line {number}: expected a JSON object with one key per column.")
    return _from_json(rows)


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


READERS: dict[str, Callable[[Path], FileColumns]] = {
    ".parquet": _read_parquet, ".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_jsonl, ".json": _read_json,
}  # fmt: skip
WRITERS: dict[str, Callable[[Path, FileColumns], None]] = {
    ".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_jsonl,
}  # fmt: skip
