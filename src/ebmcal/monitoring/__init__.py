"""Monitoring a model in use without labels: its log, window by window, compared with a reference. No torch.

`log` reads what was predicted and when, `page` shows the result: one JSON-able document,

    reference {"name", "n_rows", "accuracy", "confidence", "energy"}
    windows   [{"name", "n_rows", "accuracy": {"value", "low", "high"} or None (withheld), "accuracy_note",
                "estimate": the same, also if it is withheld, "confidence", "energy",
                "predicted": {label: share}, "ood": share, "abstained": share, "p_values": {test: p}, "drift": [tests],
                "labelled": {"n_rows", "accuracy", "ece_top_label", "nll"} or None}]
    alarms    [messages]

Accuracy estimation: mean confidence, minus its bias on the reference (difference of confidences, Guillory et al. 2021).
This assumes that a confidence means what it meant on the reference. Drift breaks the assumption: then the estimate is
withheld. Drift tests: energies and confidences are compared by Kolmogorov–Smirnov, predicted labels by chi-squared.
Holm's procedure over all windows and tests bounds the probability of any false alarm, however the tests depend on each
other (they share the reference).
"""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike as OsPathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.calibration import folded_temperature, read_calibrator
from ebmcal.calibration.leakage import IDENTITY, model_differences
from ebmcal.calibration.persistence import check_model_dir, read_for_model
from ebmcal.errors import EbmcalError
from ebmcal.metrics import holm, summarize
from ebmcal.metrics.calibration import wilson
from ebmcal.monitoring.log import Log, add_labels, parse_duration, read_log, windows
from ebmcal.predictions import Predictions
from ebmcal.run_dir import RunDir, predictions_of_model
from ebmcal.selective import AbstentionRule, read_rule
from ebmcal.selective.fitting import calibrated
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.reports.page import Table

__all__ = ["Monitoring", "monitor"]

Z = 1.959963984540054  # of a 95% interval

#: Rows a window needs to be tested, and a reference to compare with.
MIN_ROWS = 30

#: Splits of a run that can be the reference, in this order, and their names. Out-of-fold rows are training rows,
#: predicted by models trained without them.
REFERENCE_SPLITS = {
    "calibration": "the calibration split",
    "test": "the test split",
    "out_of_fold": "out-of-fold predictions",
}

#: Expected rows per label and sample that the chi-squared approximation needs; rarer labels are pooled.
MIN_EXPECTED = 5

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
    model for typical texts; default: those of the calibration or test split of its run, or out-of-fold ones if these
    have fewer than 30 labelled rows. `labels` is a file with the columns id and label for rows with labels known by
    now. `false_alarm_rate` bounds the probability of any drift alarm if nothing has changed, over all windows of the
    log, or over `planned_windows` if more will follow. `min_accuracy` adds an alarm when the accuracy is significantly
    lower. `normalize` is for rounded probabilities.

        ebmcal.monitor("model", "answers.jsonl", every="1d").report("monitoring.html")
    """
    for option, share in {"--false-alarm-rate": false_alarm_rate, "--min-accuracy": min_accuracy}.items():
        if share is not None and not 0 < share < 1:
            raise EbmcalError(f"{option}: expected a number between 0 and 1, got {share:g}.")
    for option, n in {"--planned-windows": planned_windows, "--rows": window_rows}.items():
        if n is not None and n < 1:
            raise EbmcalError(f"{option}: expected at least 1, got {n}.")
    parse_duration(every or "1d")
    folder = check_model_dir(Path(model).expanduser())
    known, name = _find_reference(folder, reference, normalize)
    paths = [log] if isinstance(log, str | OsPathLike) else list(log)

    check = partial(_check_same_model, folder)
    given = read_log(paths, label_names=known.label_names, time_column=time_column, normalize=normalize, check=check)
    given = given if labels is None else add_labels(given, labels)
    given, known = replace(given, rows=_calibrated(given.rows, folder)), _calibrated(known.labelled(), folder)
    rule = read_rule(folder)
    described = [_describe(title, part, known, rule) for title, part in windows(given, every=every, n_rows=window_rows)]
    _mark_drift(described, false_alarm_rate, planned_windows)
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


def _find_reference(folder: Path, given: PathLike | Predictions | None, normalize: bool) -> tuple[Predictions, str]:
    """The given reference, or predictions of the run (`REFERENCE_SPLITS`); and its name."""
    if given is None:
        rows, name = _run_predictions(folder)
    else:
        name = "the given reference" if isinstance(given, Predictions) else Path(given).name
        rows = read_for_model(given, folder, normalize=normalize)
        _check_same_model(folder, rows, name)
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
    found = {split: read_for_model(path, folder) for split, path in paths.items() if path is not None}
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
    if split == "out_of_fold":  # energies of other models have another scale
        rows = rows.replace(energies=None)
    why = f", as {REFERENCE_SPLITS[first]} has {_count_labelled(found[first])} labelled rows" if split != first else ""
    return rows, f"{REFERENCE_SPLITS[split]}{why}"


def _count_labelled(rows: Predictions) -> int:
    return int((rows.labels >= 0).sum())


def _calibrated(rows: Predictions, folder: Path) -> Predictions:
    """Logits with the model's calibrator applied; probabilities are what the model returned and stay as they are."""
    return rows if rows.logits is None else calibrated(rows, read_calibrator(folder))


