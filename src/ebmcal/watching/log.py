"""A log of predictions: prediction files with a time column, cut into windows of time or of rows.

Beside the columns of every prediction file a log may have `time` (ISO 8601 or seconds since 1970), `decision` (answer,
abstain) and `unusual` (true, false). `label` is the true label where it is known, and need not be there.
"""

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, errors_of
from ebmcal.predictions import Predictions
from ebmcal.predictions.columns import without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns

ROWS = 500  # of a window where nothing is said
UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
TRUE = {True: True, False: False, "true": True, "false": False, "True": True, "False": False, "1": True, "0": False}


@dataclass(frozen=True, eq=False)
class Log:
    """Predictions in the order of time, with what was decided about them."""

    rows: Predictions
    times: np.ndarray | None = None  # [n] seconds since 1970, ascending
    abstained: np.ndarray | None = None  # [n] bool
    unusual: np.ndarray | None = None  # [n] bool

    def take(self, index: np.ndarray) -> "Log":
        parts = (None if part is None else part[index] for part in (self.times, self.abstained, self.unusual))
        return Log(self.rows.rows(index), *parts)


@dataclass(frozen=True, eq=False)
class Window:
    """A part of a log."""

    name: str
    log: Log


def read_log(
    paths: Sequence[str | PathLike[str]],
    *,
    label_names: Sequence[str] | None = None,
    time_column: str | None = None,
    normalize: bool = False,
    check: Callable[[Predictions, object], None] = lambda rows, path: None,
) -> Log:
    """Files of one log, joined and put in the order of time; `time_column` is "time" where there is one.

    Each file goes through `check` before it is joined; `normalize` is for probabilities that were rounded.
    """
    parts = [_read_part(path, label_names, time_column, normalize) for path in paths]
    if not parts:
        raise EbmcalError("No log was given. Give prediction files: what `ebmcal predict` writes.")
    for part, path in zip(parts, paths, strict=True):
        check(part.rows, path)
    with errors_of(", ".join(map(str, paths))):
        log = _joined(parts)
    if log.times is None:
        return log
    return log.take(np.argsort(log.times, kind="stable"))


def with_labels(log: Log, labels: str | PathLike[str]) -> Log:
    """The log with the true labels of a file, columns id and label, for the rows that it has."""
    found = _text_columns(Path(labels))
    names = {name: i for i, name in enumerate(log.rows.label_names)}
    wrong = next((label for label in found.values() if label not in names), None)
    if wrong is not None:
        raise EbmcalError(f"{labels}: the label {wrong!r} is none of {', '.join(names)}.")
    known = [names[found[i]] if i in found else old for i, old in zip(log.rows.ids, log.rows.labels, strict=True)]
    if not found.keys() & set(log.rows.ids):
        raise EbmcalError(f"{labels}: no id of it is in the log. Give the ids of the log, such as {log.rows.ids[0]!r}.")
    return replace(log, rows=replace(log.rows, labels=np.array(known)))


def windows_of(log: Log, *, every: str | None = None, n_rows: int | None = None) -> Iterator[Window]:
    """The log in windows of time ("1d", "6h") or of rows; by the day where it has times, else by 500 rows.

    >>> log = Log(Predictions([-1] * 5, ("a", "b"), probs=[[0.5, 0.5]] * 5))
    >>> [(window.name, window.log.rows.n_rows) for window in windows_of(log, n_rows=3)]
    [('rows 1–3', 3), ('rows 4–5', 2)]
    """
    if every and n_rows:
        raise EbmcalError("Windows are of time (--every) or of rows (--rows), not both.")
    if every and log.times is None:
        raise EbmcalError(f"--every {every} needs times, and the log has none: name their column with --time-column.")
    if log.times is not None and n_rows is None:
        yield from _by_time(log, log.times, every or "1d")
        return
    size, total = n_rows or ROWS, log.rows.n_rows
    if size < 1:
        raise EbmcalError(f"--rows is {size}; a window has one row at least.")
    for start in range(0, total, size):
        stop = min(start + size, total)
        yield Window(f"rows {start + 1:,}–{stop:,}", log.take(np.arange(start, stop)))


def _by_time(log: Log, times: np.ndarray, every: str) -> Iterator[Window]:
    step = seconds_of(every)
    numbers = np.floor(times / step)
    for number in np.unique(numbers):
        start = datetime.datetime.fromtimestamp(number * step, datetime.timezone.utc)
        name = start.strftime("%Y-%m-%d" if step % UNITS["d"] == 0 else "%Y-%m-%d %H:%M")
        yield Window(name, log.take(np.flatnonzero(numbers == number)))


