"""Python objects → Arrow: lists, (texts, labels), dicts of columns, `datasets.Dataset`, and all tables that support the
Arrow stream protocol (pandas, polars, pyarrow, duckdb)."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ebmcal.data.files import Columns, TableSource
from ebmcal.errors import EbmcalError, error_context

if TYPE_CHECKING:
    import pyarrow as pa

ACCEPTED = (
    "a path, a list of texts, a list of (text, text) pairs, a tuple (texts, labels), a dict of columns, a "
    "datasets.Dataset, or a table of pandas, polars, pyarrow or duckdb"
)


def object_source(data: Any, columns: Columns) -> tuple[TableSource, Columns]:
    """The table of an object, and its columns, which exist. Lists get the usual names."""
    import pyarrow as pa

    name = f"the {type(data).__name__}"
    with error_context(name):
        values, columns = _named_columns(data, columns) or _listed_columns(data, columns)
        arrays = {column: _as_arrow(values[column], column, columns) for column in values}
        lengths = {column: len(array) for column, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{column!r}: {n:,}" for column, n in lengths.items())
            raise EbmcalError(f"The columns have different numbers of rows ({counts}).")
        if not any(lengths.values()):
            raise EbmcalError("The data has no rows; expected at least one text.")
    features = getattr(data, "features", None)
    kind = features.get(columns.label) if isinstance(features, dict) else None
    label_names = tuple(getattr(kind, "names", None) or ())  # of a `datasets.ClassLabel`
    if label_names:  # numbers mean nothing without these names
        classes = arrays[str(columns.label)].to_pylist()
        arrays[str(columns.label)] = pa.array([label_names[i] if i is not None and i >= 0 else None for i in classes])
    return TableSource(name, table=pa.table(arrays), label_names=label_names), columns


def _named_columns(data: Any, columns: Columns) -> tuple[dict[str, Any], Columns] | None:
    """The columns of a table or a dict that are needed; None for data without column names."""
    import pyarrow as pa

    if type(data).__module__.partition(".")[0] == "datasets":
        if isinstance(data, Mapping) or not hasattr(data, "select_columns") or not hasattr(data, "__len__"):
            raise EbmcalError("expected one split of a Dataset that is not streamed, such as data['train'].")
        columns = columns.resolve(data.column_names)
        data = data.select_columns(columns.names()).with_format("arrow")[:]
    if isinstance(data, Mapping) or (hasattr(data, "columns") and hasattr(data, "iloc")):  # pandas: any kind of name
        names = {str(name): name for name in data}
        columns = columns.resolve([str(name) for name in data])
        return {name: data[names[name]] for name in columns.names()}, columns
    if not hasattr(data, "__arrow_c_stream__"):
        return None
    try:
        table = pa.table(data)
    except pa.ArrowInvalid:  # a single column, such as a pandas Series
        return None
    columns = columns.resolve(table.column_names)
    return {name: table[name] for name in columns.names()}, columns


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
    found: dict[str, Any] = {text: texts}
    if is_pair:
        wrong = next((i for i, row in enumerate(texts) if not _is_pair(row)), None)
        if wrong is not None:
            raise EbmcalError(
                f"Row {wrong} is {_show(texts[wrong])}; expected a pair of texts, as in row 0, the first."
            )
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
    """One column. Texts must be strings without gaps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        is_arrow = hasattr(values, "__arrow_c_stream__")
        column = pa.chunked_array(values).combine_chunks() if is_arrow else pa.array(_items(values), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise EbmcalError(f"Column {name!r} cannot be read as values of one type: {error}.") from error
    if pa.types.is_dictionary(column.type):  # a categorical
        column = column.dictionary_decode()
    if name not in columns.texts():
        return column
    if column.null_count:
        raise EbmcalError(
            f"Column {name!r} lacks {column.null_count:,} of {len(column):,} texts (None or NaN), the first in row "
            f"{pc.index(pc.is_null(column), True)} (counting from 0). Remove these rows or fill them in."
        )
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if len(column) and not any(is_kind(column.type) for is_kind in strings):
        raise EbmcalError(f"Column {name!r} starts with {_show(column[0].as_py())}; expected strings.")
    return column


def _show(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})"
