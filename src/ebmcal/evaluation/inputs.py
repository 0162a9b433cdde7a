"""The inputs of `evaluate`: predictions or files by name, matched by row; multi-label files label by label."""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibration import Calibrator, make_calibrator
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.predictions import Predictions, align, ensemble
from ebmcal.predictions.columns import numbers, without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns

#: Predictions, the path of a file, or "NAME=FILE".
Source = Predictions | str | os.PathLike[str]
Sources = Source | Sequence[Source] | Mapping[str, Source]

#: Between the labels of a row of a multi-label CSV file.
SEPARATOR = "|"


def name_sources(given: Sources) -> dict[str, Source]:
    """Name → source: the keys of a mapping, NAME of "NAME=FILE", otherwise the path or a number.

    >>> name_sources(["ours=a.csv", "b.csv"])
    {'ours': 'a.csv', 'b.csv': 'b.csv'}
    """
    pairs = _name_pairs(given)
    (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
    if count > 1:
        raise EbmcalError(f"{name} is given twice. Give each file once, or names: NAME=FILE.")
    return dict(pairs)


def _name_pairs(given: Sources) -> list[tuple[str, Source]]:
    if isinstance(given, Mapping):
        pairs = [(str(name), source) for name, source in given.items()]
    else:
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        pairs = [split_name(source, place) for place, source in enumerate(listed, start=1)]
    if not pairs:
        raise EbmcalError("There is nothing to evaluate. Pass predictions or a prediction file.")
    for name, source in pairs:
        if not isinstance(source, Predictions | str | os.PathLike):
            raise EbmcalError(f"{name}: expected predictions or a file, got {type(source).__name__}.")
    return pairs


def split_name(source: Source, place: int = 1) -> tuple[str, Source]:
    """The name of a source and the source itself; predictions in memory are numbered by their place."""
    if not isinstance(source, str | os.PathLike):
        return f"predictions {place}", source
    path = os.fspath(source)
    name, _, file = path.partition("=")
    if name and file and not Path(path).exists() and os.sep not in name:
        return name, file
    return path, source


def read_all(given: Sources, normalize: bool) -> dict[str, Predictions]:
    """Name → labelled predictions, all with the class order of the first if they have the same classes."""
    named: dict[str, Predictions] = {}
    for name, source in name_sources(given).items():
        rows = _read(source, name, next(iter(named.values()), None), normalize)
        with error_context(name):
            named[name] = rows.labelled()
        n_dropped = rows.n_rows - named[name].n_rows
        if n_dropped:
            verb = "row has no label and is" if n_dropped == 1 else "rows have no label and are"
            warnings.warn(f"{name}: {n_dropped:,} of {rows.n_rows:,} {verb} left out.", stacklevel=3)
    return named


def _read(source: Source, name: str, like: Predictions | None, normalize: bool) -> Predictions:
    rows = source if isinstance(source, Predictions) else Predictions.read(source, normalize=normalize)
    if rows.n_classes < 2:
        raise EbmcalError(f"{name} has one class only ({rows.label_names[0]}). Expected a column for every class.")
    is_same = like is not None and set(rows.label_names) == set(like.label_names)
    return rows.reorder(like.label_names) if like is not None and is_same else rows


def match_rows(named: Mapping[str, Predictions], reference: str) -> dict[str, Predictions]:
    """All predictions with their rows in the order of the reference, matched by id."""
    matched = {}
    for name, rows in named.items():
        try:
            matched[name] = rows if name == reference else align([named[reference], rows])[1]
        except EbmcalError as error:
            raise EbmcalError(
                f"{name} cannot be compared with {reference}: {error} Pass predictions for the same rows, or evaluate "
                "them separately (paired=False, --unpaired)."
            ) from error
    return matched


def read_partners(
    named: Mapping[str, Predictions], given: Sources | None, option: str, normalize: bool
) -> dict[str, Predictions]:
    """The predictions of `fit` or `ood` that belong to each of the evaluated ones: by name, place, or one for all."""
    if given is None:
        return {}
    pairs = _name_pairs(given)
    if isinstance(given, Mapping) or {name for name, _ in pairs} & named.keys():
        sources = name_sources(given)
    else:
        if len(pairs) not in (1, len(named)):
            raise EbmcalError(
                f"{option} (--{option}): expected one file, or one for each of the {len(named)} evaluated, got "
                f"{len(pairs)}."
            )
        if len(pairs) < len(named):
            warnings.warn(
                f"One {option} (--{option}) for {len(named)} files is right only if all are predictions of one model.",
                stacklevel=3,
            )
        sources = dict(zip(named, [source for _, source in pairs] * (len(named) // len(pairs)), strict=True))
    for name in sources.keys() - named.keys():
        raise unknown_name(f"name in {option}", name, named)
    return {name: _read(source, f"{option} of {name}", named[name], normalize) for name, source in sources.items()}


def make_calibrators(given: Any, fit: Any) -> dict[str, Calibrator]:
    """Name → unfitted calibrator."""
    if given and fit is None:
        raise EbmcalError("A calibrator needs fit (--fit): predictions for other rows, to fit it on.")
    wanted = [given] if isinstance(given, str | Calibrator) else given or ["temperature"]
    return {c if isinstance(c, str) else c.name: make_calibrator(c) if isinstance(c, str) else c for c in wanted}


def check_fit(named: Mapping[str, Predictions], fit: Mapping[str, Predictions]) -> None:
    """Raise unless a calibrator can be fitted on the rows of `fit`."""
    for name, rows in fit.items():
        ours, theirs = (", ".join(p.label_names[:10]) + ", …" * (p.n_classes > 10) for p in (named[name], rows))
        if rows.label_names != named[name].label_names:
            raise EbmcalError(
                f"fit (--fit) of {name} has the classes {theirs}, {name} has {ours}. Pass those of the same model."
            )
        check_two_classes(rows, f"fit (--fit) of {name}")


def check_two_classes(rows: Predictions, name: str) -> None:
    """Raise if all labels are the same: a calibrator would learn to predict only that class."""
    with error_context(name):
        seen = np.unique(rows.labelled().labels)
        if len(seen) < 2:
            raise EbmcalError(
                f"all rows have the label {rows.label_names[seen[0]]!r}. Pass rows of at least two classes."
            )


def add_ensemble(named: dict[str, Predictions], *others: dict[str, Predictions]) -> None:
    """Add the mean of all predictions, and the means of their `fit` and `ood` rows if all have them."""
    if len(named) < 2:
        raise EbmcalError("An ensemble (--ensemble) needs at least two files with the same rows (not --unpaired).")
    name, n_members = f"ensemble of {len(named)}", len(named)
    for given in (named, *others):
        if len(given) == n_members:
            with error_context(name):
                given[name] = ensemble(list(given.values()))


def read_labels(file: Any) -> dict[str, Predictions]:
    """Label → predictions of the classes "not <label>" and "<label>", from a multi-label prediction file.

    `label` holds all labels of a row (a list, or "a|b" in CSV; empty if none applies), `prob_<label>` or
    `logit_<label>` the probability or logit of each label; rows need not sum to one.
    """
    if not isinstance(file, str | os.PathLike):
        raise EbmcalError(f"Several labels per text are read from files, got {type(file).__name__}.")
    table = without_error_rows(read_columns(file), file)
    with error_context(file):
        return split_labels(table)


def split_labels(table: FileColumns) -> dict[str, Predictions]:
    """Each label of a table as a two-class problem.

    >>> table = FileColumns({"label": [["a"], ["a", "b"]], "prob_a": [0.9, 0.6], "prob_b": [0.2, 0.7]})
    >>> split_labels(table)["b"].labels, split_labels(table)["b"].probs.round(2).tolist()
    (array([0, 1]), [[0.8, 0.2], [0.3, 0.7]])
    """
    prefix = next((p for p in ("logit_", "prob_") if any(name.startswith(p) for name in table.columns)), None)
    if prefix is None or "label" not in table.columns:
        raise EbmcalError("Expected a column label and a column prob_<label> or logit_<label> for each label.")
    columns = {n.removeprefix(prefix): numbers(c, n) for n, c in table.columns.items() if n.startswith(prefix)}
    sets = [_labels_of_row(value, row, columns) for row, value in enumerate(table.columns["label"])]
    ids = [str(i) for i in table.columns["id"]] if "id" in table.columns else None
    found = {}
    for label, values in columns.items():
        values = values.astype(np.float64)
        bad = np.flatnonzero((values < 0) | (values > 1)) if prefix == "prob_" else np.array([])
        if len(bad):
            raise EbmcalError(f"column {prefix + label!r}, row {bad[0]} is {values[bad[0]]:g}: not a probability.")
        other = 1.0 - values if prefix == "prob_" else np.zeros(len(values))
        scores: dict[str, Any] = {prefix.rstrip("_") + "s": np.stack([other, values], axis=1)}
        has_label = np.array([label in labels for labels in sets], dtype=np.int64)
        found[label] = Predictions(has_label, (f"not {label}", label), **scores, ids=ids)
    return found


def _labels_of_row(value: Any, row: int, known: Iterable[str]) -> set[str]:
    if value is None:
        raise EbmcalError(f"column 'label', row {row} is missing. Use an empty list (CSV: an empty cell) for no label.")
    parts = value.split(SEPARATOR) if isinstance(value, str) else value if isinstance(value, list) else [value]
    labels = {str(part).strip() for part in parts if str(part).strip()}
    for label in sorted(labels.difference(known)):
        raise EbmcalError(f"column 'label', row {row}: {unknown_name('label', label, known)}")
    return labels
