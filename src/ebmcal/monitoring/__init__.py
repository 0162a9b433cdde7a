"""Monitoring a model in use without labels: its log, window by window, compared with a reference. No torch.

`log` reads what was predicted and when, `statistics` estimates accuracy and tests for drift, `page` shows the result:
one JSON-able document,

    reference {"name", "n_rows", "accuracy", "confidence", "energy"}
    windows   [{"name", "n_rows", "accuracy": {"value", "low", "high"} or None (withheld), "accuracy_note",
                "estimate": the same, also if it is withheld, "confidence", "energy",
                "predicted": {label: share}, "ood": share, "abstained": share, "p_values": {test: p}, "drift": [tests],
                "labelled": {"n_rows", "accuracy", "ece_top_label", "nll"} or None}]
    alarms    [messages]
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike as OsPathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.calibration import folded_temperature, read_calibrator
from ebmcal.calibration.leakage import IDENTITY, model_differences
from ebmcal.calibration.persistence import check_model_dir, read_for_model
from ebmcal.errors import EbmcalError
from ebmcal.monitoring.log import Log, add_labels, parse_duration, read_log, windows
from ebmcal.monitoring.statistics import MIN_ROWS, TESTS, estimate_accuracy, p_values, significant
from ebmcal.predictions import Predictions
from ebmcal.run_dir import RunDir, predictions_of_model
from ebmcal.selective import AbstentionRule, read_rule
from ebmcal.selective.fitting import calibrated
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.reports.table import Table

__all__ = ["Monitoring", "monitor"]

#: Metrics of the labelled rows of a window.
METRICS = ("ece_top_label", "nll")

#: Without an OOD score in the model's abstention rule, energies above this quantile of the reference are OOD.
OOD_QUANTILE = 0.95

#: The accuracy estimate is also withheld if more than this share of a window is out-of-distribution.
MAX_OOD_SHARE = 0.5


@dataclass(frozen=True, repr=False)
class Monitoring:
    """The result of `monitor`; `alarms` is empty if nothing is wrong."""

    document: dict[str, Any]

    @property
    def alarms(self) -> list[str]:
        return list(self.document["alarms"])

    def table(self) -> "Table":
        """One row per window."""
        from ebmcal.monitoring.page import window_table

        return window_table(self.document)

    def to_json(self) -> str:
        return json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)

    def report(self, path: PathLike) -> Path:
        """Write a self-contained HTML page; returns its path."""
        from ebmcal.monitoring.page import write_monitoring_page

        return write_monitoring_page(path, self.document)

    def __repr__(self) -> str:
        return str(self.table())


def monitor(
    model: PathLike,
    log: PathLike | Sequence[PathLike],
    *,
    reference: PathLike | Predictions | None = None,
    labels: PathLike | None = None,
    time_column: str | None = None,
    every: str | None = None,
    window_rows: int | None = None,
    false_alarm_rate: float = 0.05,
    planned_windows: int | None = None,
    min_accuracy: float | None = None,
    normalize: bool = False,
) -> Monitoring:
    """Estimated accuracy, drift, and the shares of OOD and abstained texts, in windows of time or of rows.

    `model` is a model directory, or a run and then its recommended model. `reference` are labelled predictions of the
    model for typical texts; default: those of the calibration (or test) split of its run. `labels` is a file with the
    columns id and label for rows with labels known by now. `false_alarm_rate` bounds the probability of any drift alarm
    if nothing has changed, over all windows of the log, or over `planned_windows` if more will follow. `min_accuracy`
    adds an alarm when the accuracy is significantly lower. `normalize` is for rounded probabilities.

        ebmcal.monitor("model", "answers.jsonl", every="1d").report("monitoring.html")
    """
    _check_settings(false_alarm_rate, min_accuracy, planned_windows, window_rows)
    parse_duration(every or "1d")
    folder = check_model_dir(Path(model).expanduser())
    known, name = _find_reference(folder, reference, normalize)
    paths = [log] if isinstance(log, str | OsPathLike) else list(log)

    def check(rows: Predictions, path: PathLike) -> None:
        _check_same_model(folder, rows, str(path))
        if _is_same(rows, known):
            raise EbmcalError(f"{path} is the reference ({name}) itself, so no change could be detected.")

    given = read_log(paths, label_names=known.label_names, time_column=time_column, normalize=normalize, check=check)
    given = given if labels is None else add_labels(given, labels)
    given, known = replace(given, rows=_calibrated(given.rows, folder)), _calibrated(known.labelled(), folder)
    rule = read_rule(folder)
    described = [_describe(title, part, known, rule) for title, part in windows(given, every=every, n_rows=window_rows)]
    _mark_drift(described, false_alarm_rate, planned_windows)
    for window in described:
        _choose_accuracy(window)
    place = RunDir.containing(folder)
    return Monitoring({
        "model": place[1].name if place else folder.resolve().name,
        "log": [Path(path).name for path in paths],
        "false_alarm_rate": false_alarm_rate,
        "min_accuracy": min_accuracy,
        "n_tests": sum(len(window["p_values"]) for window in described),
        "reference": {
            "name": name, "n_rows": known.n_rows, "accuracy": float((known.predicted == known.labels).mean()),
            "confidence": float(known.confidence.mean()), "energy": _mean(known.energies),
        },
        "windows": described,
        "alarms": _alarms(described, min_accuracy),
    })  # fmt: skip


def _check_settings(
    false_alarm_rate: float, min_accuracy: float | None, planned_windows: int | None, window_rows: int | None
) -> None:
    shares = {"--false-alarm-rate": false_alarm_rate, "--min-accuracy": min_accuracy}
    counts = {"--planned-windows": planned_windows, "--rows": window_rows}
    wrong = [
        f"{option}: expected a number between 0 and 1, got {share:g}."
        for option, share in shares.items()
        if share is not None and not 0 < share < 1
    ]
    wrong += [f"{option}: expected at least 1, got {n}." for option, n in counts.items() if n is not None and n < 1]
    if wrong:
        raise EbmcalError(" ".join(wrong))


def _find_reference(folder: Path, given: PathLike | Predictions | None, normalize: bool) -> tuple[Predictions, str]:
    """The given reference, or the predictions of the run for its calibration (else test) split; and its name."""
    if given is None:
        rows, name = _run_predictions(folder)
    else:
        name = "the given reference" if isinstance(given, Predictions) else Path(given).name
        rows = read_for_model(given, folder, normalize=normalize)
        _check_same_model(folder, rows, name)
    if rows.meta.get("split") == "train":
        raise EbmcalError(f"{name} holds training rows, on which the model is too accurate. Give held-out rows.")
    n_labelled = int((rows.labels >= 0).sum())
    if n_labelled < MIN_ROWS:
        raise EbmcalError(f"{name} has {n_labelled} labelled rows; expected at least {MIN_ROWS}.")
    return rows, name


def _run_predictions(folder: Path) -> tuple[Predictions, str]:
    for split in ("calibration", "test"):
        path = predictions_of_model(folder, split)
        if path is not None:
            rows, temperature = read_for_model(path, folder), folded_temperature(folder)
            if temperature is not None and rows.logits is not None:  # predicted before the temperature was folded in
                rows = rows.replace(logits=rows.logits / temperature)
            return rows, f"the {split} split"
    raise EbmcalError(
        f"{folder} is not in a run directory with predictions, so there is no reference. Give labelled predictions of "
        "the model for typical texts: --reference FILE"
    )


def _calibrated(rows: Predictions, folder: Path) -> Predictions:
    """Logits with the model's calibrator applied; probabilities are what the model returned and stay as they are."""
    return rows if rows.logits is None else calibrated(rows, read_calibrator(folder))


