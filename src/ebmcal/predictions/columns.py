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
from ebmcal.predictions.arrays import as_array
from ebmcal.predictions.files import NUMBER_PREFIXES, FileColumns

_NPZ_NAMES = {"label": "labels", "energy": "energies", "id": "ids", "text": "texts", "text_pair": "text_pairs"}
_PREFIXES = {"logits": "logit_", "probs": "prob_"}
_DISTANCE, _HUMAN = "distance_", "human_"


def without_error_rows(table: FileColumns, where: object) -> FileColumns:
    """The table without the error rows of `ebmcal predict` (an `error` and no numbers); warns if there are any."""
    errors = table.columns.get("error", [])
    classes = [column for name, column in table.columns.items() if name.startswith(tuple(_PREFIXES.values()))]
    if not classes and not all(errors):
        return table
    missing = (None, "")
    bad = [i for i, e in enumerate(errors) if e and all(c[i] in missing or c[i] != c[i] for c in classes)]
    if len(bad) == table.n_rows:
        raise EbmcalError(f"{where} has only error rows; the first: {_shown(errors[0])}")
    if not bad:
        return table
    message = "1 row has an error and is" if len(bad) == 1 else f"{len(bad):,} rows have an error and are"
    warnings.warn(f"{where}: {message} left out.", stacklevel=3)
    return table.rows(np.delete(np.arange(table.n_rows), bad))


def to_fields(
    table: FileColumns, label_names: Sequence[str] | None = None, *, labels_required: bool = True
) -> dict[str, Any]:
    """The arguments of `Predictions` in a table; `label_names` names the classes of a file that numbers them.

    >>> fields = to_fields(FileColumns({"label": ["yes"], "prob_no": [0.2], "prob_yes": [0.8]}))
    >>> fields["labels"], fields["label_names"], fields["probs"]
    (array([1]), ('no', 'yes'), array([[0.2, 0.8]]))
    """
    columns: dict[str, Any] = {n: table.columns[long] for n, long in _NPZ_NAMES.items() if long in table.columns}
    columns |= table.columns
    if not labels_required and "label" not in columns:
        columns["label"] = [None] * table.n_rows
    _check_lengths(columns)
    kind, matrix, names = _class_matrix(columns, table.label_names)
    human = _human_labels(columns, names)
    if human is not None and "label" not in table.columns and _is_votes(columns.get("label", [])):
        columns["label"] = [names[i] for i in human.argmax(axis=1)]  # the majority; of a tie the first class
    labels = _labels(columns, names, are_indices=table.label_names is not None)
    is_numbered = names == tuple(map(str, range(len(names)))) and len(label_names or ()) == len(names)
    if label_names is not None and is_numbered and sorted(label_names) != sorted(names):
        names = tuple(map(str, label_names))
    return {
        "labels": labels,
        "label_names": names,
        kind: matrix,
        "energies": numbers(columns["energy"], "energy") if "energy" in columns else None,
        "distances": {n.removeprefix(_DISTANCE): numbers(c, n) for n, c in columns.items() if n.startswith(_DISTANCE)}
        or None,
        "ids": columns.get("id"),
        "texts": _texts(columns, "text"),
        "text_pairs": _texts(columns, "text_pair"),
        "human": human,
        "meta": table.meta,
    }


def to_columns(fields: Mapping[str, Any], kind: str, matrix: np.ndarray, suffix: str) -> FileColumns:
    """The columns to write for the attributes of `Predictions`, in the layout of the file format."""
    names, labels, human = fields["label_names"], fields["labels"], fields["human"]
    optional = {"energy": fields["energies"], "text": fields["texts"], "text_pair": fields["text_pairs"]}
    optional = {name: column for name, column in optional.items() if column is not None}
    distances = {_DISTANCE + name: column for name, column in (fields["distances"] or {}).items()}
    ids = [str(i) for i in fields["ids"]]
    if suffix == ".npz":
        arrays = {"ids": np.array(ids), "labels": labels, kind: matrix} | ({} if human is None else {"human": human})
        return FileColumns(arrays | {_NPZ_NAMES[n]: c for n, c in optional.items()} | distances, names, fields["meta"])
    classes = {_PREFIXES[kind] + name: matrix[:, i] for i, name in enumerate(names)}
    if human is not None:
        classes |= {_HUMAN + name: human[:, i] for i, name in enumerate(names)}
    by_name = [names[i] if i >= 0 else "" for i in labels]
    # Parquet stores the class names, so an integer is safe there; elsewhere "1" might be a class or an index.
    label = {"label": labels, "label_name": by_name} if suffix == ".parquet" else {"label": by_name}
    return FileColumns({"id": ids} | label | classes | optional | distances, names, fields["meta"])


def numbers(column: Any, name: str) -> np.ndarray:
    """A column of finite numbers: float32 and float64 as they are, anything else as float64; errors name the row.

    >>> numbers([1, "2.5"], "energy")
    array([1. , 2.5])
    """
    if not (isinstance(column, np.ndarray) and column.dtype in (np.float32, np.float64)):
        column = np.array([_number(value, name, row) for row, value in enumerate(column)], dtype=np.float64)
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
    known = {*_NPZ_NAMES, *_PREFIXES, "human"}
    lengths = {name: len(c) for name, c in columns.items() if name in known or name.startswith(NUMBER_PREFIXES)}
    first = next(iter(lengths), "")
    other = next((name for name, length in lengths.items() if length != lengths[first]), None)
    if other is not None:
        raise EbmcalError(
            f"columns differ in length: {first!r} has {lengths[first]:,} rows and {other!r} has {lengths[other]:,}."
        )


