"""What monitoring reads: the log of a model in use, cut into windows, and the reference to compare it with.

Besides the columns of prediction files a log may have `time` (ISO 8601, or seconds, milliseconds, … since 1970),
`decision` ("answer" or "abstain") and `is_ood` (true or false). `label` is the true label where it is known. The answer
log of `ebmcal serve --log` is such a file.
"""

import datetime
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ebmcal.calibration import folded_temperature, read_calibrator
from ebmcal.calibration.leakage import IDENTITY, distinct_rows, model_differences
from ebmcal.calibration.persistence import calibrator_fingerprint, read_for_model
from ebmcal.errors import EbmcalError, RowError, error_context, plural
from ebmcal.predictions import Predictions
from ebmcal.predictions.files import FileColumns, read_columns
from ebmcal.run_dir import predictions_of_model, weights_fingerprint
from ebmcal.selective import calibrated
from ebmcal.storage import PathLike, file_checksum

#: Rows a window needs to be tested, and a reference to compare with.
MIN_ROWS = 30

#: Splits of a run that can be the reference, in this order, and their names. Out-of-fold rows are training rows,
#: predicted by models trained without them.
REFERENCE_SPLITS = {
    "calibration": "the calibration split",
    "test": "the test split",
    "out_of_fold": "out-of-fold predictions",
}

WINDOW_ROWS = 500  # by default, in a log without times
UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
FLAGS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, eq=False)
class Log:
    """Predictions in order of time, with the logged decisions."""

    rows: Predictions
    times: np.ndarray | None = None  # [n] seconds since 1970
    abstained: np.ndarray | None = None  # [n] bool
    is_ood: np.ndarray | None = None  # [n] bool

    def take(self, index: np.ndarray) -> "Log":
        parts = (None if part is None else part[index] for part in (self.times, self.abstained, self.is_ood))
        return Log(self.rows.rows(index), *parts)


def read_log(
    paths: Sequence[PathLike],
    model: Path | None = None,
    *,
    label_names: Sequence[str] | None = None,
    time_column: str | None = None,
    normalize: bool = False,
) -> Log:
    """Read the files of one log, join them and sort them by time (`time_column`, by default "time" if it exists).

    Predictions of another model or calibrator than the given one are refused; rows of an answer log with another
    calibrator than others are left out with a warning. A file given twice, also as a copy, counts once, and so
    do rows with the same id, time and probabilities.
    """
    if not paths:
        raise EbmcalError("No log given. Expected prediction files, for example those that `ebmcal predict` writes.")
    parts: dict[str, Log] = {}
    for path in paths:
        key = file_checksum(path) if Path(path).is_file() else str(path)
        if key in parts:
            warnings.warn(f"{path} has the same content as another file and is counted once.", stacklevel=3)
            continue
        with error_context(path):
            parts[key] = _read_file(path, model, label_names, time_column, normalize)
        if model is not None:
            check_same_model(model, parts[key].rows, path)
    with error_context(", ".join(map(str, paths))):
        log = _join(list(parts.values()))
    return log if log.times is None else _without_repeats(log.take(np.argsort(log.times, kind="stable")))


def _read_file(
    path: PathLike, model: Path | None, label_names: Sequence[str] | None, time_column: str | None, normalize: bool
) -> Log:
    table = read_columns(path)
    columns, name = table.columns, time_column or "time"
    if time_column and name not in columns:
        raise EbmcalError(f"there is no column {name!r}; the columns are {', '.join(list(columns)[:20])}.")
    weights = {str(value) for value in columns["weights"]} if {"time", "weights"} <= columns.keys() else set()
    if len(weights) > 1:
        raise EbmcalError(f"the rows are from {len(weights)} models (column 'weights'). Give the rows of one model.")
    table.meta = table.meta | ({"weights": weights.pop()} if weights else {})
    if model is not None and {"time", "weights", "calibrator"} <= columns.keys():
        table = _with_calibrator(table, model)
        columns = table.columns
    rows = Predictions.from_columns(table, label_names, normalize=normalize, labels_required=False)
    with table.name_rows():
        times = parse_times(columns[name], name) if name in columns else None
    decisions, flags = (_complete(columns, column) for column in ("decision", "is_ood"))
    bad = next((flag for flag in flags or () if flag.lower() not in FLAGS), None)
    if bad is not None:
        raise EbmcalError(f"column 'is_ood': expected true or false, got {bad!r}.")
    abstained = None if decisions is None else np.array([decision == "abstain" for decision in decisions])
    return Log(rows, times, abstained, None if flags is None else np.array([FLAGS[flag.lower()] for flag in flags]))


