"""`monitor`: a log of predictions without labels, window by window, compared with labelled reference predictions.

The result is one JSON-able document, which the table and the page show:

    reference {"name", "n_rows", "accuracy", "confidence", "energy"}
    windows   [{"name", "n_rows", "accuracy": {"value", "low", "high"} or None (withheld), "accuracy_note",
                "estimates": {estimator: {"value", "low", "high"}}, "confidence", "energy",
                "predicted": {label: share}, "ood": share, "abstained": share, "p_values": {test: p}, "drift": [tests],
                "labelled": {"n_rows", "accuracy", "ece_top_label", "nll"} or None}]
    alarms    [messages]
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike as OsPathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.monitoring.drift import MIN_ROWS, TESTS, p_values, significant
from ebmcal.monitoring.estimation import estimate_accuracy
from ebmcal.monitoring.log import Log, add_labels, parse_duration, read_log, windows
from ebmcal.monitoring.reference import calibrated, check_same_model, find_reference
from ebmcal.predictions import Predictions
from ebmcal.run_dir import RunDir
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.reports.tables import Table
    from ebmcal.selective import AbstentionRule

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

    `reference` are labelled predictions of the model for typical texts; default: those of the calibration (or test)
    split of its run. `labels` is a file with the columns id and label for rows with labels known by now.
    `false_alarm_rate` bounds the probability of any drift alarm if nothing has changed, over all windows of the log, or
    over `planned_windows` if more will follow. `min_accuracy` adds an alarm when the accuracy is significantly lower.
    `normalize` is for rounded probabilities.

        ebmcal.monitor("model", "answers.jsonl", every="1d").report("monitoring.html")
    """
    from ebmcal.selective import read_rule

    _check_settings(false_alarm_rate, min_accuracy, planned_windows, window_rows)
    parse_duration(every or "1d")
    folder = Path(model).expanduser()
    known, name = find_reference(folder, reference, normalize)
    paths = [log] if isinstance(log, str | OsPathLike) else list(log)

    def check(rows: Predictions, path: PathLike) -> None:
        check_same_model(folder, rows, str(path))
        _check_is_other(rows, known, f"{path} is the reference ({name}) itself")

    given = read_log(paths, label_names=known.label_names, time_column=time_column, normalize=normalize, check=check)
    given = given if labels is None else add_labels(given, labels)
    given = replace(given, rows=calibrated(given.rows, folder))
    known = calibrated(known.labelled(), folder)
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
        "reference": _describe_reference(known, name),
        "windows": described,
        "alarms": _alarms(described, min_accuracy),
    })  # fmt: skip


def _check_settings(
    false_alarm_rate: float, min_accuracy: float | None, planned_windows: int | None, window_rows: int | None
) -> None:
    shares = {"--false-alarm-rate": false_alarm_rate, "--min-accuracy": min_accuracy}
    counts = {"--planned-windows": planned_windows, "--rows": window_rows}
    wrong = [f"{k}: expected a number between 0 and 1, got {v:g}." for k, v in shares.items() if v and not 0 < v < 1]
    wrong += [f"{k}: expected at least 1, got {v}." for k, v in counts.items() if v is not None and v < 1]
    if not false_alarm_rate:
        wrong.append("--false-alarm-rate: expected a number between 0 and 1, got 0.")
    if wrong:
        raise EbmcalError(" ".join(wrong))


def _check_is_other(rows: Predictions, known: Predictions, problem: str) -> None:
    """Refuse a log that is its own reference: no change could ever be detected."""
    if rows.n_rows != known.n_rows or not np.array_equal(rows.ids.astype(str), known.ids.astype(str)):
        return
    is_same = np.allclose(rows.probs, known.probs, atol=1e-6)
    if rows.energies is not None and known.energies is not None:
        is_same = is_same and np.allclose(rows.energies, known.energies, atol=1e-6)
    if is_same:
        raise EbmcalError(f"{problem}, so no change could be detected. Give predictions for other texts.")


def _describe_reference(known: Predictions, name: str) -> dict[str, Any]:
    return {
        "name": name, "n_rows": known.n_rows, "accuracy": float((known.predicted == known.labels).mean()),
        "confidence": float(known.confidence.mean()), "energy": _mean(known.energies),
    }  # fmt: skip


def _describe(name: str, log: Log, known: Predictions, rule: "AbstentionRule | None") -> dict[str, Any]:
    rows = log.rows
    is_ood, abstained = _decisions(log, known, rule)
    shares = np.bincount(rows.predicted, minlength=rows.n_classes) / rows.n_rows
    return {
        "name": name,
        "n_rows": rows.n_rows,
        "estimates": {key: asdict(value) for key, value in estimate_accuracy(known, rows).items()},
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
    log: Log, known: Predictions, rule: "AbstentionRule | None"
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Which rows are OOD and which were abstained on: as logged, else by the model's rule, else by energy."""
    is_ood, abstained, rows = log.is_ood, log.abstained, log.rows
    has_ood_rule = False
    if rule is not None and (is_ood is None or abstained is None):
        has_ood_rule = rule.ood is not None
        if rows.logits is None and not rows.meta.keys() & {"calibrator", "model"}:  # what the model returned
            rows = rows.replace(meta=rows.meta | {"calibrator": rule.calibrated_by})
        try:
            found = rule.apply(rows)
        except EbmcalError as error:
            warnings.warn(f"The abstention rule of the model cannot be applied to the log: {error}", stacklevel=2)
        else:
            is_ood = found.is_ood if is_ood is None else is_ood
            abstained = ~found.answered if abstained is None else abstained
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
    found: dict[str, Any] = {
        "n_rows": known.n_rows, "accuracy": {"value": n_correct / known.n_rows, "low": low, "high": high},
    }  # fmt: skip
    if known.n_rows < MIN_ROWS:
        return found
    measured = summarize(known, METRICS, n_resamples=200, warn=False)
    return found | {name: {"value": m.value, "low": m.low, "high": m.high} for name, m in measured.items()}


def _mark_drift(described: list[dict[str, Any]], rate: float, planned_windows: int | None) -> None:
    tests = [(window, name) for window in described for name in window["p_values"]]
    n_tests = None if planned_windows is None else planned_windows * len(TESTS)
    for (window, name), is_drift in zip(
        tests, significant([window["p_values"][name] for window, name in tests], rate, n_tests), strict=True
    ):
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
    window["accuracy"] = None if reasons else window["estimates"]["confidence"]
    window["accuracy_note"] = ""
    if reasons:
        window["accuracy_note"] = (
            f"Accuracy estimate withheld: {' and '.join(reasons)}, so a confidence may no longer mean what it meant "
            "there. Label some of these rows (--labels) to measure the accuracy."
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