def _check_same_model(folder: Path, rows: Predictions, name: str) -> None:
    """Refuse predictions of another model; warn if they do not state their model."""
    if differences := model_differences(rows.meta, folder):
        raise EbmcalError(f"{name} was written by another model than {folder}: {differences}.")
    if not rows.meta.keys() & {"model", "weights", *IDENTITY}:
        warnings.warn(f"{name} does not state which model wrote it, so this was not checked.", stacklevel=3)


def _is_same(rows: Predictions, known: Predictions) -> bool:
    if rows.n_rows != known.n_rows or rows.ids.astype(str).tolist() != known.ids.astype(str).tolist():
        return False
    has_energies = rows.energies is not None and known.energies is not None
    same_energies = not has_energies or np.allclose(rows.energies, known.energies, atol=1e-6)  # type: ignore[arg-type]
    return same_energies and np.allclose(rows.probs, known.probs, atol=1e-6)


def _describe(name: str, log: Log, known: Predictions, rule: AbstentionRule | None) -> dict[str, Any]:
    rows = log.rows
    is_ood, abstained = _decisions(log, known, rule)
    shares = np.bincount(rows.predicted, minlength=rows.n_classes) / rows.n_rows
    return {
        "name": name,
        "n_rows": rows.n_rows,
        "estimate": estimate_accuracy(known, rows),
        "confidence": float(rows.confidence.mean()),
        "energy": _mean(rows.energies),
        "predicted": dict(zip(rows.label_names, shares.tolist(), strict=True)),
        "ood": _mean(is_ood),
        "abstained": _mean(abstained),
        "p_values": p_values(known, rows),
        "drift": [],
        "labelled": _describe_labelled(rows),
    }


