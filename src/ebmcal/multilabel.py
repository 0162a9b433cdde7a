"""Texts with several labels at once: every label is a question of its own, yes or no, and is judged as one.

    ebmcal.multilabel.evaluate_labels("topics.jsonl", fit="held_out.jsonl", calibrator="platt").table()

What `ebmcal evaluate --multi-label` does. `label` holds all labels of a row (a list, or "a|b" in CSV; empty where none
applies), `prob_<label>` or `logit_<label>` the probability or the logit of each by itself; rows need not sum to one.
From there on a label is a two-class problem, "not a" and "a": metrics, calibrators and plots are those of two classes.
What needs one right class among several, top-label figures and ranking by confidence, is not defined and says so.
"""

import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from ebmcal.calibrators import CALIBRATORS
from ebmcal.calibrators.held_out import require_two_classes
from ebmcal.calibrators.one_vs_rest import OneVsRest
from ebmcal.errors import EbmcalError, errors_of, unknown_name
from ebmcal.evaluation import Evaluation, evaluate
from ebmcal.metrics import METRICS
from ebmcal.predictions import Predictions
from ebmcal.predictions.columns import numbers, without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns

#: Metrics that mean something for a label by itself; the first five are shown.
LABEL_METRICS = ("accuracy", "macro_f1", "ece_classwise", "nll", "brier", "matthews", "mce_classwise")
SEPARATOR = "|"

Path = str | PathLike[str]


def evaluate_labels(
    files: Path | Sequence[Path],
    *,
    metrics: Sequence[str] | None = None,
    fit: Path | Sequence[Path] | None = None,
    calibrator: str | Sequence[str] | None = None,
    **options: Any,
) -> Evaluation:
    """Judge multi-label predictions label by label, with the mean over labels; options as of `ebmcal.evaluate`.

    evaluate_labels("topics.jsonl", n_resamples=200).document["rows"][-1]  # the mean over labels
    """
    _check_metrics(metrics)
    wanted = [calibrator] if isinstance(calibrator, str) else list(calibrator or (["platt"] if fit else []))
    _check_calibrators(wanted)
    judged, fitting = _listed(files), _listed(fit)
    if fitting and len(fitting) != len(judged):
        raise EbmcalError(f"fit (--fit) was given {len(fitting)} times for {len(judged)} files. Give one for each.")
    named = {f"{file}: {label}": rows for file in judged for label, rows in read_labels(file).items()}
    held_out = {
        f"{file}: {label}": rows
        for file, other in zip(judged, fitting, strict=bool(fitting))
        for label, rows in read_labels(other).items()
    }
    held_out = {name: rows for name, rows in held_out.items() if _can_be_fitted(name, rows)}
    found = evaluate(
        named, metrics=list(metrics or LABEL_METRICS), paired=False, fit=held_out if fitting else None,
        calibrator=wanted or None,
        **options,
    )  # fmt: skip
    rows = [*found.document["rows"], *_means(found.document["rows"], [str(file) for file in judged])]
    return replace(found, document={**found.document, "rows": rows}, shown=tuple(metrics or LABEL_METRICS[:5]))


def _can_be_fitted(name: str, rows: Predictions) -> bool:
    """Whether the fitting rows have the label and lack it; a rare one that is never there does not stop the others."""
    try:
        require_two_classes(rows, f"fit (--fit) of {name}")
        return True
    except EbmcalError as error:
        warnings.warn(f"Not calibrated: {error}", stacklevel=3)
        return False


def read_labels(path: Path) -> dict[str, Predictions]:
    """Label → predictions of the classes "not <label>" and "<label>", from a file of multi-label predictions."""
    table = without_error_rows(read_columns(path), path)
    with errors_of(path):
        return labels_of(table)


