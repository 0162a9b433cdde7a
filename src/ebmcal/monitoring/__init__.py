"""Monitoring a model in use without labels: its log, window by window, compared with a reference. No torch.

`log` reads what was predicted and when. The result is one JSON-able document,

    reference {"name", "n_rows", "is_out_of_fold", "accuracy", "confidence", "energy"}
    is_ood_by_energy
    windows   [{"name", "n_rows", "accuracy": {"value", "low", "high"} or None (withheld), "accuracy_note",
                "estimate": the same, also if it is withheld, "confidence", "energy",
                "predicted": {label: share}, "ood": share, "abstained": share, "p_values": {test: p}, "drift": [tests],
                "labelled": {"n_rows", "accuracy", "ece_top_label", "nll"} or None}]
    alarms    [messages]

Accuracy estimation: mean confidence, minus its bias on the reference (difference of confidences, Guillory et al. 2021).
This assumes that a confidence means what it meant on the reference. Drift breaks the assumption: then the estimate is
withheld. Drift tests: energies and confidences are compared by Kolmogorov–Smirnov, predicted labels by chi-squared.
Holm's procedure over all windows and tests bounds the probability of any false alarm, however the tests depend on each
other (they share the reference). Out-of-fold references are of other models, with other energies and confidences: only
predicted labels are compared with them, and the bound is approximate.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike as OsPathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ebmcal.calibration.persistence import check_model_dir
from ebmcal.errors import EbmcalError, plural
from ebmcal.metrics import holm, summarize
from ebmcal.metrics.calibration import wilson
from ebmcal.monitoring.log import (
    MIN_ROWS,
    Log,
    add_labels,
    as_answered,
    find_reference,
    is_out_of_fold,
    read_log,
    windows,
)
from ebmcal.predictions import Predictions
from ebmcal.reports.page import Block, Page, Picture, Section, Table, write_page
from ebmcal.reports.plots import MUTED, Series, add_legend, draw, line_plot, safe_label, show_message
from ebmcal.run_dir import model_name
from ebmcal.selective import AbstentionRule, read_rule
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Monitoring", "monitor"]

Z = 1.959963984540054  # of a 95% interval

#: Expected rows per label and sample that the chi-squared approximation needs; rarer labels are pooled.
MIN_EXPECTED = 5

#: Metrics of the labelled rows of a window.
METRICS = ("ece_top_label", "nll")

#: Without an OOD score in the model's abstention rule, energies above this quantile of the reference are OOD.
OOD_QUANTILE = 0.95

#: If more than this share of a window is out-of-distribution, the accuracy estimate is withheld; with this many rows it
#: is also an alarm (at a rate of 0.05, more than half of 10 rows are OOD with a probability below 0.00001).
MAX_OOD_SHARE, MIN_OOD_ROWS = 0.5, 10

#: Columns of the table: heading → key of a window. Those of the rows with known labels are a group, which a narrow
#: terminal shows in a second table.
COLUMNS: dict[Any, str] = {
    "Window": "name", "Drift": "drift", "Rows": "n_rows", "Estimated accuracy": "accuracy", "Confidence": "confidence",
    "Energy": "energy", "OOD": "ood", "Abstained": "abstained",
    ("Labelled rows", "Number"): "labelled_n_rows", ("Labelled rows", "Accuracy"): "labelled_accuracy",
    ("Labelled rows", "ECE"): "labelled_ece_top_label",
}  # fmt: skip

N_TICKS = 8  # names of windows along an axis, at most
N_NAMES = 5  # in a message
ROUGH, MOSTLY_OOD = "rough estimate", "more than half of the texts are out-of-distribution"

ASK_FOR_LABELS = (
    " Label some of these rows to measure the accuracy: ebmcal monitor MODEL LOG --labels FILE, with the columns id "
    "and label."
)

#: Pictures: key → title, caption, and the lines: name → key of a window. The dashed line is the reference.
PICTURES = {
    "accuracy": (
        "Accuracy",
        "Estimated from calibrated confidences, with 95% intervals, and measured where labels are known. The dashed "
        "line is the accuracy on the reference. Windows with drift or mostly OOD texts have no estimate.",
        {"estimated": "accuracy", "labelled rows": "labelled_accuracy", ROUGH: "rough_accuracy"},
    ),
    "energy": (
        "Energy",
        "Mean energy. Higher than the reference (dashed): texts less like the training data, or harder to classify.",
        {"energy": "energy"},
    ),
    "confidence": ("Confidence", "Mean confidence; the dashed line is the reference.", {"confidence": "confidence"}),
    "shares": (
        "OOD and abstained texts",
        "Shares of texts that are out-of-distribution or abstained on.",
        {"OOD": "ood", "abstained": "abstained"},
    ),
}


@dataclass(frozen=True, repr=False)
class Monitoring:
    """The result of `monitor`; `alarms` is empty if nothing is wrong."""

    document: dict[str, Any]

    @property
    def alarms(self) -> list[str]:
        return list(self.document["alarms"])

    def table(self) -> Table:
        """One row per window."""
        return window_table(self.document)

    def to_json(self) -> str:
        return json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)

    def report(self, path: PathLike) -> Path:
        """Write a self-contained HTML page; returns its path."""
        return write_page(path, make_page(self.document))

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
    folder = check_model_dir(Path(model).expanduser())
    known, name = find_reference(folder, reference, normalize)
    paths = [log] if isinstance(log, str | OsPathLike) else list(log)

    given = read_log(paths, folder, label_names=known.label_names, time_column=time_column, normalize=normalize)
    given = given if labels is None else add_labels(given, labels)
    given, known = replace(given, rows=as_answered(given.rows, folder)), as_answered(known.labelled(), folder)
    rule = read_rule(folder)
    described = [_describe(title, part, known, rule) for title, part in windows(given, every=every, n_rows=window_rows)]
    has_ood_rule = rule is not None and rule.ood is not None
    _mark_drift(described, false_alarm_rate, planned_windows)
    return Monitoring({
        "model": model_name(folder),
        "log": [Path(path).name for path in paths],
        "false_alarm_rate": false_alarm_rate,
        "min_accuracy": min_accuracy,
        "n_tests": sum(len(window["p_values"]) for window in described),
        "is_ood_by_energy": given.is_ood is None and not has_ood_rule and described[0]["ood"] is not None,
        "reference": {
            "name": name, "n_rows": known.n_rows, "is_out_of_fold": is_out_of_fold(known),
            "accuracy": float((known.predicted == known.labels).mean()),
            "confidence": float(known.confidence.mean()), "energy": _mean(known.energies),
        },
        "windows": described,
        "alarms": _alarms(described, min_accuracy),
    })  # fmt: skip


def _describe(name: str, log: Log, known: Predictions, rule: AbstentionRule | None) -> dict[str, Any]:
    rows = log.rows
    is_ood, abstained = _decisions(log, known, rule)
    shares = np.bincount(rows.predicted, minlength=rows.n_classes) / rows.n_rows
    found = p_values(known, rows)
    return {
        "name": name,
        "n_rows": rows.n_rows,
        "estimate": estimate_accuracy(known, rows),
        "is_rough": is_out_of_fold(known) or not found,  # the reference is of other models, or drift was not tested
        "confidence": float(rows.confidence.mean()),
        "energy": _mean(rows.energies),
        "predicted": dict(zip(rows.label_names, shares.tolist(), strict=True)),
        "ood": _mean(is_ood),
        "abstained": _mean(abstained),
        "p_values": found,
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


def compare_values(reference: np.ndarray | None, window: np.ndarray | None) -> float | None:
    """p-value of energies or confidences; None if one of them is unknown."""
    from scipy.stats import ks_2samp

    if reference is None or window is None:
        return None
    return float(ks_2samp(reference, window, method="asymp").pvalue)


def compare_labels(reference: Predictions, window: Predictions) -> float | None:
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
    "energy": lambda reference, window: compare_values(reference.energies, window.energies),
    "confidence": lambda reference, window: compare_values(reference.confidence, window.confidence),
    "predicted labels": compare_labels,
}


def p_values(reference: Predictions, window: Predictions) -> dict[str, float]:
    """The p-value of every applicable test; empty for a window of fewer than `MIN_ROWS` rows."""
    names = [] if window.n_rows < MIN_ROWS else ["predicted labels"] if is_out_of_fold(reference) else list(TESTS)
    found = {name: TESTS[name](reference, window) for name in names}
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
    n_tests = (planned_windows or 0) * max((len(window["p_values"]) for window in described), default=0)
    found = significant([p for *_, p in tests], rate, n_tests)
    for window in described:
        pairs = zip(tests, found, strict=True)
        drift = [test for (name, test, _), is_drift in pairs if is_drift and name == window["name"]]
        reasons = ["drift"] if drift else []
        if (window["ood"] or 0) > MAX_OOD_SHARE:
            reasons.append(MOSTLY_OOD)
        window |= {"drift": drift, "accuracy": None if reasons else window["estimate"], "accuracy_note": ""}
        if reasons:
            window["accuracy_note"] = (
                f"Accuracy estimate withheld ({' and '.join(reasons)}): a confidence may no longer mean what it meant "
                f"on the reference.{'' if window['labelled'] else ASK_FOR_LABELS}"
            )


def _alarms(described: Sequence[dict[str, Any]], min_accuracy: float | None) -> list[str]:
    drift = {window["name"]: ", ".join(window["drift"]) for window in described if window["drift"]}
    alarms = [(name, f"drift in {tests} compared with the reference.") for name, tests in drift.items()]
    for window in described:
        if (window["ood"] or 0) > MAX_OOD_SHARE and window["n_rows"] >= MIN_OOD_ROWS:
            alarms.append((window["name"], f"{MOSTLY_OOD}."))
    for window in described if min_accuracy is not None else ():
        estimated, labelled = window["accuracy"], window["labelled"]
        is_measured = labelled is not None and labelled["n_rows"] >= MIN_ROWS
        if estimated and not (window["is_rough"] or is_measured) and estimated["high"] < min_accuracy:
            alarms.append((window["name"], f"estimated accuracy {estimated['value']:.3f} is below {min_accuracy:g}."))
        if labelled and labelled["accuracy"]["high"] < min_accuracy:
            value = labelled["accuracy"]["value"]
            alarms.append((window["name"], f"accuracy of labelled rows {value:.3f} is below {min_accuracy:g}."))
    return _merged(alarms)


def _merged(found: Iterable[tuple[str, str]]) -> list[str]:
    """Each message once, after the names of its windows, from pairs of a name and a message.

    >>> _merged([("Monday", "drift."), ("Tuesday", "few rows."), ("Friday", "drift.")])
    ['Monday, Friday: drift.', 'Tuesday: few rows.']
    """
    windows: dict[str, list[str]] = {}
    for name, message in found:
        windows.setdefault(message, []).append(name)
    more = {message: f" and {n} more" for message, of in windows.items() if (n := len(of) - N_NAMES) > 0}
    return [f"{', '.join(of[:N_NAMES])}{more.get(message, '')}: {message}" for message, of in windows.items()]


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(np.mean(values))


def window_table(document: Mapping[str, Any]) -> Table:
    """One row per window."""
    columns: dict[Any, list[Any]] = {}
    extra: dict[Any, list[str]] = {}
    for heading, key in COLUMNS.items():
        values = [_cell(window, key) for window in document["windows"]]
        if any(value is not None for value in values):
            columns[heading] = [value["value"] if isinstance(value, dict) else value for value in values]
            ends = (value if isinstance(value, dict) else None for value in values)
            extra[heading] = ["[{low:.3f}, {high:.3f}]".format(**end) if end else "" for end in ends]
    frame = pd.DataFrame(list(zip(*columns.values(), strict=True)), dtype=object)
    frame.columns = pd.Index(list(columns), tupleize_cols=False)
    title = f"{document['model']}: {', '.join(document['log'])}"
    notes = (*_notes(document), *_withheld(document["windows"]))
    return Table(frame, title, notes, digits={"Energy": 2}, extra=pd.DataFrame(extra))


def _cell(window: Mapping[str, Any], key: str) -> Any:
    """A value of a window: a text, a number, or an interval."""
    if key == "drift":
        return ", ".join(window["drift"]) or ("none" if window["p_values"] else "not tested")
    if key == "accuracy" and not window["accuracy"]:
        return "withheld"
    if key == "accuracy" and window["is_rough"]:
        return f"({window['accuracy']['value']:.3f})"
    return _value(window, key)


def _value(window: Mapping[str, Any], key: str) -> Any:
    if key in ("accuracy", "rough_accuracy"):
        return window["accuracy"] if (key == "accuracy") != window["is_rough"] else None
    known = window["labelled"] or {}
    return known.get(key.removeprefix("labelled_")) if key.startswith("labelled_") else window[key]


def _notes(document: Mapping[str, Any]) -> tuple[str, ...]:
    """About the reference and the tests."""
    reference, n_windows, n_untested = document["reference"], len(document["windows"]), _count_untested(document)
    energy = "" if reference["energy"] is None else f", energy {reference['energy']:.2f}"
    notes = []
    if document["n_tests"]:
        bound = f"{'about' if reference['is_out_of_fold'] else 'at most'} {document['false_alarm_rate']:g} (Holm)"
        tests = plural(document["n_tests"], "test")
        notes.append(f"Drift: {tests}; if nothing has changed, the probability of any drift alarm is {bound}.")
    if reference["is_out_of_fold"]:
        notes.append(
            "Only predicted labels are compared with out-of-fold predictions, which are of the models of the folds: "
            "these have other confidences and energies. So estimated accuracies are rough (in parentheses) and raise "
            f"no alarm. For all tests and better estimates, predict at least {MIN_ROWS} labelled texts that the model "
            "was not trained on and pass the result: --reference FILE"
        )
    if document["is_ood_by_energy"]:
        notes.append(
            "OOD: the share of texts with an energy above 95% of the reference's. This detects few kinds of OOD texts. "
            "Fit a better test: ebmcal abstain MODEL --data FILE --ood 0.05"
        )
    if n_untested:
        which = "any window" if n_untested == n_windows else f"{n_untested} of {n_windows} windows"
        notes.append(
            f"Drift was not tested in {which}: too few rows to compare (at least {MIN_ROWS} are needed). "
            "Estimates in parentheses are rough. Use longer windows (--every, --rows)."
        )
    return (
        f"Reference ({reference['name']}): {plural(reference['n_rows'], 'row')}, accuracy {reference['accuracy']:.3f}, "
        f"confidence {reference['confidence']:.3f}{energy}.",
        *notes,
    )


def _count_untested(document: Mapping[str, Any]) -> int:
    return sum(not window["p_values"] for window in document["windows"])


def _withheld(windows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why estimates are withheld, once for all windows with the same reason."""
    return _merged((window["name"], window["accuracy_note"]) for window in windows if window["accuracy_note"])