def _with_calibrator(table: FileColumns, model: Path) -> FileColumns:
    """The rows of an answer log that were answered with the present calibrator of the model."""
    now = calibrator_fingerprint(read_calibrator(model)) or "none"
    given = list(map(str, table.columns["calibrator"]))
    same = np.flatnonzero([value == now for value in given])
    others = len(given) - len(same)
    if others and table.meta.get("weights") == weights_fingerprint(model):  # else it is of another model: refused
        if not len(same):
            raise EbmcalError(
                f"all {plural(others, 'row')} were answered before the model was calibrated again, so their "
                "confidences cannot be compared with those of now. Give a log written since then."
            )
        warnings.warn(
            f"{plural(others, 'row')} of the log were answered with another calibrator and are left out.", stacklevel=4
        )
        return table.rows(same)
    return table


def _complete(columns: dict[str, Any], name: str) -> list[str] | None:
    """A column, or None if it does not cover every row: part of the log was written with another abstention rule."""
    values = list(columns.get(name, []))
    return list(map(str, values)) if values and not any(value is None or value == "" for value in values) else None


def parse_times(column: Sequence[Any] | np.ndarray, name: str = "time") -> np.ndarray:
    """Seconds since 1970 [n] from ISO 8601 or numbers; the size of a number gives its unit (s, ms, µs or ns).

    >>> parse_times(["2026-01-01T00:00:00Z", 1767225600, 1767225600000, "1767225600.0"])
    array([1.7672256e+09, 1.7672256e+09, 1.7672256e+09, 1.7672256e+09])
    """
    given = pd.Series(list(column), dtype=object)
    numbers = given.where(given.map(lambda value: isinstance(value, str | int | float | np.number)))
    seconds = pd.to_numeric(numbers, errors="coerce").to_numpy(dtype=np.float64, copy=True)
    for limit in (1e17, 1e14, 1e11):  # the year 5138 in ns, µs and ms; until then, no smaller unit reaches it
        seconds = np.where(np.abs(seconds) >= limit, seconds / 1000, seconds)
    is_date = np.isnan(seconds)
    if is_date.any():
        dates = pd.to_datetime(given[is_date], utc=True, format="ISO8601", errors="coerce")
        seconds[is_date] = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    bad = np.flatnonzero(~(np.abs(seconds) < 1e11))
    if len(bad):
        expected = "a time such as 2026-01-31T12:00 or seconds (or milliseconds) since 1970"
        raise RowError(f"column {name!r}", f" is {given[bad[0]]!r}; expected {expected}.", bad[0])
    return seconds


def _join(parts: Sequence[Log]) -> Log:
    first = parts[0].rows
    extras = ("times", "abstained", "is_ood")
    for name in extras:
        if len({getattr(part, name) is None for part in parts}) > 1:
            raise EbmcalError(f"some files have {name.replace('_', ' ')} and others do not. Give files of one kind.")
    if len({(p.rows.logits is None, p.rows.energies is None, p.rows.label_names) for p in parts}) > 1:
        raise EbmcalError("the files differ in their classes, or in having logits, probabilities or energies.")

    def joined(values: list[Any]) -> Any:
        return None if values[0] is None else np.concatenate(values)

    names = ("labels", "energies", "ids", "probs" if first.logits is None else "logits")
    fields = {name: joined([getattr(part.rows, name) for part in parts]) for name in names}
    shared = set.intersection(*(set(part.rows.distances or ()) for part in parts))
    distances = {name: joined([(part.rows.distances or {})[name] for part in parts]) for name in shared}
    rows = Predictions(label_names=first.label_names, meta=first.meta, distances=distances or None, **fields)
    return Log(rows, *(joined([getattr(part, name) for part in parts]) for name in extras))


