"""The inputs of `evaluate`: predictions or files by name, matched by row, with the rows for calibrators and OOD."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibration import Calibrator, make_calibrator
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.predictions import Predictions, align, ensemble

#: Predictions, the path of a file, or "NAME=FILE".
Source = Predictions | str | os.PathLike[str]
Sources = Source | Sequence[Source] | Mapping[str, Source]


def name_sources(given: Sources) -> dict[str, Source]:
    """Name → source: the keys of a mapping, NAME of "NAME=FILE", otherwise the path.

    >>> name_sources(["ours=a.csv", "b.csv"])
    {'ours': 'a.csv', 'b.csv': 'b.csv'}
    """
    if isinstance(given, Mapping):
        named = [(str(name), source) for name, source in given.items()]
    else:
        named = [name_source(source, place) for place, source in enumerate(as_list(given), start=1)]
    if not named:
        raise EbmcalError("There is nothing to evaluate. Pass predictions or a prediction file.")
    names = [name for name, _ in named]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise EbmcalError(f"{repeated} is given twice. Give each file once, or names: NAME=FILE.")
    return dict(named)


def as_list(given: Source | Sequence[Source]) -> list[Source]:
    """One source or several as a list; an error for anything else."""
    sources = [given] if isinstance(given, Predictions | str | os.PathLike) else given
    if not isinstance(sources, Sequence):
        raise EbmcalError(f"Expected predictions, a file, or several by name, got {type(given).__name__}.")
    for source in sources:
        if not isinstance(source, Predictions | str | os.PathLike):
            raise EbmcalError(f"Expected predictions or a file, got {type(source).__name__}.")
    return list(sources)


def name_source(source: Source, place: int = 1) -> tuple[str, Source]:
    """The name of a source and the source itself; predictions in memory are numbered by their place."""
    if isinstance(source, Predictions):
        return f"predictions {place}", source
    path = os.fspath(source)
    name, equals, file = path.partition("=")
    if equals and name and file and not Path(path).exists() and os.sep not in name:
        return name, file
    return path, source


def read_all(given: Sources, normalize: bool) -> dict[str, Predictions]:
    """Name → labelled predictions, all with the class order of the first if they have the same classes."""
    named: dict[str, Predictions] = {}
    for name, source in name_sources(given).items():
        rows = read_source(source, name, next(iter(named.values()), None), normalize)
        named[name] = _labelled(rows, name)
    return named


def read_source(source: Source, name: str, like: Predictions | None, normalize: bool = False) -> Predictions:
    """Predictions with the class order of `like`; `name` is for error messages."""
    if not isinstance(source, Predictions | str | os.PathLike):
        raise EbmcalError(f"{name}: expected predictions or a file, got {type(source).__name__}.")
    rows = source if isinstance(source, Predictions) else Predictions.read(source, normalize=normalize)
    if rows.n_classes < 2:
        raise EbmcalError(f"{name} has one class only ({rows.label_names[0]}). Expected a column for every class.")
    if like is not None and set(rows.label_names) == set(like.label_names):
        return rows.reorder(like.label_names)
    return rows


def _labelled(rows: Predictions, name: str) -> Predictions:
    """The labelled rows, with a warning if there are others."""
    with error_context(name):
        known = rows.labelled()
    if known.n_rows < rows.n_rows:
        n_dropped = rows.n_rows - known.n_rows
        verb = "row has no label and is" if n_dropped == 1 else "rows have no label and are"
        warnings.warn(f"{name}: {n_dropped:,} of {rows.n_rows:,} {verb} left out.", stacklevel=4)
    return known


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
    """The predictions of `fit` or `ood` that belong to each of the evaluated ones."""
    if given is None:
        return {}
    sources = _partner_sources(list(named), given, option)
    return {n: read_source(s, f"{option} of {n}", named[n], normalize) for n, s in sources.items()}


def _partner_sources(names: list[str], given: Sources, option: str) -> Mapping[str, Source]:
    if not isinstance(given, Mapping):
        listed = as_list(given)
        pairs = [name_source(source, place) for place, source in enumerate(listed, start=1)]
        if any(name in names for name, _ in pairs):
            given = dict(pairs)
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise unknown_name(f"name in {option}", str(name), names)
        return given
    if len(listed) not in (1, len(names)):
        raise EbmcalError(
            f"{option} (--{option}): expected one file, or one for each of the {len(names)} evaluated, got "
            f"{len(listed)}."
        )
    if len(listed) < len(names):
        warnings.warn(
            f"One {option} (--{option}) for {len(names)} files is right only if all are predictions of one model.",
            stacklevel=5,
        )
        listed *= len(names)
    return dict(zip(names, listed, strict=True))


def make_calibrators(given: Any, fit: Any) -> dict[str, Calibrator]:
    """Name → unfitted calibrator."""
    if given and fit is None:
        raise EbmcalError("A calibrator needs fit (--fit): predictions for other rows, to fit it on.")
    wanted = [given] if isinstance(given, str | Calibrator) else given or ["temperature"]
    return {c if isinstance(c, str) else c.name: make_calibrator(c) if isinstance(c, str) else c for c in wanted}


def check_fit(named: Mapping[str, Predictions], fit: Mapping[str, Predictions]) -> None:
    """Raise unless a calibrator can be fitted on the rows of `fit`."""
    for name, rows in fit.items():
        if rows.label_names != named[name].label_names:
            raise EbmcalError(
                f"fit (--fit) of {name} has the classes {_shown(rows)}, {name} has {_shown(named[name])}. Pass "
                "predictions of the same model."
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


def _shown(rows: Predictions) -> str:
    return ", ".join(rows.label_names[:10]) + (", …" if rows.n_classes > 10 else "")


def add_ensemble(
    named: dict[str, Predictions], fit: dict[str, Predictions], ood: dict[str, Predictions], paired: bool
) -> None:
    """Add the mean of all predictions, with the means of their `fit` and `ood` rows."""
    if not paired or len(named) < 2:
        raise EbmcalError("An ensemble (--ensemble) needs at least two files with the same rows (not --unpaired).")
    name, n_members = f"ensemble of {len(named)}", len(named)
    for given in (named, fit, ood):
        if len(given) == n_members:
            with error_context(name):
                given[name] = ensemble(list(given.values()))


def calibrated(
    rows: Predictions, fit: Predictions | None, calibrators: Mapping[str, Calibrator], name: str
) -> Iterator[tuple[str, Predictions]]:
    """Calibrator → the rows calibrated by it."""
    if fit is None:
        return
    for spec, calibrator in calibrators.items():
        with error_context(f"{spec} for {name}"):
            yield spec, calibrator.fit_predictions(fit).apply(rows)
