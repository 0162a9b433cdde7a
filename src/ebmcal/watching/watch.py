"""`watch`: a log of predictions without labels, window by window, against the calibration texts of the model.

What `ebmcal watch` does. Everything is in one document, which the table and the page read:

    reference {"texts", "n_rows", "accuracy", "confidence", "energy"}
    windows   [{"name", "n_rows", "expected": {estimate: {"value", "low", "high"}}, "confidence", "energy",
                "predicted": {label: share}, "unusual", "abstained", "p_values": {test: p}, "drift": [tests],
                "labelled": {"n_rows", "accuracy", "ece_top_label", …} or None}]
    alarms    [sentences]
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibrators import attached
from ebmcal.calibrators.fitting_rows import FittedOnJudgedRows
from ebmcal.calibrators.held_out import other_model
from ebmcal.calibrators.in_model import label_names, model_folder
from ebmcal.decisions import Rule, attached_rule
from ebmcal.decisions.conformal import kept_scores, p_values
from ebmcal.decisions.unusual import ENERGY
from ebmcal.errors import EbmcalError
from ebmcal.judging import Measures, judge
from ebmcal.metrics import FewRowsWarning
from ebmcal.metrics.bins import wilson
from ebmcal.predictions import Predictions
from ebmcal.runfolder import cell_of_model, predictions_of_model
from ebmcal.tables import Sheet
from ebmcal.watching.drift import LEAST_ROWS, TESTS, holm
from ebmcal.watching.expecting import expect
from ebmcal.watching.log import Log, Window, read_log, seconds_of, windows_of, with_labels
from ebmcal.watching.page import window_table, write_page

Source = str | PathLike[str]

#: Of the rows of a window whose labels have come.
MEASURES = Measures(("ece_top_label", "nll"), n_resamples=200)

#: Of usual texts, called unusual where the model has no rule that says otherwise.
UNUSUAL = 0.05


@dataclass(frozen=True, repr=False)
class Watch:
    """What was seen; `alarms` are sentences, none where nothing is the matter."""

    document: dict[str, Any]

    @property
    def alarms(self) -> list[str]:
        return list(self.document["alarms"])

    def table(self) -> Sheet:
        """A row for each window."""
        return Sheet((window_table(self.document),))

    def to_json(self) -> str:
        return json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)

    def report(self, path: Source) -> Path:
        """Write a self-contained HTML page; returns where it is."""
        return write_page(Path(path), self.document)

    def __repr__(self) -> str:
        return str(self.table())


def watch(
    model: Source,
    log: Source | Sequence[Source],
    *,
    reference: Source | Predictions | None = None,
    labels: Source | None = None,
    time_column: str | None = None,
    every: str | None = None,
    n_rows: int | None = None,
    false_alarms: float = 0.05,
    n_windows: int | None = None,
    least_accuracy: float | None = None,
    normalize: bool = False,
) -> Watch:
    """Accuracy to expect, drift, unusual and abstained shares of a log, in windows of time (`every`) or of `n_rows`.

    `reference` are labelled predictions of the model for texts as it knows them: those for the calibration split of
    its run, unless given. `labels` is a file of id and label for rows whose labels have come. `false_alarms` is the
    chance of any drift alarm if nothing has changed, over all windows of the log, or over `n_windows` if more will
    come. `least_accuracy` is what the accuracy to expect must not lie below for sure. `normalize` is for probabilities
    that were rounded. Files that say they are of another model are refused; CSV and JSONL cannot say it.

        ebmcal.watch("model", "log.parquet", every="1d").report("watch.html")
    """
    _check(false_alarms, least_accuracy, n_windows)
    seconds_of(every or "1d")
    folder = model_folder(Path(model).expanduser())
    known, name = _reference(folder, reference, normalize)
    paths = [log] if isinstance(log, str | PathLike) else list(log)

    def check(rows: Predictions, path: object) -> None:
        _require_written_by(folder, rows, path)
        _require_other(rows, known, f"{path} is the reference ({name}) itself")

    read = read_log(paths, label_names=known.label_names, time_column=time_column, normalize=normalize, check=check)
    known = _calibrated(known.labelled(), folder)
    read = with_labels(read, labels) if labels is not None else read
    read = Log(_calibrated(read.rows, folder), read.times, read.abstained, read.unusual)
    rule = attached_rule(folder)
    found = [_window(window, known, rule) for window in windows_of(read, every=every, n_rows=n_rows)]
    _mark_drift(found, false_alarms, n_windows)
    document = {
        "format": 1, "model": cell[1].name if (cell := cell_of_model(folder)) else folder.resolve().name,
        "log": [Path(path).name for path in paths], "false_alarms": false_alarms, "least_accuracy": least_accuracy,
        "n_tests": sum(len(window["p_values"]) for window in found), "reference": _facts(known, name),
        "windows": found, "alarms": _alarms(found, least_accuracy),
    }  # fmt: skip
    return Watch(document)


def _check(false_alarms: float, least_accuracy: float | None, n_windows: int | None) -> None:
    if not 0 < false_alarms < 1:
        raise EbmcalError(f"--false-alarms is {false_alarms:g}; it must lie between 0 and 1.")
    if least_accuracy is not None and not 0 < least_accuracy < 1:
        raise EbmcalError(f"--least-accuracy is {least_accuracy:g}; it must lie between 0 and 1.")
    if n_windows is not None and n_windows < 1:
        raise EbmcalError(f"--windows is {n_windows}; it is the number of windows that will ever be looked at.")


def _reference(folder: Path, given: Source | Predictions | None, normalize: bool) -> tuple[Predictions, str]:
    """Predictions of usual texts with enough labels, and what they are called."""
    is_of_run, name = given is None, "the calibration split"
    if given is not None:
        name = "the reference" if isinstance(given, Predictions) else Path(given).name
    else:
        given = predictions_of_model(folder, "calibration")
        if given is None:
            raise EbmcalError(
                f"{folder} is not in the folder of a run, so its calibration texts are unknown. Give labelled "
                "predictions of the model for texts as it knows them: --reference FILE"
            )
    names = label_names(folder)
    rows = given if isinstance(given, Predictions) else Predictions.read(given, label_names=names, normalize=normalize)
    if not is_of_run:
        _require_written_by(folder, rows, name)
    if rows.meta.get("split") == "train":
        raise EbmcalError(f"{name} is of rows that the model was trained on, where it is too good. Give others.")
    n_labelled = int((rows.labels >= 0).sum())
    if n_labelled < LEAST_ROWS:
        raise EbmcalError(f"{name} has {n_labelled} labelled rows; {LEAST_ROWS} are needed at least.")
    return rows, name


def _require_written_by(folder: Path, rows: Predictions, where: object) -> None:
    """Refuse predictions that say they are of another model; where they say nothing, say that."""
    differing = other_model(rows.meta, folder)
    if differing is None:
        warnings.warn(
            f"{where} does not say which model wrote it: whether it was this one cannot be checked.",
            stacklevel=3,
        )
    elif differing:
        raise EbmcalError(f"{where} was written by another model than {folder}: {differing}. Give files of this one.")


def _require_other(rows: Predictions, known: Predictions, what: str) -> None:
    """Refuse a log that is its own reference: nothing in it could ever have changed."""
    if rows.n_rows != known.n_rows or not np.array_equal(rows.ids, known.ids):
        return
    is_same = np.allclose(rows.probs, known.probs, atol=1e-6)
    if rows.energies is not None and known.energies is not None:
        is_same = is_same and np.allclose(rows.energies, known.energies, atol=1e-6)
    if is_same:
        raise EbmcalError(f"{what}: no change would ever show. Give predictions for other texts.")


def _calibrated(rows: Predictions, folder: Path) -> Predictions:
    """Logits get the calibrator that is kept with the model; probabilities are taken as what the model said."""
    calibrator = attached(folder)
    is_raw = rows.logits is not None and not rows.meta.get("calibrator")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FittedOnJudgedRows)  # the calibration texts are what it was fitted on
        return calibrator.apply(rows) if calibrator is not None and is_raw else rows


def _facts(known: Predictions, name: str) -> dict[str, Any]:
    return {
        "texts": name, "n_rows": known.n_rows, "accuracy": float((known.predicted() == known.labels).mean()),
        "confidence": float(known.confidences().mean()), "energy": _mean(known.energies),
    }  # fmt: skip


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(values.mean())


def _window(window: Window, known: Predictions, rule: Rule | None) -> dict[str, Any]:
    log, rows = window.log, window.log.rows
    enough = rows.n_rows >= LEAST_ROWS
    tested = {name: test(known, rows) for name, test in TESTS.items()} if enough else {}
    shares = np.bincount(rows.predicted(), minlength=rows.n_classes) / rows.n_rows
    unusual, abstained = _decided(log, known, rule)
    return {
        "name": window.name, "n_rows": rows.n_rows,
        "expected": {name: asdict(value) for name, value in expect(known, rows).items()},
        "confidence": float(rows.confidences().mean()), "energy": _mean(rows.energies),
        "predicted": dict(zip(rows.label_names, shares.tolist(), strict=True)),
        "unusual": _mean(unusual), "abstained": _mean(abstained),
        "p_values": {name: p for name, p in tested.items() if p is not None}, "drift": [], "labelled": _labelled(rows),
    }  # fmt: skip


def _decided(log: Log, known: Predictions, rule: Rule | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Which rows are unusual and abstained from: as the log says, else by the model's rule or usual energies."""
    unusual, abstained, rows = log.unusual, log.abstained, log.rows
    if rule is not None:
        can_tell = rule.unusual is not None and rule.unusual.can_tell(rows)
        asked = replace(
            rule, sets=None, abstention=rule.abstention if abstained is None else None,
            unusual=rule.unusual if unusual is None and can_tell else None,
        )  # fmt: skip
        is_silent = rows.logits is None and not {"calibrator", "model"} & set(rows.meta)  # taken as what the model said
        found = asked.decide(replace(rows, meta={"calibrator": rule.calibrated_by}) if is_silent else rows)
        abstained = ~found.answers if found.answers is not None else abstained
        unusual = found.unusual if found.unusual is not None else unusual
        if rule.unusual is not None and rule.unusual.by != ENERGY:
            return unusual, abstained
    if unusual is None and known.energies is not None and rows.energies is not None:
        unusual = p_values(rows.energies, kept_scores(known.energies, UNUSUAL)) <= UNUSUAL
    return unusual, abstained


