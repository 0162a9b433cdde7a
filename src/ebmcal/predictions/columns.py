"""What the columns of a prediction file mean: labels to class numbers, class columns to a matrix, and back.

Columns are `label`, `prob_<class>` or `logit_<class>`, and optionally `energy`, `id`, `text`, `text_pair`, several
human labels of each row (`human`) and `distance_<name>`; the arrays of an NPZ are `labels`, `probs` or `logits`,
`energies`, `ids`, `texts`, `text_pairs`. Other columns are left alone.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions.files import FileColumns
from ebmcal.predictions.human import HUMAN, human_labels, is_votes

_NPZ_NAMES = {"label": "labels", "energy": "energies", "id": "ids", "text": "texts", "text_pair": "text_pairs"}
_FAR = "distance_"
_PREFIXES = {"logits": "logit_", "probs": "prob_"}


def to_fields(table: FileColumns, label_names: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a table into the fields of `Predictions`; `label_names` puts the classes in that order.

    >>> fields = to_fields(FileColumns({"label": ["yes"], "prob_no": [0.2], "prob_yes": [0.8]}))
    >>> fields["labels"], fields["label_names"], fields["probs"]
    (array([1]), ('no', 'yes'), array([[0.2, 0.8]]))
    """
    plural = {short: table.columns[long] for short, long in _NPZ_NAMES.items() if long in table.columns}
    columns = plural | table.columns
    kind, matrix, names = _class_matrix(columns, table.label_names)
    human = human_labels(columns, names)
    if human is not None and ("label" not in table.columns and is_votes(columns.get("label", []))):
        columns["label"] = [names[i] for i in human.argmax(axis=1)]  # the majority; of a tie the first class
    labels = _labels(columns, names, are_indices=table.label_names is not None)
    order, names = _order(names, label_names)
    ids = columns.get("id")
    return {
        "labels": _moved(labels, order),
        "label_names": names,
        kind: matrix if order == sorted(order) else matrix[:, order],
        "energies": numbers(columns["energy"], "energy") if "energy" in columns else None,
        "distances": {c.removeprefix(_FAR): numbers(columns[c], c) for c in columns if c.startswith(_FAR)} or None,
        "ids": None if ids is None else np.array([str(i) for i in ids], dtype=object),
        "texts": _texts(columns, "text"),
        "text_pairs": _texts(columns, "text_pair"),
        "human": None if human is None else human[:, order],
        "meta": table.meta,
    }


def to_columns(fields: dict[str, Any], suffix: str) -> FileColumns:
    """The columns to write for the fields of `Predictions`, in the layout of the file kind."""
    kind = "logits" if fields["logits"] is not None else "probs"
    names, labels = fields["label_names"], fields["labels"]
    optional = {"energy": fields["energies"], "text": fields["texts"], "text_pair": fields["text_pairs"]}
    optional = {name: column for name, column in optional.items() if column is not None}
    distances = {_FAR + name: column for name, column in (fields["distances"] or {}).items()}
    ids = [str(i) for i in fields["ids"]]
    human = fields.get("human")
    if suffix == ".npz":
        arrays = {"ids": np.array(ids), "labels": labels, kind: fields[kind]}
        arrays |= {} if human is None else {"human": human}
        return FileColumns(arrays | {_NPZ_NAMES[n]: c for n, c in optional.items()} | distances, names, fields["meta"])
    classes = {_PREFIXES[kind] + name: fields[kind][:, i] for i, name in enumerate(names)}
    if human is not None:
        classes |= {HUMAN + name: human[:, i] for i, name in enumerate(names)}
    by_name = [names[i] if i >= 0 else "" for i in labels]
    # Parquet carries the class names, so an integer is safe there; elsewhere "1" might be a class or an index.
    label = {"label": labels, "label_name": by_name} if suffix == ".parquet" else {"label": by_name}
    return FileColumns({"id": ids} | label | classes | optional | distances, names, fields["meta"])


def without_error_rows(table: FileColumns, where: object) -> FileColumns:
    """The table without the rows that `ebmcal predict` could not read, which have an `error` and no figures; says so.

    >>> table = FileColumns({"label": ["a", ""], "prob_a": np.array([1.0, 0.5]), "error": ["", ""]})
    >>> without_error_rows(table, "mine.csv").n_rows
    2
    """
    errors = table.columns.get("error")
    figures = [column for name, column in table.columns.items() if name.startswith(tuple(_PREFIXES.values()))]
    if errors is None or (not figures and not all(errors)):
        return table
    wrong = [i for i, error in enumerate(errors) if error and all(_is_missing(column[i]) for column in figures)]
    if not wrong:
        return table
    if len(wrong) == table.n_rows:
        raise EbmcalError(f"{where} has error rows only; the first: {_shown(errors[wrong[0]])}")
    said = (
        "1 row has an error and is left out"
        if len(wrong) == 1
        else f"{len(wrong):,} rows have an error and are left out"
    )
    warnings.warn(f"{where}: {said}.", stacklevel=3)
    kept = np.delete(np.arange(table.n_rows), wrong)
    columns = {n: c[kept] if isinstance(c, np.ndarray) else [c[i] for i in kept] for n, c in table.columns.items()}
    return FileColumns(columns, table.label_names, table.meta)


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
        raise EbmcalError(f"column {name!r}, row {row} is {_shown(value)}, which is no number.") from error


