"""The columns of a prediction file: labels to class indices, class columns to a matrix, and back.

Columns are `label`, `prob_<class>` or `logit_<class>`, and optionally `energy`, `id`, `text`, `text_pair`,
`distance_<name>`, and several human labels per row: `human_<class>` (counts or shares), or a column `labels` with a
list of labels, or of classes with counts, in each row. The arrays of an NPZ are `labels`, `probs` or `logits`,
`energies`, `ids`, `texts`, `text_pairs`, `human`. Other columns are ignored.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions.files import FileColumns

_NPZ_NAMES = {"label": "labels", "energy": "energies", "id": "ids", "text": "texts", "text_pair": "text_pairs"}
_DISTANCE = "distance_"
_HUMAN = "human_"
_PREFIXES = {"logits": "logit_", "probs": "prob_"}


def to_fields(
    table: FileColumns, label_names: Sequence[str] | None = None, *, labels_required: bool = True
) -> dict[str, Any]:
    """The arguments of `Predictions` in a table; `label_names` reorders the classes.

    >>> fields = to_fields(FileColumns({"label": ["yes"], "prob_no": [0.2], "prob_yes": [0.8]}))
    >>> fields["labels"], fields["label_names"], fields["probs"]
    (array([1]), ('no', 'yes'), array([[0.2, 0.8]]))
    """
    plural = {short: table.columns[long] for short, long in _NPZ_NAMES.items() if long in table.columns}
    columns = plural | table.columns
    if not labels_required and "label" not in columns:
        columns["label"] = [None] * table.n_rows
    _check_lengths(columns)
    kind, matrix, names = _class_matrix(columns, table.label_names)
    human = _human_labels(columns, names)
    if human is not None and "label" not in table.columns and _is_votes(columns.get("label", [])):
        columns["label"] = [names[i] for i in human.argmax(axis=1)]  # the majority; of a tie the first class
    labels = _labels(columns, names, are_indices=table.label_names is not None)
    order, names = _order(names, label_names)
    ids = columns.get("id")
    return {
        "labels": _reordered(labels, order),
        "label_names": names,
        kind: matrix if order == sorted(order) else matrix[:, order],
        "energies": numbers(columns["energy"], "energy") if "energy" in columns else None,
        "distances": {c.removeprefix(_DISTANCE): numbers(columns[c], c) for c in columns if c.startswith(_DISTANCE)}
        or None,
        "ids": None if ids is None else np.array([str(i) for i in ids], dtype=object),
        "texts": _texts(columns, "text"),
        "text_pairs": _texts(columns, "text_pair"),
        "human": None if human is None else human[:, order],
        "meta": table.meta,
    }


def to_columns(fields: Mapping[str, Any], kind: str, matrix: np.ndarray, suffix: str) -> FileColumns:
    """The columns to write for the attributes of `Predictions`, in the layout of the file format."""
    names, labels = fields["label_names"], fields["labels"]
    optional = {"energy": fields["energies"], "text": fields["texts"], "text_pair": fields["text_pairs"]}
    optional = {name: column for name, column in optional.items() if column is not None}
    distances = {_DISTANCE + name: column for name, column in (fields["distances"] or {}).items()}
    ids = [str(i) for i in fields["ids"]]
    human = fields["human"]
    if suffix == ".npz":
        arrays = {"ids": np.array(ids), "labels": labels, kind: matrix}
        arrays |= {} if human is None else {"human": human}
        return FileColumns(arrays | {_NPZ_NAMES[n]: c for n, c in optional.items()} | distances, names, fields["meta"])
    classes = {_PREFIXES[kind] + name: matrix[:, i] for i, name in enumerate(names)}
    if human is not None:
        classes |= {_HUMAN + name: human[:, i] for i, name in enumerate(names)}
    by_name = [names[i] if i >= 0 else "" for i in labels]
    # Parquet stores the class names, so an integer is safe there; elsewhere "1" might be a class or an index.
    label = {"label": labels, "label_name": by_name} if suffix == ".parquet" else {"label": by_name}
    return FileColumns({"id": ids} | label | classes | optional | distances, names, fields["meta"])


def without_error_rows(table: FileColumns, where: object) -> FileColumns:
    """The table without the error rows of `ebmcal predict` (an `error` and no numbers); warns if there are any.

    >>> table = FileColumns({"label": ["a", ""], "prob_a": np.array([1.0, 0.5]), "error": ["", ""]})
    >>> without_error_rows(table, "mine.csv").n_rows
    2
    """
    errors = table.columns.get("error")
    classes = [column for name, column in table.columns.items() if name.startswith(tuple(_PREFIXES.values()))]
    if errors is None or (not classes and not all(errors)):
        return table
    bad = [i for i, error in enumerate(errors) if error and all(_is_missing(column[i]) for column in classes)]
    if not bad:
        return table
    if len(bad) == table.n_rows:
        raise EbmcalError(f"{where} has only error rows; the first: {_shown(errors[bad[0]])}")
    message = "1 row has an error and is" if len(bad) == 1 else f"{len(bad):,} rows have an error and are"
    warnings.warn(f"{where}: {message} left out.", stacklevel=3)
    return table.rows(np.delete(np.arange(table.n_rows), bad))


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or value != value


def numbers(column: Any, name: str) -> np.ndarray:
    """A column of finite numbers: floats as they are, anything else as float64; errors name column and row.

    >>> numbers([1, "2.5"], "energy")
    array([1. , 2.5])
    """
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iu":
        column = column.astype(np.float64)
    if not (isinstance(column, np.ndarray) and column.dtype.kind == "f"):
        column = np.array([_number(value, name, row) for row, value in enumerate(column)], dtype=np.float64)
    if column.dtype == np.float16:
        column = column.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        raise EbmcalError(f"column {name!r}, row {bad[0]} is {column[bad[0]]}; every number must be finite.")
    return column


def _number(value: Any, name: str, row: int) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise EbmcalError(f"column {name!r}, row {row} is {_shown(value)}; expected a number.") from error


def _check_lengths(columns: Mapping[str, Any]) -> None:
    """Known columns must have the same number of rows; other arrays of an NPZ may have any shape."""
    prefixes = (*_PREFIXES.values(), _HUMAN, _DISTANCE)
    known = {*_NPZ_NAMES, *_PREFIXES, "human"}
    lengths = {name: len(c) for name, c in columns.items() if name in known or name.startswith(prefixes)}
    first = next(iter(lengths), "")
    other = next((name for name, length in lengths.items() if length != lengths[first]), None)
    if other is not None:
        raise EbmcalError(
            f"columns differ in length: {first!r} has {lengths[first]:,} rows and {other!r} has {lengths[other]:,}."
        )


def _class_matrix(columns: Mapping[str, Any], names: tuple[str, ...] | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    if "logits" in columns or "probs" in columns:
        return _one_matrix(columns, names)
    found = {kind: [c for c in columns if c.startswith(prefix)] for kind, prefix in _PREFIXES.items()}
    found = {kind: names for kind, names in found.items() if names}
    if len(found) != 1:
        raise EbmcalError(_class_column_problem(columns, found))
    (kind, present), prefix = next(iter(found.items())), _PREFIXES[next(iter(found))]
    if names is None:
        names = tuple(column.removeprefix(prefix) for column in present)
    missing = next((prefix + name for name in names if prefix + name not in columns), None)
    if missing is not None:
        raise EbmcalError(f"there is no column {missing!r} for the class {missing.removeprefix(prefix)!r}.")
    extra = set(present) - {prefix + name for name in names}
    if extra:
        raise EbmcalError(f"the column {min(extra)!r} is not one of the classes {', '.join(names[:20])} of the file.")
    return kind, np.stack([numbers(columns[prefix + name], prefix + name) for name in names], axis=1), names


def _class_column_problem(columns: Mapping[str, Any], found: Mapping[str, list[str]]) -> str:
    if found:
        return f"both {found['logits'][0]!r} and {found['probs'][0]!r} exist; keep the logit_ or the prob_ columns."
    shown = ", ".join(repr(c) for c in list(columns)[:20]) or "none"
    return f"no class columns. Expected prob_<class> or logit_<class> for each class; the columns are {shown}."


def _one_matrix(columns: Mapping[str, Any], names: tuple[str, ...] | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    if "logits" in columns and "probs" in columns:
        raise EbmcalError("both 'logits' and 'probs' exist; keep one of them.")
    kind = "logits" if "logits" in columns else "probs"
    try:
        matrix = np.asarray(columns[kind])
    except ValueError as error:
        raise EbmcalError(f"the rows of {kind!r} differ in length.") from error
    if matrix.ndim != 2:
        raise EbmcalError(f"{kind!r}: expected shape (n_rows, n_classes), got {matrix.shape}.")
    return kind, matrix, tuple(str(i) for i in range(matrix.shape[1])) if names is None else names


def _order(names: tuple[str, ...], wanted: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:
    """Which class of the file is at each position of the wanted order, and the names in that order."""
    same = list(range(len(names)))
    if wanted is None:
        return same, names
    wanted = tuple(str(name) for name in wanted)
    if sorted(wanted) == sorted(names):
        places = {name: i for i, name in enumerate(names)}
        return [places[name] for name in wanted], wanted
    if len(wanted) == len(names) and names == tuple(str(i) for i in same):
        return same, wanted  # the file numbers its classes
    raise EbmcalError(f"the classes are {', '.join(names[:20])}; expected {', '.join(wanted[:20])}.")


def _reordered(labels: np.ndarray, order: list[int]) -> np.ndarray:
    """Labels of the file as positions in the wanted order; invalid ones stay, for `Predictions` to report."""
    if order == sorted(order) or labels.min() < -1 or labels.max() >= len(order):
        return labels
    return np.append(np.argsort(order), -1)[labels]  # the last entry is for −1, unknown


def _texts(columns: Mapping[str, Any], name: str) -> list[str] | None:
    return None if name not in columns else ["" if text is None else str(text) for text in columns[name]]


def _labels(columns: Mapping[str, Any], names: tuple[str, ...], *, are_indices: bool) -> np.ndarray:
    if "label" not in columns:
        shown = ", ".join(repr(c) for c in list(columns)[:20])
        raise EbmcalError(f"no column 'label' (empty or −1 where the label is unknown); the columns are {shown}.")
    column = columns["label"]
    has_integer_names = any(_integer(name) is not None for name in names)
    is_matrix = "logits" in columns or "probs" in columns
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and (are_indices or not has_integer_names):
        if not are_indices and (column >= 0).any():
            _explain_indices(names, is_matrix)
        return column
    places = {name: i for i, name in enumerate(names)}
    known: dict[str | None, int] = {}  # each spelling is looked up once
    spelt = [None if value is None else str(value) for value in column]  # a class may be called "None"
    for row, (word, value) in enumerate(zip(spelt, column, strict=True)):
        if word not in known:
            known[word] = _class_index(value, places, row, has_integer_names)
    if any(i >= 0 and word not in places and str(_integer(word)) not in places for word, i in known.items()):
        _explain_indices(names, is_matrix)
    return np.array([known[word] for word in spelt], dtype=np.int64)


def _explain_indices(names: tuple[str, ...], is_matrix: bool) -> None:
    """Labels are numbers, classes have names: warn how they are read; an error if that is ambiguous."""
    if is_matrix:  # the columns of a matrix have no names but their numbers
        return
    if list(names) != sorted(names):
        raise EbmcalError(
            f"the labels are numbers and the classes have names: 0 may be {names[0]!r}, the first column, or "
            f"{min(names)!r}, the first in alphabetical order. Write the names of the classes into the column 'label'."
        )
    read = ", ".join(f"{i} = {name}" for i, name in enumerate(names[:6])) + (", …" if len(names) > 6 else "")
    warnings.warn(f"The labels are numbers and were read as {read}.", stacklevel=2)


def _class_index(value: Any, places: Mapping[str, int], row: int, has_integer_names: bool) -> int:
    """By class name first; else an integer is an index, unless classes are named by integers; −1 is unknown."""
    if value is None:
        return -1
    if str(value) in places:
        return places[str(value)]
    number = _integer(value)
    if number is not None and str(number) in places:  # "1.0" for a class "1": integers stored as floats
        return places[str(number)]
    if value == "" or value != value or number == -1:
        return -1
    if number is None or not 0 <= number < len(places) or has_integer_names:
        if len(places) == 1:
            raise EbmcalError(
                f"column 'label', row {row} is {_shown(value)}, but there is only one class column "
                f"({next(iter(places))}). Add a column for each class, also with two classes."
            )
        raise EbmcalError(f"column 'label', row {row}: {unknown_name('class', _shown(value), places)}")
    return number


def _integer(value: Any) -> int | None:
    try:
        number = float(value)
        return int(number) if number.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _human_labels(columns: Mapping[str, Any], names: Sequence[str]) -> np.ndarray | None:
    """Counts or shares [n, C] of several human labels per row; None if a file has none."""
    if "human" in columns and np.ndim(columns["human"]) == 2:
        counts = np.asarray(columns["human"], dtype=np.float64)
        if counts.shape[1] != len(names):
            raise EbmcalError(
                f"'human' has {counts.shape[1]} columns for {len(names)} classes; expected one per class."
            )
        return counts
    present = [_HUMAN + name for name in names if _HUMAN + name in columns]
    if present and len(present) < len(names):
        missing = next(_HUMAN + name for name in names if _HUMAN + name not in columns)
        raise EbmcalError(f"there is a column {present[0]!r} but no {missing!r}; expected one per class.")
    if present:
        return np.stack([numbers(columns[name], name) for name in present], axis=1)
    return _count_votes(columns["labels"], names) if _is_votes(columns.get("labels", [])) else None


def _is_votes(column: Any) -> bool:
    """Whether a column holds several labels per row."""
    first = next((value for value in column if value is not None), None)
    return isinstance(first, list | tuple | dict) or (isinstance(first, np.ndarray) and first.ndim == 1)


def _count_votes(column: Any, names: Sequence[str]) -> np.ndarray:
    places = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(column), len(names)))
    for row, votes in enumerate(column):
        if not (votes is None or isinstance(votes, list | tuple | dict | np.ndarray)):
            raise EbmcalError(f"column 'labels', row {row} is {_shown(votes)}; expected a list of labels or counts.")
        pairs = votes.items() if isinstance(votes, dict) else [(label, 1) for label in (() if votes is None else votes)]
        for label, n in pairs:
            if str(label) not in places:
                raise EbmcalError(f"column 'labels', row {row}: {unknown_name('class', str(label), names)}")
            counts[row, places[str(label)]] += 0 if n is None else _number(n, "labels", row)
    return counts
