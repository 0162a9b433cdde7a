"""Data that is in memory → a Parquet file in a folder that was given, so that it goes wherever a file goes.

Lists, dicts of columns, `datasets.Dataset` and whatever speaks Arrow (`__arrow_c_stream__`: pandas, polars, pyarrow,
duckdb) end as the same file when they hold the same texts and labels: it is named by its contents.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import writing

ACCEPTED = (
    "a path, a list of texts, a list of (text, text) pairs, a tuple (texts, labels), a dict of columns, a "
    "datasets.Dataset, or a table of pandas, polars, pyarrow or duckdb"
)
IN_MEMORY = "in-memory-"  # what the file is called, before a fingerprint of its contents
PAIR_COLUMN, LABEL_COLUMN = "text_pair", "label"  # of lists, which name no columns
_HASHED_ROWS = 4096  # at a time


def as_table_file(source: Any, folder: str | Path, columns: Columns | None = None) -> tuple[Path, Columns]:
    """A Parquet file of `source` in `folder`, and the names of its columns; a path is handed back as it is.

    `columns` names what to take out of a table or dict ("text" and nothing else when None); lists are written under
    these names, and under "text_pair" and "label" where it has none. Labels may be missing (None), texts may not.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> path, columns = as_table_file((["fine film", "dull film"], [1, 0]), folder)
    >>> pq.read_table(path).to_pydict(), columns.label
    ({'text': ['fine film', 'dull film'], 'label': [1, 0]}, 'label')
    >>> as_table_file({"text": ["fine film", "dull film"], "label": [1, 0]}, folder, columns)[0] == path
    True
    """
    columns = columns or Columns("text")
    if is_stdin(source):
        return _spooled(Path(folder), columns.text), columns
    if isinstance(source, str | os.PathLike):
        return Path(source), columns
    found = _named_columns(source, columns)
    if found is None:
        found, columns = _listed_columns(source, columns)
    texts = (columns.text, columns.pair)
    arrays = {name: _as_arrow(found[name], name, is_text=name in texts) for name in columns.wanted()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {n:,}" for name, n in lengths.items())
        raise EbmcalError(f"The columns differ in length: {listed}. Every row needs a value in each.")
    if not any(lengths.values()):
        raise EbmcalError(f"The data, a {_kind(source)}, has no rows. Give at least one text.")
    return _write(pa.table(arrays), Path(folder)), columns


def is_stdin(source: Any) -> bool:
    """Whether a path is "-", which stands for what is piped in."""
    return isinstance(source, str | os.PathLike) and os.fspath(source) == "-"


def _spooled(folder: Path, text_column: str) -> Path:
    """What is piped in, as a file that is named by its contents; its first characters say what kind of file it is."""
    content = sys.stdin.buffer.read()
    head = content[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    first = head.splitlines()[0] if head else b""
    if not first:
        raise EbmcalError("Nothing was piped in: - stands for the standard input. Give a file, or pipe one in.")
    names = [name.strip(b'" ') for name in re.split(rb"[,;\t|]", first)]
    kind = ".csv" if text_column.encode() in names else ".txt"
    kind = ".parquet" if head.startswith(b"PAR1") else ".json" if re.match(rb"\[?\s*\{", head) else kind
    path = folder / f"stdin-{hashlib.sha256(content).hexdigest()[:16]}{kind}"
    with writing(path) as aside:
        aside.write_bytes(content)
    return path


def _named_columns(source: Any, columns: Columns) -> dict[str, Any] | None:
    """The wanted columns of a table or a dict; None for what has no named columns."""
    library = type(source).__module__.partition(".")[0]
    if isinstance(source, Mapping) or (library == "pandas" and hasattr(source, "columns")):
        if library == "datasets":
            splits = ", ".join(source)
            raise EbmcalError(f"A {_kind(source)} holds splits ({splits}), not rows. Give one, as in data['train'].")
        _require_columns(source, list(source), columns)
        return {name: source[name] for name in columns.wanted()}
    if library == "datasets" and hasattr(source, "select_columns") and hasattr(source, "__len__"):
        _require_columns(source, source.column_names, columns)
        source = source.select_columns(columns.wanted()).with_format("arrow")[:]
    if not hasattr(source, "__arrow_c_stream__"):
        return None
    try:
        table = pa.table(source)
    except pa.ArrowInvalid:  # a single column, such as a pandas Series
        return None
    _require_columns(source, table.column_names, columns)
    return {name: table[name] for name in columns.wanted()}


def _require_columns(source: Any, names: list[Any], columns: Columns) -> None:
    columns.check(Path(f"The {_kind(source)}"), [str(name) for name in names])


def _listed_columns(source: Any, columns: Columns) -> tuple[dict[str, Any], Columns]:
    """The columns of lists, (texts, labels), texts, or pairs of texts, and their names."""
    texts, labels = source, None
    if isinstance(source, tuple) and len(source) == 2:
        if all(isinstance(part, str) for part in source):
            raise EbmcalError("Two strings may be two texts or one pair: write [first, second] or [(first, second)].")
        texts, labels = source
    texts = _items(texts)
    is_pair = bool(texts) and _is_pair(texts[0])
    if columns.pair and not is_pair:
        raise EbmcalError(f"A column of second texts ({columns.pair!r}) was named, but the texts came single.")
    if columns.label and labels is None:
        raise EbmcalError("The texts came without labels: give a tuple (texts, labels), or a table with both.")
    found: dict[str, Any] = {columns.text: texts}
    pair = label = None
    if is_pair:
        pair = columns.pair or PAIR_COLUMN
        found = {columns.text: [row[0] for row in _pairs(texts)], pair: [row[1] for row in texts]}
    if labels is not None:
        label = columns.label or LABEL_COLUMN
        found[label] = _items(labels)
    return found, Columns(columns.text, pair, label)


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2


def _pairs(rows: list[Any]) -> list[Any]:
    for i, row in enumerate(rows):
        if not _is_pair(row):
            raise EbmcalError(f"Row {i} is {_shown(row)}; row 0 is a pair of texts, so every row must be one.")
    return rows


def _items(values: Any) -> list[Any]:
    """The plain Python values of a list, an array, a Series, an Arrow column or a generator."""
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(values, method):
            return getattr(values, method)()
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise EbmcalError(f"Data came as {_shown(values)}; accepted are {ACCEPTED}.")
    return list(values)


def _as_arrow(values: Any, name: str, is_text: bool) -> pa.Array:
    """One column, of the same type whatever object it came in: texts and names of classes as large strings."""
    try:
        if hasattr(values, "__arrow_c_stream__"):
            column = pa.chunked_array(values).combine_chunks()
        else:
            column = pa.array(_items(values), from_pandas=True)  # NaN is a missing value
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _unfit(_items(values), name, error) from error
    if pa.types.is_dictionary(column.type):  # a categorical
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    _check(column, name, is_text)
    return column


def _check(column: pa.Array, name: str, is_text: bool) -> None:
    if is_text and column.null_count:
        first = pc.index(pc.is_null(column), True).as_py()
        raise EbmcalError(
            f"Column {name!r} lacks {column.null_count:,} of {len(column):,} texts (None or NaN), the first in row "
            f"{first} from 0. Drop these rows or fill them in."
        )
    nested = pa.types.is_nested(column.type) or pa.types.is_large_binary(column.type) or pa.types.is_binary(column.type)
    if len(column) and (nested or (is_text and not pa.types.is_large_string(column.type))):
        allowed = "texts must be strings" if is_text else "labels must be strings or numbers"
        raise EbmcalError(f"Column {name!r} begins with {_shown(column[0].as_py())}; {allowed}.")


def _unfit(values: list[Any], name: str, error: Exception) -> EbmcalError:
    """Why a list cannot be one column: the first value that is of another kind than the one it begins with."""
    for i, value in enumerate(values):
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            return EbmcalError(f"Column {name!r}, row {i} from 0 has a lone surrogate; no file can hold it: clean it.")
        if value is not None and type(value) is not type(values[0]):
            return EbmcalError(
                f"Column {name!r} mixes kinds: it begins with {_shown(values[0])} and has {_shown(value)} in row {i} "
                "from 0. Make all values of one kind."
            )
    return EbmcalError(f"Column {name!r} cannot be stored: {error}.")


def _write(table: pa.Table, folder: Path) -> Path:
    digest = hashlib.sha256(json.dumps(table.column_names).encode())
    for batch in table.to_batches(max_chunksize=_HASHED_ROWS):
        digest.update(json.dumps(batch.to_pydict(), default=str).encode())
    path = folder / f"{IN_MEMORY}{digest.hexdigest()[:16]}.parquet"
    with writing(path) as aside:
        pq.write_table(table, aside)
    return path


def _kind(value: Any) -> str:
    return type(value).__name__


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({_kind(value)})"
