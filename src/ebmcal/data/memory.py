"""Python objects → a `TableSource`: lists, (texts, labels), dicts of columns, `datasets.Dataset` and all tables that
support the Arrow stream protocol (pandas, polars, pyarrow, duckdb). Also standard input ("-")."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.data.tables import SUFFIXES, TableSource
from ebmcal.data.values import Columns, has_surrogates
from ebmcal.errors import EbmcalError, error_context
from ebmcal.storage import TemporaryDirectory

if TYPE_CHECKING:
    import pyarrow as pa

ACCEPTED = (
    "a path, a list of texts, a list of (text, text) pairs, a tuple (texts, labels), a dict of columns, a "
    "datasets.Dataset, or a table of pandas, polars, pyarrow or duckdb"
)
STDIN = "-"
_spooled: list[TemporaryDirectory] = []  # copies of standard input, removed when the process ends


def as_source(data: Any, columns: Columns, encoding: str | None = None) -> tuple[TableSource, Columns]:
    """The table behind a path or an object, and its columns, which exist. Lists get the usual names.

    >>> source, columns = as_source((["fine film", "dull film"], [1, 0]), Columns())
    >>> source.table.to_pydict(), columns.label
    ({'text': ['fine film', 'dull film'], 'label': [1, 0]}, 'label')
    """
    if isinstance(data, str | os.PathLike):
        source = TableSource.from_path(_as_path(data, columns), encoding)
        return source, source.resolve(columns)
    name = f"the {type(data).__name__}"
    with error_context(name):
        found = _named_columns(data, columns)
        values, columns = _listed_columns(data, columns) if found is None else found
        arrays = {column: _as_arrow(values[column], column, columns) for column in values}
        lengths = {column: len(array) for column, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{column!r} has {n:,} rows" for column, n in lengths.items())
            raise EbmcalError(f"The columns differ in length: {counts}.")
        if not any(lengths.values()):
            raise EbmcalError("The data has no rows; expected at least one text.")
    import pyarrow as pa

    label_names = _class_names(data, columns)
    if label_names:  # numbers mean nothing without these names
        classes = arrays[str(columns.label)].to_pylist()
        arrays[str(columns.label)] = pa.array([label_names[i] if i is not None and i >= 0 else None for i in classes])
    return TableSource(name, table=pa.table(arrays), label_names=label_names), columns


def _class_names(data: Any, columns: Columns) -> tuple[str, ...]:
    """The names of a `ClassLabel` column of a `datasets.Dataset`."""
    features = getattr(data, "features", None)
    kind = features.get(columns.label) if isinstance(features, dict) else None
    return tuple(getattr(kind, "names", None) or ())


def _as_path(data: "str | os.PathLike[str]", columns: Columns) -> Path:
    if os.fspath(data) == STDIN:
        return _spool_stdin(columns.text or "text")
    path = Path(os.path.expanduser(data))
    if isinstance(data, str) and not os.path.exists(path) and path.suffix.lower() not in (*SUFFIXES, ".gz"):
        raise EbmcalError(f"There is no file {data!r:.80}. To pass a text, use a list: [text].")
    return path


def _spool_stdin(text_column: str) -> Path:
    """Standard input as a temporary file; the format is detected from the first characters."""
    content = sys.stdin.buffer.read()
    head = content[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise EbmcalError("Standard input (-) is empty. Pass a file or pipe one in.")
    names = [name.strip(b'" ') for name in re.split(rb"[,;\t|]", head.splitlines()[0])]
    suffix = ".csv" if text_column.encode() in names else ".txt"
    suffix = ".parquet" if head.startswith(b"PAR1") else ".json" if re.match(rb"\[?\s*\{", head) else suffix
    _spooled.append(TemporaryDirectory())
    path = _spooled[-1].path / f"stdin{suffix}"
    path.write_bytes(content)
    return path


def _named_columns(data: Any, columns: Columns) -> tuple[dict[str, Any], Columns] | None:
    """The columns of a table or a dict that are needed; None for data without column names."""
    import pyarrow as pa

    library = type(data).__module__.partition(".")[0]
    if library == "datasets" and isinstance(data, Mapping):
        raise EbmcalError(f"expected rows, got the splits {', '.join(data)}. Pass one of them, such as data['train'].")
    if library == "datasets" and not hasattr(data, "__len__"):
        raise EbmcalError("expected a Dataset, got a stream of rows. Load it without streaming.")
    if library == "datasets" and hasattr(data, "select_columns"):
        columns = columns.resolve(data.column_names)
        data = data.select_columns(columns.wanted(data.column_names)).with_format("arrow")[:]
    if isinstance(data, Mapping) or (library == "pandas" and hasattr(data, "columns")):
        names = {str(name): name for name in data}
        columns = columns.resolve([str(name) for name in data])
        return {name: data[names[name]] for name in columns.wanted(names)}, columns
    if not hasattr(data, "__arrow_c_stream__"):
        return None
    try:
        table = pa.table(data)
    except pa.ArrowInvalid:  # a single column, such as a pandas Series
        return None
    columns = columns.resolve(table.column_names)
    return {name: table[name] for name in columns.wanted(table.column_names)}, columns


def _listed_columns(data: Any, columns: Columns) -> tuple[dict[str, Any], Columns]:
    """The columns of texts, pairs of texts or (texts, labels)."""
    texts, labels = data, None
    if isinstance(data, tuple) and len(data) == 2:
        if all(isinstance(part, str) for part in data):
            raise EbmcalError("Two strings can be two texts or one pair: pass [first, second] or [(first, second)].")
        texts, labels = data
    texts = _items(texts)
    is_pair = bool(texts) and _is_pair(texts[0])
    if columns.pair and not is_pair:
        raise EbmcalError(f"text_pair_column is {columns.pair!r}, but the data has single texts; expected pairs.")
    if columns.id or (columns.label and labels is None):
        raise EbmcalError("A list of texts has no other columns. Pass (texts, labels) or a table.")
    text, pair, label = columns.text or "text", columns.pair or "text_pair", columns.label or "label"
    if not is_pair:
        found: dict[str, Any] = {text: texts}
    else:
        wrong = next((i for i, row in enumerate(texts) if not _is_pair(row)), None)
        if wrong is not None:
            raise EbmcalError(f"Row {wrong} is {_show(texts[wrong])}; expected a pair of texts, as in row 0.")
        found = {text: [row[0] for row in texts], pair: [row[1] for row in texts]}
    found |= {} if labels is None else {label: _items(labels)}
    return found, Columns(text, pair if is_pair else None, None if labels is None else label)


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2


def _items(values: Any) -> list[Any]:
    """The Python values of a list, an array, a Series, an Arrow column or an iterator."""
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise EbmcalError(f"expected {ACCEPTED}; got {_show(values)}.")
    return list(values)


def _as_arrow(values: Any, name: str, columns: Columns) -> "pa.Array":
    """One column. Texts must be strings without gaps. Mixed types are allowed in other columns only, as JSON."""
    import pyarrow as pa

    try:
        if hasattr(values, "__arrow_c_stream__"):
            column = pa.chunked_array(values).combine_chunks()
        else:
            column = pa.array(_items(values), from_pandas=True)  # NaN is a missing value
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if name in columns.names():
            raise _explain_mixture(_items(values), name, error) from error
        return pa.array([None if value is None else json.dumps(value, default=str) for value in _items(values)])
    if pa.types.is_dictionary(column.type):  # a categorical
        column = column.dictionary_decode()
    if name in columns.texts():
        _check_texts(column, name)
    return column


def _check_texts(column: "pa.Array", name: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        first = pc.index(pc.is_null(column), True).as_py()
        raise EbmcalError(
            f"Column {name!r} lacks {column.null_count:,} of {len(column):,} texts (None or NaN), the first in row "
            f"{first} (counting from 0). Remove these rows or fill them in."
        )
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if len(column) and not any(is_kind(column.type) for is_kind in kinds):
        raise EbmcalError(f"Column {name!r} starts with {_show(column[0].as_py())}; expected strings.")


def _explain_mixture(values: list[Any], name: str, error: Exception) -> EbmcalError:
    """Why a list cannot be one column: a lone surrogate, or a value of another type than the first."""
    first = next((value for value in values if value is not None), None)
    for i, value in enumerate(values):
        if isinstance(value, str) and has_surrogates(value):
            return EbmcalError(
                f"Column {name!r}, row {i} (counting from 0) has a lone surrogate, half a character: {value!r:.60}. "
                "Remove it."
            )
        if value is not None and type(value) is not type(first):
            return EbmcalError(
                f"Column {name!r} mixes types: it starts with {_show(first)} and has {_show(value)} in row {i} "
                "(counting from 0). Use one type."
            )
    return EbmcalError(f"Column {name!r} cannot be converted: {error}.")


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