def _class_matrix(columns: dict[str, Any], names: tuple[str, ...] | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    if "logits" in columns or "probs" in columns:
        return _one_matrix(columns, names)
    found = {kind: [c for c in columns if c.startswith(prefix)] for kind, prefix in _PREFIXES.items()}
    found = {kind: names for kind, names in found.items() if names}
    if len(found) != 1:
        raise EbmcalError(_which_columns(columns, found))
    (kind, present), prefix = next(iter(found.items())), _PREFIXES[next(iter(found))]
    if names is None:
        names = tuple(column.removeprefix(prefix) for column in present)
    missing = [prefix + name for name in names if prefix + name not in columns]
    if missing:
        raise EbmcalError(f"no column {missing[0]!r} for the class {missing[0].removeprefix(prefix)!r}.")
    return kind, np.stack([numbers(columns[prefix + name], prefix + name) for name in names], axis=1), names


def _which_columns(columns: dict[str, Any], found: dict[str, list[str]]) -> str:
    if found:
        return f"both {found['logits'][0]!r} and {found['probs'][0]!r} came; keep the logit_ or the prob_ columns."
    shown = ", ".join(repr(c) for c in list(columns)[:20]) or "none"
    return (
        f"no class columns. A column a class is needed, named prob_<class> or logit_<class>; the columns are {shown}."
    )


def _one_matrix(columns: dict[str, Any], names: tuple[str, ...] | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    if "logits" in columns and "probs" in columns:
        raise EbmcalError("both 'logits' and 'probs' came; keep one of them.")
    kind = "logits" if "logits" in columns else "probs"
    try:
        matrix = np.asarray(columns[kind])
    except ValueError as error:
        raise EbmcalError(f"the rows of {kind!r} differ in length.") from error
    if matrix.ndim != 2:
        raise EbmcalError(f"{kind!r} must be [n, C]; {list(matrix.shape)} came.")
    return kind, matrix, tuple(str(i) for i in range(matrix.shape[1])) if names is None else names


def _order(names: tuple[str, ...], wanted: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:
    """Which class of the file stands at each place of the wanted order, and the names in that order."""
    same = list(range(len(names)))
    if wanted is None:
        return same, names
    wanted = tuple(str(name) for name in wanted)
    if sorted(wanted) == sorted(names):
        return [names.index(name) for name in wanted], wanted
    if len(wanted) == len(names) and names == tuple(str(i) for i in same):
        return same, wanted  # the file numbers its classes
    raise EbmcalError(f"the classes are {', '.join(names)}, not {', '.join(wanted)}.")


def _moved(labels: np.ndarray, order: list[int]) -> np.ndarray:
    """Labels of the file as places in the wanted order; out of range ones stay, for the checks to name."""
    if order == sorted(order) or labels.min() < -1 or labels.max() >= len(order):
        return labels
    return np.append(np.argsort(order), -1)[labels]  # the last place is for −1, unknown


def _texts(columns: dict[str, Any], name: str) -> list[str] | None:
    return None if name not in columns else ["" if text is None else str(text) for text in columns[name]]


def _labels(columns: dict[str, Any], names: tuple[str, ...], *, are_indices: bool) -> np.ndarray:
    if "label" not in columns:
        shown = ", ".join(repr(c) for c in list(columns)[:20])
        raise EbmcalError(
            f"no column 'label' (leave it empty or −1 where the label is unknown); the columns are {shown}."
        )
    column = columns["label"]
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and (are_indices or not _any_integer(names)):
        if not are_indices and (column >= 0).any():
            _say_positions(names, "logits" in columns or "probs" in columns)
        return column
    known: dict[str | None, int] = {}  # each spelling is looked up once
    spelt = [None if value is None else str(value) for value in column]  # a class may be called "None"
    for row, (word, value) in enumerate(zip(spelt, column, strict=True)):
        if word not in known:
            known[word] = _class_index(value, names, row)
    if any(place >= 0 and word not in names and not _is_float_of(word, names) for word, place in known.items()):
        _say_positions(names, "logits" in columns or "probs" in columns)
    return np.array([known[word] for word in spelt], dtype=np.int64)


def _is_float_of(word: str | None, names: tuple[str, ...]) -> bool:
    """Whether "1.0" stands for a class "1"."""
    return str(_integer(word)) in names


def _say_positions(names: tuple[str, ...], is_matrix: bool) -> None:
    """Labels are numbers and classes have names: say what is what, and refuse where it could also be otherwise."""
    if is_matrix:  # the columns of a matrix have no names but their numbers
        return
    if list(names) != sorted(names):
        raise EbmcalError(
            f"the labels are numbers and the classes have names: 0 may be {names[0]!r}, the first column, or "
            f"{min(names)!r}, the first by alphabet. Write the names of the classes into the column 'label'."
        )
    read = ", ".join(f"{i} = {name}" for i, name in enumerate(names[:6])) + (", …" if len(names) > 6 else "")
    warnings.warn(f"The labels are numbers and were read as {read}.", stacklevel=2)


def _any_integer(names: tuple[str, ...]) -> bool:
    return any(_integer(name) is not None for name in names)


def _class_index(value: Any, names: tuple[str, ...], row: int) -> int:
    """By class name first; else an integer is an index, unless classes are named by integers; −1 is unknown."""
    if value is None:
        return -1
    if str(value) in names:
        return names.index(str(value))
    number = _integer(value)
    if number is not None and str(number) in names:  # "1.0" for a class "1": integers that somebody kept as floats
        return names.index(str(number))
    if value == "" or value != value or number == -1:
        return -1
    if number is None or not 0 <= number < len(names) or _any_integer(names):
        if len(names) == 1:
            raise EbmcalError(
                f"column 'label', row {row} is {_shown(value)}, and there is one class column only ({names[0]}); a "
                "column for each class is needed, also for two."
            )
        raise EbmcalError(f"column 'label', row {row}: {unknown_name('class', _shown(value), names)}")
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