def seconds_of(every: str) -> int:
    """The length of a window: "6h" is 21600."""
    found = re.fullmatch(r"(\d+)([mhdw])", every)
    if not found or not int(found[1]):
        raise EbmcalError(f"--every takes a number and m, h, d or w, as in 6h or 1d; {every!r} came.")
    return int(found[1]) * UNITS[found[2]]


def _read_part(
    path: str | PathLike[str], label_names: Sequence[str] | None, time_column: str | None, normalize: bool
) -> Log:
    table = without_error_rows(read_columns(path), path)
    columns = dict(table.columns)
    if not {"label", "labels"} & set(columns):
        n_rows = len(next(iter(columns.values())))
        columns["label"] = np.full(n_rows, -1) if table.label_names else [""] * n_rows
    with errors_of(path):
        meta = table.meta | _written_by(columns)
        rows = Predictions.of(FileColumns(columns, table.label_names, meta), label_names, normalize=normalize)
        name = time_column or "time"
        if time_column and name not in columns:
            raise EbmcalError(f"no column {name!r}; the columns are {', '.join(list(columns)[:20])}.")
        times = np.array([_time(v, i, name) for i, v in enumerate(columns[name])]) if name in columns else None
        decided: Any = columns.get("decision")
        abstained = None if _is_partial(decided) else np.array([str(d) == "abstain" for d in decided])
        return Log(rows, times, abstained, _flags(columns.get("unusual")))


def _written_by(columns: dict[str, Any]) -> dict[str, str]:
    """Which weights each row of a log of `ebmcal serve` says it is of; all must be the same."""
    is_of_server = {"time", "id", "model", "weights"} <= columns.keys()
    said = {str(value) for value in columns["weights"]} if is_of_server else set()
    if len(said) > 1:
        raise EbmcalError(f"the rows are of {len(said)} models (column weights). Give the rows of one.")
    return {"weights": said.pop()} if said else {}


def _is_partial(values: Any) -> bool:
    """Whether a column is not there, or not for every row: the rule was another when a part of the log was written."""
    return values is None or any(value is None or value == "" for value in values)


def _flags(values: Any) -> np.ndarray | None:
    if _is_partial(values):
        return None
    plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
    wrong = next((value for value in plain if value not in TRUE), None)
    if wrong is not None:
        raise EbmcalError(f"column 'unusual' holds {wrong!r}; true or false is expected.")
    return np.array([TRUE[value] for value in plain])


def _time(value: Any, row: int, column: str) -> float:
    try:
        if isinstance(value, datetime.datetime):
            return _utc(value)
        if isinstance(value, str) and not re.fullmatch(r"\d+(\.\d+)?", value):
            return _utc(datetime.datetime.fromisoformat(value.replace("Z", "+00:00")))
        number = float(value)
        if np.isfinite(number):
            return number
    except (TypeError, ValueError):
        pass
    raise EbmcalError(f"column {column!r}, row {row} is {value!r}; a time is 2026-01-31T12:00 or seconds since 1970.")


def _utc(when: datetime.datetime) -> float:
    return (when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)).timestamp()


def _joined(parts: Sequence[Log]) -> Log:
    first = parts[0]
    if len(parts) == 1:
        return first
    for name in ("times", "abstained", "unusual"):
        if len({getattr(part, name) is None for part in parts}) > 1:
            raise EbmcalError(f"some files have {name} and others have none; give files of one kind.")
    kinds = {(part.rows.logits is None, part.rows.energies is None, part.rows.label_names) for part in parts}
    if len(kinds) > 1:
        raise EbmcalError("the files differ in classes, or in having logits, probabilities or energies.")

    def join(get: Any) -> Any:
        values = [get(part) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    rows = Predictions(
        join(lambda p: p.rows.labels), first.rows.label_names, logits=join(lambda p: p.rows.logits),
        probs=join(lambda p: p.rows.probs) if first.rows.logits is None else None,  # type: ignore[arg-type]
        energies=join(lambda p: p.rows.energies), ids=join(lambda p: p.rows.ids), meta=first.rows.meta,
        distances=_joined_distances(parts),
    )  # fmt: skip
    return Log(rows, *(join(lambda p, n=name: getattr(p, n)) for name in ("times", "abstained", "unusual")))


def _joined_distances(parts: Sequence[Log]) -> dict[str, np.ndarray] | None:
    """The distances that all files have."""
    named = [part.rows.distances or {} for part in parts]
    shared = [name for name in named[0] if all(name in found for found in named)]
    return {name: np.concatenate([found[name] for found in named]) for name in shared} or None


def _text_columns(path: Path) -> dict[str, str]:
    columns = read_columns(path).columns
    if not {"id", "label"} <= set(columns):
        raise EbmcalError(f"{path} needs the columns id and label; it has {', '.join(columns)}.")
    pairs = zip(columns["id"], columns["label"], strict=True)
    return {str(i): str(label) for i, label in pairs if label is not None and str(label) != ""}
