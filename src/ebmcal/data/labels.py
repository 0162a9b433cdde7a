"""Labels as written in files → classes 0, 1, … with names, the same in every split."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.data.store import StoredPart
from ebmcal.errors import EbmcalError

_NUMBER = re.compile(r"-?[0-9]{1,18}")
MISSING = ("-1", "-")  # how GLUE and the hub write "no label"


def infer_names(values: list[str], source: Path | str) -> tuple[str, ...]:
    """Class names of a user's labels: integers in their own order, names sorted.

    >>> infer_names(["10", "9"], "train.csv"), infer_names(["b", "a"], "train.csv")
    (('9', '10'), ('a', 'b'))
    """
    numbers = [value for value in values if _NUMBER.fullmatch(value)]
    if len(numbers) == len(values):
        plain = all(str(int(value)) == value for value in values)  # "01" is a name, not the number 1
        return tuple(sorted(values, key=int)) if plain else tuple(sorted(values))
    if numbers:
        names = [value for value in values if value not in numbers]
        raise EbmcalError(
            f"The labels of {source} mix numbers ({_some(numbers)}) and names ({_some(names)}). Spell them one way."
        )
    return tuple(sorted(values))


def class_map(names: tuple[str, ...], by_number: bool) -> dict[str, int]:
    """Label as written → class. `by_number`: where the names are words, "0", "1", … mean them too, and "-1" none.

    >>> class_map(("no", "yes"), by_number=True), class_map(("-1", "1"), by_number=True)
    ({'no': 0, 'yes': 1, '0': 0, '1': 1, '-1': -1, '-': -1}, {'-1': 0, '1': 1})
    """
    mapping = {name: i for i, name in enumerate(names)}
    if by_number and not any(_NUMBER.fullmatch(name) for name in names):
        mapping |= {str(i): i for i in range(len(names))} | dict.fromkeys(MISSING, -1)
    return mapping


def classes_of(part: StoredPart, mapping: dict[str, int], what: str, who: str = "training never saw") -> np.ndarray:
    """[n] int64 classes of a part, -1 where the label is missing; a label outside `mapping` is an error."""
    unknown = [entry for entry in part.info["labels"] if entry["value"] not in mapping]
    if unknown:
        known = [name for name, i in mapping.items() if i >= 0]
        raise EbmcalError(f"{what} has {_listed(unknown)} that {who}; known are {_some(known, 20)}.")
    table = np.array([mapping[value] for value in part.label_values] + [-1], dtype=np.int64)
    return table[part.codes]  # code -1 picks the last entry


def check_seen(train: np.ndarray, other: np.ndarray, ids: np.ndarray, names: tuple[str, ...], what: str) -> None:
    """Raise when a split holds a class that training does not, saying which, how often and where first."""
    counts = [np.bincount(classes, minlength=len(names)) for classes in (train, other)]
    unseen = np.flatnonzero((counts[0] == 0) & (counts[1] > 0))
    if len(unseen):
        entries = [_entry(names[c], np.flatnonzero(other == c), ids) for c in unseen]
        raise EbmcalError(
            f"{what} has {_listed(entries)} that training never saw. Add training rows of that label or remove these."
        )


def _entry(name: str, places: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
    return {"value": name, "rows": len(places), "first_row": int(ids[places[0]])}


def _listed(entries: list[dict[str, Any]]) -> str:
    shown = [f"{e['value'][:60]!r} ({e['rows']:,} rows, first row {e['first_row']} from 0)" for e in entries[:5]]
    more = f" and {len(entries) - 5} more" if len(entries) > 5 else ""
    return f"the label{'s' if len(entries) > 1 else ''} {', '.join(shown)}{more}"


def _some(values: list[str], n: int = 5) -> str:
    shown = ", ".join(repr(value[:60]) for value in values[:n])
    return shown + (", …" if len(values) > n else "")