def _labelled(rows: Predictions) -> dict[str, Any] | None:
    """Accuracy and, of enough rows, calibration of those whose labels have come."""
    if not (rows.labels >= 0).any():
        return None
    known = rows.labelled()
    right = int((known.predicted() == known.labels).sum())
    low, high = (float(end) for end in wilson(np.array(right), np.array(known.n_rows)))
    found: dict[str, Any] = {
        "n_rows": known.n_rows, "accuracy": {"value": right / known.n_rows, "low": low, "high": high},
    }  # fmt: skip
    if known.n_rows < LEAST_ROWS:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)  # for each window; the table has the numbers
        return found | judge(known, MEASURES, method="")["metrics"]


def _mark_drift(found: list[dict[str, Any]], false_alarms: float, n_windows: int | None) -> None:
    places = [(window, name) for window in found for name in window["p_values"]]
    to_come = None if n_windows is None else n_windows * len(TESTS)
    rejected = holm([window["p_values"][name] for window, name in places], false_alarms, to_come)
    for (window, name), is_drift in zip(places, rejected, strict=True):
        if is_drift:
            window["drift"].append(name)


def _alarms(found: Sequence[dict[str, Any]], least: float | None) -> list[str]:
    drifted = [window for window in found if window["drift"]]
    said = [f"{w['name']}: {', '.join(w['drift'])} not as in the calibration texts." for w in drifted]
    for window in found if least is not None else ():
        expected, labelled = window["expected"]["confidence"], window["labelled"]
        if expected["high"] < least and window["n_rows"] >= LEAST_ROWS:
            said.append(f"{window['name']}: accuracy to expect {expected['value']:.3f}, below {least:g}.")
        if labelled and labelled["accuracy"]["high"] < least:
            said.append(f"{window['name']}: accuracy {labelled['accuracy']['value']:.3f}, below {least:g}.")
    return said