def make_page(document: Mapping[str, Any]) -> Page:
    """The page: alarms, pictures over time, and the table."""
    alarms, windows, n_untested = document["alarms"], document["windows"], _count_untested(document)
    lead = f"{plural(len(windows), 'window')}, {plural(len(alarms), 'alarm') if alarms else 'no alarm'}"
    if n_drifted := sum(bool(window["drift"]) for window in windows):
        lead += f"; drift in {n_drifted} of the windows"
    lead += f"; drift was not tested in {n_untested} of the windows." if n_untested else "."
    pictures = [picture for key in PICTURES if (picture := _picture(document, key)) is not None]
    table = window_table(document)
    table = replace(table, notes=_notes(document)) if alarms else table  # the others are among the alarms
    sections = [Section("By window", [Block("pictures", pictures)]), Section("Windows", [table])]
    if alarms:
        shown = Block("bullets", (*alarms, *_withheld(windows)), style="warning")
        sections.insert(0, Section("Alarms", [shown]))
    return Page(f"Monitoring: {document['model']}", lead, sections)


def _picture(document: Mapping[str, Any], key: str) -> Picture | None:
    title, caption, lines = PICTURES[key]
    windows = document["windows"]
    named = {name: [_value(window, line) for window in windows] for name, line in lines.items()}
    series = [_line(name, values) for name, values in named.items() if any(v is not None for v in values)]
    panel = partial(_draw, series, document["reference"].get(key), [w["name"] for w in windows], key)
    if not series and key != "accuracy":
        return None
    panel = panel if series else partial(show_message, message="Every estimate is withheld.")
    return draw(f"monitoring-{key}", title, caption, panel, below=0.25, left=1.0)  # the first name reaches to the left