def _class_matrix(columns: Mapping[str, Any], names: tuple[str, ...] | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    found = {kind: [c for c in columns if c == kind or c.startswith(p)] for kind, p in _PREFIXES.items()}
    found = {kind: present for kind, present in found.items() if present}
    if len(found) == 2:
        raise EbmcalError(f"both {found['logits'][0]!r} and {found['probs'][0]!r} exist; keep one kind.")
    if not found:
        shown = ", ".join(repr(c) for c in list(columns)[:20]) or "none"
        raise EbmcalError(f"no class columns. Expected prob_<class> or logit_<class>; the columns are {shown}.")
    ((kind, present),) = found.items()
    if kind in present:
        matrix = as_array(columns[kind], kind)
        if matrix.ndim != 2:
            raise EbmcalError(f"{kind!r}: expected shape (n_rows, n_classes), got {matrix.shape}.")
        return kind, matrix, names or tuple(map(str, range(matrix.shape[1])))
    prefix = _PREFIXES[kind]
    names = names or tuple(column.removeprefix(prefix) for column in present)
    missing = next((prefix + name for name in names if prefix + name not in columns), None)
    if missing is not None:
        raise EbmcalError(f"there is no column {missing!r} for the class {missing.removeprefix(prefix)!r}.")
    if len(present) > len(names):
        extra = min(set(present) - {prefix + name for name in names})
        raise EbmcalError(f"the column {extra!r} is not one of the classes {', '.join(names[:20])} of the file.")
    return kind, np.stack([numbers(columns[prefix + name], prefix + name) for name in names], axis=1), names


def _texts(columns: Mapping[str, Any], name: str) -> list[str] | None:
    return None if name not in columns else ["" if text is None else str(text) for text in columns[name]]


def _labels(columns: Mapping[str, Any], names: tuple[str, ...], *, are_indices: bool) -> np.ndarray:
    """Class indices [n]: a label is a class name, else an index, unless classes are named by integers; −1 = unknown."""
    if "label" not in columns:
        shown = ", ".join(repr(c) for c in list(columns)[:20])
        raise EbmcalError(f"no column 'label' (empty or −1 where the label is unknown); the columns are {shown}.")
    column, places = columns["label"], {name: i for i, name in enumerate(names)}
    has_integer_names = any(_integer(name) is not None for name in names)
    if are_indices and isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        return column
    known: dict[str | None, int] = {}  # each spelling is looked up once
    is_index = False
    spelt = [None if value is None else str(value) for value in column]  # a class may be called "None"
    for row, word in enumerate(spelt):
        if word in known:
            continue
        number = None if word is None else _integer(word)
        if word in places:
            known[word] = places[word]
        elif number is not None and str(number) in places:  # "1.0" for a class "1": integers stored as floats
            known[word] = places[str(number)]
        elif word in (None, "", "nan") or number == -1:
            known[word] = -1
        elif number is not None and 0 <= number < len(places) and not has_integer_names:
            known[word], is_index = number, True
        elif len(places) == 1:
            raise EbmcalError(
                f"column 'label', row {row} is {_shown(word)}, but there is only one class column ({names[0]}). Add a "
                "column for each class, also with two classes."
            )
        else:
            raise EbmcalError(f"column 'label', row {row}: {unknown_name('class', _shown(word), places)}")
    if is_index:
        _explain_indices(names)
    return np.array([known[word] for word in spelt], dtype=np.int64)


def _explain_indices(names: tuple[str, ...]) -> None:
    """Labels are numbers, classes have names: warn how they are read; an error if that is ambiguous."""
    if list(names) != sorted(names):
        raise EbmcalError(
            f"the labels are numbers and the classes have names: 0 may be {names[0]!r}, the first column, or "
            f"{min(names)!r}, the first in alphabetical order. Write the names of the classes into the column 'label'."
        )
    read = ", ".join(f"{i} = {name}" for i, name in enumerate(names[:6])) + (", …" if len(names) > 6 else "")
    warnings.warn(f"The labels are numbers and were read as {read}.", stacklevel=2)


def _integer(value: str) -> int | None:
    try:
        number = float(value)
        return int(number) if number.is_integer() else None
    except ValueError:
        return None


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _human_labels(columns: Mapping[str, Any], names: Sequence[str]) -> np.ndarray | None:
    """Counts or shares [n, C] of several human labels per row; None if a file has none."""
    human = as_array(columns.get("human", 0), "human")
    if human.ndim == 2:
        return human
    given = [_HUMAN + name for name in names if _HUMAN + name in columns]
    if given and len(given) < len(names):
        missing = next(_HUMAN + name for name in names if _HUMAN + name not in columns)
        raise EbmcalError(f"there is a column {given[0]!r} but no {missing!r}; expected one per class.")
    if given:
        return np.stack([numbers(columns[name], name) for name in given], axis=1)
    return _count_votes(columns["labels"], names) if _is_votes(columns.get("labels", [])) else None


def _is_votes(column: Any) -> bool:
    """Whether a column holds several labels per row."""
    return isinstance(next((value for value in column if value is not None), None), list | dict)


def _count_votes(column: Any, names: Sequence[str]) -> np.ndarray:
    places = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(column), len(names)))
    for row, votes in enumerate(column):
        if not isinstance(votes, list | dict | None):
            raise EbmcalError(f"column 'labels', row {row} is {_shown(votes)}; expected a list of labels or counts.")
        pairs = votes.items() if isinstance(votes, dict) else [(label, 1) for label in votes or ()]
        for label, n in pairs:
            if str(label) not in places:
                raise EbmcalError(f"column 'labels', row {row}: {unknown_name('class', str(label), names)}")
            counts[row, places[str(label)]] += _number(n or 0, "labels", row)
    return counts