def _without_repeats(log: Log) -> Log:
    """Rows with the same id, time and probabilities are one prediction that was logged in several files."""
    frame = pd.DataFrame(log.rows.probs.round(9))
    repeated = frame.assign(id=log.rows.ids.astype(str), time=log.times).duplicated().to_numpy()
    if not repeated.any():
        return log
    warnings.warn(f"{repeated.sum():,} rows occur more than once in the log and are counted once.", stacklevel=3)
    return log.take(np.flatnonzero(~repeated))


def add_labels(log: Log, path: PathLike) -> Log:
    """The log with the true labels of a file with the columns id and label, for the rows it contains."""
    columns = read_columns(path).columns
    with error_context(path):
        if not {"id", "label"} <= columns.keys():
            raise EbmcalError(f"expected the columns id and label, got {', '.join(columns)}.")
        given: dict[str, str] = {}
        for key, label in zip(map(str, columns["id"]), columns["label"], strict=True):
            if label not in (None, "") and label == label and given.setdefault(key, str(label)) != str(label):
                raise EbmcalError(f"the id {key!r} has two labels, {given[key]!r} and {str(label)!r}.")
        return replace(log, rows=log.rows.replace(labels=_matched_labels(log.rows, given)))


def _matched_labels(rows: Predictions, given: dict[str, str]) -> np.ndarray:
    names = {name: i for i, name in enumerate(rows.label_names)}
    unknown = next((label for label in given.values() if label not in names), None)
    if unknown is not None:
        raise EbmcalError(f"the label {unknown!r} is not one of {', '.join(names)}.")
    places = pd.Series(range(rows.n_rows), index=rows.ids.astype(str))
    places = places[places.index.isin(list(given))]
    if places.empty:
        raise EbmcalError(f"none of its ids is in the log. Expected ids such as {str(rows.ids[0])!r}.")
    if places.index.has_duplicates:
        key = places.index[places.index.duplicated()][0]
        raise EbmcalError(f"the id {key!r} occurs more than once in the log, so its label is ambiguous.")
    labels = rows.labels.copy()
    for key, row in places.items():
        label = names[given[str(key)]]
        if labels[row] not in (-1, label):
            logged = rows.label_names[labels[row]]
            raise EbmcalError(f"the id {key!r} has the label {given[str(key)]!r}, but {logged!r} in the log.")
        labels[row] = label
    return labels


def windows(log: Log, *, every: str | None = None, n_rows: int | None = None) -> Iterator[tuple[str, Log]]:
    """Cut the log into named windows of time ("1d", "6h") or of rows; default: days if it has times, else 500 rows.

    >>> log = Log(Predictions([-1] * 5, ("a", "b"), probs=[[0.5, 0.5]] * 5))
    >>> [(name, window.rows.n_rows) for name, window in windows(log, n_rows=3)]
    [('rows 1–3', 3), ('rows 4–5', 2)]
    """
    if every and n_rows:
        raise EbmcalError("Windows are either of time (--every) or of rows (--rows), got both.")
    if every and log.times is None:
        raise EbmcalError(f"--every {every} needs times, but the log has none. Name their column with --time-column.")
    if log.times is not None and n_rows is None:
        step = parse_duration(every or "1d")
        numbers = np.floor(log.times / step)
        for number in np.unique(numbers):
            start = datetime.datetime.fromtimestamp(number * step, datetime.UTC)
            name = start.strftime("%Y-%m-%d" if step % UNITS["d"] == 0 else "%Y-%m-%d %H:%M")
            yield name, log.take(np.flatnonzero(numbers == number))
        return
    size, total = n_rows or WINDOW_ROWS, log.rows.n_rows
    for begin in range(0, total, size):
        end = min(begin + size, total)
        yield f"rows {begin + 1:,}–{end:,}", log.take(np.arange(begin, end))