def labels_of(table: FileColumns) -> dict[str, Predictions]:
    """Each label of a table as a two-class problem.

    >>> table = FileColumns({"label": [["a"], ["a", "b"]], "prob_a": [0.9, 0.6], "prob_b": [0.2, 0.7]})
    >>> labels_of(table)["b"].labels, labels_of(table)["b"].probs.tolist()
    (array([0, 1]), [[0.8, 0.2], [0.30000000000000004, 0.7]])
    """
    prefix = next((p for p in ("logit_", "prob_") if any(name.startswith(p) for name in table.columns)), None)
    if prefix is None or "label" not in table.columns:
        raise EbmcalError("A column label and a column prob_<label> or logit_<label> for each label are needed.")
    scores = {
        name.removeprefix(prefix): numbers(column, name).astype(np.float64)
        for name, column in table.columns.items()
        if name.startswith(prefix)
    }
    sets = [_labels_in(value, row, scores) for row, value in enumerate(table.columns["label"])]
    ids = [str(i) for i in table.columns["id"]] if "id" in table.columns else None
    made = {}
    for label, column in scores.items():
        if prefix == "prob_":
            _require_probabilities(column, prefix + label)
        pair = np.stack([1.0 - column if prefix == "prob_" else np.zeros(len(column)), column], axis=1)
        kind: dict[str, Any] = {"probs" if prefix == "prob_" else "logits": pair}
        has = np.array([label in labels for labels in sets], dtype=np.int64)
        made[label] = Predictions(has, (f"not {label}", label), **kind | {"ids": ids})
    return made


def _labels_in(value: Any, row: int, known: Mapping[str, Any]) -> set[str]:
    if value is None:
        raise EbmcalError(f"column 'label', row {row} is missing. Give an empty list, or nothing in CSV, for no label.")
    parts = value.split(SEPARATOR) if isinstance(value, str) else value if isinstance(value, list) else [value]
    labels = {str(part).strip() for part in parts if str(part).strip()}
    for label in sorted(labels - known.keys()):
        raise EbmcalError(f"column 'label', row {row}: {unknown_name('label', label, known)}")
    return labels


def _require_probabilities(column: np.ndarray, name: str) -> None:
    bad = np.flatnonzero((column < 0) | (column > 1))
    if len(bad):
        raise EbmcalError(f"column {name!r}, row {bad[0]} is {column[bad[0]]:g}, which is no probability.")


def _check_metrics(names: Sequence[str] | None) -> None:
    for name in names or ():
        if name not in METRICS:
            raise unknown_name("metric", name, LABEL_METRICS)
        if name not in LABEL_METRICS:
            raise EbmcalError(
                f"{name} needs one right class a row, and is not defined with several labels. Those that are: "
                f"{', '.join(LABEL_METRICS)}."
            )


def _check_calibrators(names: Sequence[str]) -> None:
    able = [name for name, kind in CALIBRATORS.items() if issubclass(kind, OneVsRest)]
    for spec in names:
        name = spec.partition(":")[0]
        if name not in CALIBRATORS:
            raise unknown_name("calibrator", name, able)
        if name not in able:
            raise EbmcalError(
                f"{name} is learned over classes of which one is right, and is not defined with several labels. Those "
                f"that learn a curve for each label are: {', '.join(able)}."
            )


def _listed(files: Path | Sequence[Path] | None) -> list[Path]:
    return [] if files is None else [files] if isinstance(files, str | PathLike) else list(files)


def _means(rows: Sequence[Mapping[str, Any]], files: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each file and calibrator: the mean of every figure over its labels, without an interval."""
    made = []
    for file in files:
        own = [row for row in rows if row["method"].startswith(f"{file}: ")]
        for posthoc in dict.fromkeys(row["posthoc"] for row in own):
            same = [row for row in own if row["posthoc"] == posthoc]
            figures = {name: [row["metrics"][name]["value"] for row in same] for name in same[0]["metrics"]}
            means = {name: statistics.fmean(v for v in values if v is not None) for name, values in figures.items()}
            made.append(
                {**same[0], "method": f"{file}: mean over {len(same)} labels", "note": ""}
                | {"metrics": {name: {"value": value, "low": None, "high": None} for name, value in means.items()}}
            )
    return made
