"""Texts with several labels: every label is a question of its own, yes or no, and is evaluated as one.

`label` holds all labels of a row (a list, or "a|b" in CSV; empty if none applies), `prob_<label>` or `logit_<label>`
the probability or logit of each label; rows need not sum to one. A label becomes a two-class problem, "not a" and "a",
so metrics, calibrators and plots are those of two classes. Metrics that need one correct class, such as the top-label
errors and ranking by confidence, are not defined here.
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebmcal.calibration import CALIBRATORS
from ebmcal.calibration.one_vs_rest import OneVsRest
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.evaluation.estimates import Settings
from ebmcal.evaluation.inputs import Sources, as_list, check_two_classes, name_sources
from ebmcal.evaluation.results import RESULTS, Evaluation, make_frame
from ebmcal.metrics import METRICS
from ebmcal.predictions import Predictions
from ebmcal.predictions.columns import numbers, without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns

#: Metrics that are defined for a single label; the first five are shown.
LABEL_METRICS = ("accuracy", "macro_f1", "ece_classwise", "nll", "brier", "matthews", "mce_classwise")
SEPARATOR = "|"


def evaluate_multilabel(
    files: Sources, settings: Settings, metrics: Sequence[str] | None, fit: Sources | None, calibrator: Any,
    progress: bool | None,
) -> Evaluation:  # fmt: skip
    """Evaluate multi-label prediction files label by label, with the mean over labels."""
    from ebmcal.evaluation import evaluate

    _check_metrics(metrics or ())
    wanted = [calibrator] if isinstance(calibrator, str) else list(calibrator or (["platt"] if fit else []))
    _check_calibrators(wanted)
    named = name_sources(files)
    fitting = [] if fit is None else list(fit.values()) if isinstance(fit, Mapping) else as_list(fit)
    if fitting and len(fitting) != len(named):
        raise EbmcalError(f"fit (--fit): expected one file for each of the {len(named)} evaluated, got {len(fitting)}.")
    rows = {f"{name}: {label}": p for name, file in named.items() for label, p in read_labels(file).items()}
    held_out = {
        f"{name}: {label}": p
        for name, file in zip(named, fitting, strict=bool(fitting))
        for label, p in read_labels(file).items()
    }
    found = evaluate(
        rows, metrics=list(metrics or LABEL_METRICS), n_bins=settings.n_bins, n_resamples=settings.n_resamples,
        seed=settings.seed, paired=False, calibrator=wanted or None, progress=progress,
        fit={name: p for name, p in held_out.items() if _can_be_fitted(name, p)} if fitting else None,
    )  # fmt: skip
    records = found.results.to_dict("records")
    means = [record for name in named for record in _means(records, f"{name}: ")]
    meta = {**found.meta, "shown_metrics": list(metrics or LABEL_METRICS[:5])}
    return replace(found, results=make_frame([*records, *means], RESULTS), meta=meta)


def read_labels(file: Any) -> dict[str, Predictions]:
    """Label → predictions of the classes "not <label>" and "<label>", from a multi-label prediction file."""
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
    scores = {n.removeprefix(prefix): numbers(c, n) for n, c in table.columns.items() if n.startswith(prefix)}
    sets = [_labels_of_row(value, row, scores) for row, value in enumerate(table.columns["label"])]
    ids = [str(i) for i in table.columns["id"]] if "id" in table.columns else None
    found = {}
    for label, column in scores.items():
        column = column.astype(np.float64)
        if prefix == "prob_":
            _check_probabilities(column, prefix + label)
        pair = np.stack([1.0 - column if prefix == "prob_" else np.zeros(len(column)), column], axis=1)
        kind: dict[str, Any] = {"probs" if prefix == "prob_" else "logits": pair}
        has_label = np.array([label in labels for labels in sets], dtype=np.int64)
        found[label] = Predictions(has_label, (f"not {label}", label), **kind, ids=ids)
    return found


def _labels_of_row(value: Any, row: int, known: Mapping[str, Any]) -> set[str]:
    if value is None:
        raise EbmcalError(f"column 'label', row {row} is missing. Use an empty list (CSV: an empty cell) for no label.")
    parts = value.split(SEPARATOR) if isinstance(value, str) else value if isinstance(value, list) else [value]
    labels = {str(part).strip() for part in parts if str(part).strip()}
    for label in sorted(labels - known.keys()):
        raise EbmcalError(f"column 'label', row {row}: {unknown_name('label', label, known)}")
    return labels


def _check_probabilities(column: np.ndarray, name: str) -> None:
    bad = np.flatnonzero((column < 0) | (column > 1))
    if len(bad):
        raise EbmcalError(f"column {name!r}, row {bad[0]} is {column[bad[0]]:g}, which is not a probability.")


def _check_metrics(names: Iterable[str]) -> None:
    for name in names:
        if name not in METRICS:
            raise unknown_name("metric", name, LABEL_METRICS)
        if name not in LABEL_METRICS:
            raise EbmcalError(
                f"{name} needs one correct class per row and is not defined with several labels. Available: "
                f"{', '.join(LABEL_METRICS)}."
            )


def _check_calibrators(names: Iterable[str]) -> None:
    available = [name for name, kind in CALIBRATORS.items() if issubclass(kind, OneVsRest)]
    for spec in names:
        name = spec.partition(":")[0]
        if name not in CALIBRATORS:
            raise unknown_name("calibrator", name, available)
        if name not in available:
            raise EbmcalError(
                f"{name} needs one correct class per row and is not defined with several labels. Available: "
                f"{', '.join(available)}."
            )


def _can_be_fitted(name: str, rows: Predictions) -> bool:
    """Whether rows with and without the label exist; a label that never occurs does not stop the others."""
    try:
        check_two_classes(rows, f"fit (--fit) of {name}")
        return True
    except EbmcalError as error:
        warnings.warn(f"Not calibrated: {error}", stacklevel=4)
        return False


def _means(records: Sequence[Mapping[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """One record per metric and calibrator: the mean over the labels of a file, without an interval."""
    groups: dict[tuple[str, Any], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["model"].startswith(prefix):
            groups.setdefault((record["metric"], record["calibrator"]), []).append(record)
    empty = {"low": None, "high": None, "noise_floor": None, "note": ""}
    return [
        {**group[0], **empty, "model": f"{prefix}mean over {len(group)} label{'s' if len(group) > 1 else ''}"}
        | {"value": float(np.nanmean([record["value"] for record in group]))}
        for group in groups.values()
    ]