def _line(name: str, values: Sequence[Any]) -> Series:
    """A line through numbers, or through values with intervals."""
    if not any(isinstance(value, Mapping) for value in values):
        return Series(name, np.arange(len(values)), np.array(values, dtype=float))
    missing = {"value": None, "low": None, "high": None}
    ends = (np.array([(v or missing)[end] for v in values], dtype=float) for end in ("value", "low", "high"))
    return Series(name, np.arange(len(values)), *ends)


def _draw(series: Sequence[Series], level: float | None, names: Sequence[str], key: str, ax: "Axes") -> "Axes":
    line_plot(series, ax, y="share of texts" if key == "shares" else key)
    if level is not None:
        ax.axhline(level, color=MUTED, linestyle="--", linewidth=1)
    low, high = ax.get_ylim()
    if key == "shares":
        ax.set_ylim(0, max(high, 0.2))
    elif key != "energy":
        ax.set_ylim(min(low, 0.5), 1.02)  # a narrower range would make noise look like a change
    for part in (part for bars in ax.containers if bars.get_label() == ROUGH for part in bars.get_children()):
        part.set(alpha=0.4)
    add_legend(ax)  # again, as grey as the bars
    if len(series) == 1 and series[0].name not in ("OOD", ROUGH) and (legend := ax.get_legend()):
        legend.remove()  # the title says what it is
    ax.set_xlim(-0.4, len(names) - 0.6)
    shown = range(0, len(names), max(1, -(-len(names) // N_TICKS)))
    ax.set_xticks(list(shown), [safe_label(names[i], 18) for i in shown], rotation=30, ha="right")
    return ax