def parse_duration(every: str) -> int:
    """The length of a window in seconds.

    >>> parse_duration("6h")
    21600
    """
    found = re.fullmatch(r"(\d{1,6})([mhdw])", every)
    if not found or not int(found[1]):
        raise EbmcalError(f"--every: expected a number and m, h, d or w, such as 6h or 1d, got {every!r}.")
    return int(found[1]) * UNITS[found[2]]


def find_reference(folder: Path, given: PathLike | Predictions | None, normalize: bool) -> tuple[Predictions, str]:
    """The given reference, or predictions of the run (`REFERENCE_SPLITS`); and its name."""
    if given is None:
        rows, name = _run_predictions(folder)
    else:
        name = "the given reference" if isinstance(given, Predictions) else Path(given).name
        rows = first_copies(read_for_model(given, folder, normalize=normalize))
        check_same_model(folder, rows, name)
    if rows.meta.get("split") == "train":
        raise EbmcalError(f"{name} holds training rows, on which the model is too accurate. Give held-out rows.")
    if (n_labelled := _count_labelled(rows)) < MIN_ROWS:
        raise EbmcalError(
            f"{name}: expected at least {MIN_ROWS} labelled rows, got {n_labelled}. Give more labelled "
            "predictions of the model: --reference FILE"
        )
    return rows, name


def _run_predictions(folder: Path) -> tuple[Predictions, str]:
    """The first split of the run with enough labelled rows, and its name with the reason if it is not the first one."""
    paths = {split: predictions_of_model(folder, split) for split in REFERENCE_SPLITS}
    found = {split: first_copies(read_for_model(path, folder)) for split, path in paths.items() if path is not None}
    if not found:
        raise EbmcalError(
            f"{folder} is not in a run directory with predictions, so there is no reference. Give labelled predictions "
            "of the model for typical texts: --reference FILE"
        )
    first = next(iter(found))
    split = next((split for split, rows in found.items() if _count_labelled(rows) >= MIN_ROWS), first)
    rows, temperature = found[split], folded_temperature(folder)
    if temperature is not None and rows.logits is not None:  # predicted before the temperature was folded in
        rows = rows.replace(logits=rows.logits / temperature)
    why = f", as {REFERENCE_SPLITS[first]} has {_count_labelled(found[first])} labelled rows" if split != first else ""
    return rows, f"{REFERENCE_SPLITS[split]}{why}"


def first_copies(rows: Predictions) -> Predictions:
    """The rows without copies: these would make a difference to the log look more certain than it is."""
    _, first = np.unique(distinct_rows(rows), return_index=True)
    return rows.rows(first)


def _count_labelled(rows: Predictions) -> int:
    return int((rows.labels >= 0).sum())


def as_answered(rows: Predictions, folder: Path) -> Predictions:
    """Logits with the model's calibrator applied; probabilities are what the model returned and stay as they are."""
    rows = rows if rows.logits is None else calibrated(rows, read_calibrator(folder))
    return rows.replace(energies=None) if is_out_of_fold(rows) else rows  # energies of other models: another scale


def is_out_of_fold(rows: Predictions) -> bool:
    """Whether these are predictions of the models of the folds, not of the model itself."""
    return bool(rows.meta.get("split") == "out_of_fold")


def check_same_model(folder: Path, rows: Predictions, name: PathLike) -> None:
    """Refuse predictions of another model or calibrator; warn if they do not state their model."""
    if differences := model_differences(rows.meta, folder):
        raise EbmcalError(f"{name} was written by another model than {folder}: {differences}.")
    now = read_calibrator(folder)
    if rows.logits is None and "model" in rows.meta and rows.meta.get("calibrator") != (now and now.description):
        raise EbmcalError(
            f"{name} was written before {folder} was calibrated again, so its confidences cannot be compared with "
            "those of now. Predict these texts again, or with --raw: then the present calibrator is applied."
        )
    if not rows.meta.keys() & {"model", "weights", *IDENTITY}:
        warnings.warn(f"{name} does not state which model wrote it, so this was not checked.", stacklevel=3)
