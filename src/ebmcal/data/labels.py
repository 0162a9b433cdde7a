"""Labels as written in a source → classes 0, 1, … with names, the same in all splits."""

import re

import numpy as np

from ebmcal.data.values import listed
from ebmcal.errors import EbmcalError

MAX_LABELS = 1000
NO_LABEL = ("-1", "-")  # how GLUE and the hub write a missing label
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def infer_label_names(values: list[str]) -> tuple[str, ...]:
    """Class names from the distinct labels of a source: integers in numeric order, other names sorted.

    >>> infer_label_names(["10", "9"]), infer_label_names(["b", "a"])
    (('9', '10'), ('a', 'b'))
    """
    if len(values) > MAX_LABELS:
        raise EbmcalError(
            f"The label column has {len(values):,} distinct values ({listed(values, 3)}); expected at most "
            f"{MAX_LABELS:,} classes. Choose another label column."
        )
    numbers = [value for value in values if _INTEGER.fullmatch(value)]
    if len(numbers) == len(values):
        plain = all(str(int(value)) == value for value in values)  # "01" is a name, not the number 1
        return tuple(sorted(values, key=int)) if plain else tuple(sorted(values))
    if numbers:
        names = [value for value in values if value not in numbers]
        raise EbmcalError(f"The labels mix numbers ({listed(numbers)}) and names ({listed(names)}). Use one kind.")
    return tuple(sorted(values))


def class_map(names: tuple[str, ...], by_number: bool) -> dict[str, int]:
    """Label as written → class. With `by_number` and names that are words, "0", "1", … are classes and "-1" is none.

    >>> class_map(("no", "yes"), by_number=True), class_map(("-1", "1"), by_number=True)
    ({'no': 0, 'yes': 1, '0': 0, '1': 1, '-1': -1, '-': -1}, {'-1': 0, '1': 1})
    """
    mapping = {name: i for i, name in enumerate(names)}
    if by_number and not any(_INTEGER.fullmatch(name) for name in names):
        mapping |= {str(i): i for i in range(len(names))} | dict.fromkeys(NO_LABEL, -1)
    return mapping


def encode_labels(
    values: list[str], codes: np.ndarray, places: np.ndarray, mapping: dict[str, int], unit: str, owner: str
) -> np.ndarray:
    """[n] int64 classes; -1 for a missing label (code -1). A label outside `mapping` is an error.

    values: distinct labels; codes [n]: index of each row's label; places [n]: line or row for messages;
    owner: what `mapping` is called in messages, for example "the labels of the training data".
    """
    unknown = [i for i, value in enumerate(values) if value not in mapping]
    if unknown:
        known = [name for name, i in mapping.items() if i >= 0]
        entries = [(values[i], np.flatnonzero(codes == i)) for i in unknown]
        verb = "is" if len(entries) == 1 else "are"
        raise EbmcalError(
            f"{describe_labels(entries, places, unit)} {verb} not in {owner} ({listed(known, 20)}). Correct or remove "
            "these rows."
        )
    table = np.array([mapping[value] for value in values] + [-1], dtype=np.int64)
    return table[codes]  # code -1 picks the last entry


def describe_labels(entries: list[tuple[str, np.ndarray]], places: np.ndarray, unit: str) -> str:
    """Labels with their number of rows and the first place, for a message.

    >>> describe_labels([("c", np.array([1, 2]))], np.array([10, 11, 12]), "line")
    "the label 'c' (2 rows, first in line 11)"
    """
    shown = [
        f"{name[:60]!r} ({len(rows):,} {'row' if len(rows) == 1 else 'rows'}, first in {unit} {places[rows[0]]})"
        for name, rows in entries[:5]
    ]
    more = f" and {len(entries) - 5} more" if len(entries) > 5 else ""
    return f"the {'label' if len(entries) == 1 else 'labels'} {', '.join(shown)}{more}"
