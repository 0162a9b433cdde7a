"""Several human labels of a row in a file: a column `human_<class>` of counts or shares for each class, or a column
`labels` with a list of labels, or of classes with counts, in each row (an array `human` [n, C] in an NPZ).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name

HUMAN = "human_"


def human_labels(columns: Mapping[str, Any], names: Sequence[str]) -> np.ndarray | None:
    """Counts [n, C] of what people said, or None where a file has none.

    >>> human_labels({"labels": [["yes", "yes", "no"], {"no": 2}]}, ["no", "yes"]).tolist()
    [[1.0, 2.0], [2.0, 0.0]]
    """
    if "human" in columns and np.ndim(columns["human"]) == 2:
        return np.asarray(columns["human"], dtype=np.float64)
    present = [HUMAN + name for name in names if HUMAN + name in columns]
    if present and len(present) < len(names):
        missing = next(HUMAN + name for name in names if HUMAN + name not in columns)
        raise EbmcalError(f"there is a column {present[0]!r} and none {missing!r}; one for each class is needed.")
    if present:
        return np.stack([_counts(columns[name], name) for name in present], axis=1)
    return _votes(columns["labels"], list(names)) if is_votes(columns.get("labels", [])) else None


def is_votes(column: Any) -> bool:
    """Whether a column holds several labels a row, and not one."""
    first = next((value for value in column if value is not None), None)
    return isinstance(first, list | tuple | dict) or (isinstance(first, np.ndarray) and first.ndim == 1)


def _counts(column: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EbmcalError(f"column {name!r} must hold counts or shares of human labels: {error}.") from error


def _votes(column: Any, names: list[str]) -> np.ndarray:
    counts = np.zeros((len(column), len(names)))
    for row, said in enumerate(column):
        pairs = said.items() if isinstance(said, dict) else ((label, 1) for label in (() if said is None else said))
        for label, n in pairs:
            if str(label) not in names:
                raise EbmcalError(f"column 'labels', row {row}: {unknown_name('class', str(label), names)}")
            counts[row, names.index(str(label))] += 0 if n is None else float(n)
    return counts