def _decisions(
    log: Log, known: Predictions, rule: AbstentionRule | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Which rows are OOD and which were abstained on: as logged, else by the model's rule, else by energy."""
    is_ood, abstained, rows = log.is_ood, log.abstained, log.rows
    if rule is not None and (is_ood is None or abstained is None):
        if rows.logits is None and not rows.meta.keys() & {"calibrator", "model"}:  # what the model returned
            rows = rows.replace(meta=rows.meta | {"calibrator": rule.calibrated_by})
        try:
            found = rule.apply(rows)
        except EbmcalError as error:
            warnings.warn(f"The abstention rule of the model cannot be applied to the log: {error}", stacklevel=2)
        else:
            is_ood = found.is_ood if is_ood is None else is_ood
            abstained = ~found.answered if abstained is None else abstained
    has_ood_rule = rule is not None and rule.ood is not None
    if is_ood is None and not has_ood_rule and known.energies is not None and rows.energies is not None:
        is_ood = rows.energies > np.quantile(known.energies, OOD_QUANTILE)
    return is_ood, abstained


def _describe_labelled(rows: Predictions) -> dict[str, Any] | None:
    """Accuracy and, with enough rows, calibration of the rows with a known label."""
    from ebmcal.metrics import summarize
    from ebmcal.metrics.calibration import wilson

    if not (rows.labels >= 0).any():
        return None
    known = rows.labelled()
    n_correct = int((known.predicted == known.labels).sum())
    low, high = (float(end) for end in wilson(np.array(n_correct), np.array(known.n_rows)))
    accuracy = {"value": n_correct / known.n_rows, "low": low, "high": high}
    measured = summarize(known, METRICS, n_resamples=200, warn=False) if known.n_rows >= MIN_ROWS else {}
    found = {name: {"value": m.value, "low": m.low, "high": m.high} for name, m in measured.items()}
    return {"n_rows": known.n_rows, "accuracy": accuracy, **found}


def _mark_drift(described: list[dict[str, Any]], rate: float, planned_windows: int | None) -> None:
    tests = [(window, name) for window in described for name in window["p_values"]]
    n_tests = None if planned_windows is None else planned_windows * len(TESTS)
    found = significant([window["p_values"][name] for window, name in tests], rate, n_tests)
    for (window, name), is_drift in zip(tests, found, strict=True):
        if is_drift:
            window["drift"].append(name)


def _choose_accuracy(window: dict[str, Any]) -> None:
    """The estimate by confidence, unless its assumption is violated: then it is withheld, with the reason."""
    reasons = []
    if window["drift"]:
        verb = "differs" if window["drift"] in (["energy"], ["confidence"]) else "differ"
        reasons.append(f"{' and '.join(window['drift'])} {verb} from the reference")
    if (window["ood"] or 0) > MAX_OOD_SHARE:
        reasons.append(f"{window['ood']:.0%} of the texts are out-of-distribution")
    window["accuracy"] = None if reasons else window["estimate"]
    window["accuracy_note"] = (
        f"Accuracy estimate withheld: {' and '.join(reasons)}, so a confidence may no longer mean what it meant there. "
        "Label some of these rows (--labels) to measure the accuracy."
        if reasons
        else ""
    )


def _alarms(described: Sequence[dict[str, Any]], min_accuracy: float | None) -> list[str]:
    alarms = [
        f"{window['name']}: drift in {', '.join(window['drift'])} compared with the reference."
        for window in described
        if window["drift"]
    ]
    for window in described if min_accuracy is not None else ():
        estimated, labelled = window["accuracy"], window["labelled"]
        if estimated and estimated["high"] < min_accuracy and window["n_rows"] >= MIN_ROWS:
            alarms.append(f"{window['name']}: estimated accuracy {estimated['value']:.3f} is below {min_accuracy:g}.")
        if labelled and labelled["accuracy"]["high"] < min_accuracy:
            value = labelled["accuracy"]["value"]
            alarms.append(f"{window['name']}: accuracy of labelled rows {value:.3f} is below {min_accuracy:g}.")
    return alarms


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(np.mean(values))