def _check_same_model(folder: Path, rows: Predictions, name: PathLike) -> None:
    """Refuse predictions of another model; warn if they do not state their model."""
    if differences := model_differences(rows.meta, folder):
        raise EbmcalError(f"{name} was written by another model than {folder}: {differences}.")
    if not rows.meta.keys() & {"model", "weights", *IDENTITY}:
        warnings.warn(f"{name} does not state which model wrote it, so this was not checked.", stacklevel=3)


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
    if not (rows.labels >= 0).any():
        return None
    known = rows.labelled()
    n_correct = int((known.predicted == known.labels).sum())
    low, high = (float(end) for end in wilson(np.array(n_correct), np.array(known.n_rows)))
    accuracy = {"value": n_correct / known.n_rows, "low": low, "high": high}
    measured = summarize(known, METRICS, n_resamples=200) if known.n_rows >= MIN_ROWS else {}
    found = {name: {"value": m.value, "low": m.low, "high": m.high} for name, m in measured.items()}
    return {"n_rows": known.n_rows, "accuracy": accuracy, **found}


def estimate_accuracy(reference: Predictions, window: Predictions) -> dict[str, float]:
    """The share of correct rows in the window: value, and low and high of a 95% interval. The reference is labelled.

    >>> known = Predictions([0] * 9 + [1], ("a", "b"), probs=[[0.8, 0.2]] * 10)
    >>> round(estimate_accuracy(known, Predictions([-1] * 4, ("a", "b"), probs=[[0.6, 0.4]] * 4))["value"], 2)
    0.7
    """
    gaps = (reference.predicted == reference.labels) - reference.confidence  # [m]
    confidence = window.confidence
    sampling = (confidence * (1 - confidence)).sum() / len(confidence) ** 2
    reach = Z * np.sqrt(gaps.var(ddof=1) / len(gaps) + sampling)
    value = confidence.mean() + gaps.mean()
    ends = {"value": value, "low": value - reach, "high": value + reach}
    return {name: float(np.clip(end, 0, 1)) for name, end in ends.items()}


def energy_test(reference: Predictions, window: Predictions) -> float | None:
    """p-value of the energies; None without energies."""
    from scipy.stats import ks_2samp

    if reference.energies is None or window.energies is None:
        return None
    return float(ks_2samp(reference.energies, window.energies, method="asymp").pvalue)


def confidence_test(reference: Predictions, window: Predictions) -> float | None:
    """p-value of the confidences."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(reference.confidence, window.confidence, method="asymp").pvalue)


def label_test(reference: Predictions, window: Predictions) -> float | None:
    """p-value of the predicted labels; None if nearly all predictions are the same label."""
    from scipy.stats import chi2_contingency

    counts = np.stack([np.bincount(p.predicted, minlength=p.n_classes) for p in (reference, window)])  # [2, C]
    smaller_sample = counts.sum(axis=1).min() / counts.sum()
    frequent = counts.sum(axis=0) * smaller_sample >= MIN_EXPECTED
    table, rest = counts[:, frequent], counts[:, ~frequent].sum(axis=1, keepdims=True)
    if rest.sum() * smaller_sample >= MIN_EXPECTED:
        table = np.concatenate([table, rest], axis=1)
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else None


TESTS: dict[str, Callable[[Predictions, Predictions], float | None]] = {
    "energy": energy_test,
    "confidence": confidence_test,
    "predicted labels": label_test,
}


def p_values(reference: Predictions, window: Predictions) -> dict[str, float]:
    """The p-value of every applicable test; empty for a window of fewer than `MIN_ROWS` rows."""
    found = {name: test(reference, window) for name, test in TESTS.items() if window.n_rows >= MIN_ROWS}
    return {name: p for name, p in found.items() if p is not None}


def significant(p_values: Sequence[float], rate: float, n_tests: int | None = None) -> list[bool]:
    """Which tests are significant if any false alarm may occur with probability at most `rate` (Holm).

    `n_tests` includes tests that are still to be made; they count as not significant.

    >>> significant([0.01, 0.04, 0.03], 0.05), significant([0.01], 0.05, n_tests=10)
    ([True, False, False], [False])
    """
    n_to_come = max(0, (n_tests or 0) - len(p_values))
    adjusted = holm([*p_values, *[1.0] * n_to_come])[: len(p_values)]
    return [p is not None and p <= rate for p in adjusted]


def _mark_drift(described: list[dict[str, Any]], rate: float, planned_windows: int | None) -> None:
    """Add the significant tests of each window, and its accuracy, or why the estimate is withheld."""
    tests = [(window["name"], test, p) for window in described for test, p in window["p_values"].items()]
    n_tests = None if planned_windows is None else planned_windows * len(TESTS)
    found = significant([p for *_, p in tests], rate, n_tests)
    for window in described:
        pairs = zip(tests, found, strict=True)
        drift = [test for (name, test, _), is_drift in pairs if is_drift and name == window["name"]]
        reasons = [f"drift in {', '.join(drift)}"] if drift else []
        if (window["ood"] or 0) > MAX_OOD_SHARE:
            reasons.append(f"{window['ood']:.0%} of the texts are out-of-distribution")
        window |= {"drift": drift, "accuracy": None if reasons else window["estimate"], "accuracy_note": ""}
        if reasons:
            window["accuracy_note"] = (
                f"Accuracy estimate withheld ({' and '.join(reasons)}): a confidence may no longer mean what it meant "
                "on the reference. Label some of these rows (--labels) to measure the accuracy."
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
