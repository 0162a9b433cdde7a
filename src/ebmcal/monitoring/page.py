"""The result of monitoring as a table and as an HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ebmcal.errors import plural
from ebmcal.reports.page import Block, Page, Picture, Section, Table, write_page
from ebmcal.reports.plots import MUTED, Series, draw, line_plot, safe_label
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]

#: Columns of the rows with known labels: a group, which a narrow terminal shows in a second table.
N_LABELLED, ACCURACY, ECE = (("Labelled rows", name) for name in ("Number", "Accuracy", "ECE"))

N_TICKS = 8  # names of windows along an axis, at most

#: Pictures: key → title and caption. The dashed line is the reference.
PICTURES = {
    "accuracy": (
        "Accuracy",
        "Estimated from calibrated confidences, with 95% intervals, and measured where labels are known. The dashed "
        "line is the accuracy on the reference. Windows with drift have no estimate.",
    ),
    "energy": ("Energy", "Mean energy. Higher than the reference (dashed): less like the training data."),
    "confidence": ("Confidence", "Mean confidence; the dashed line is the reference."),
    "shares": ("OOD and abstained texts", "Shares of texts that are out-of-distribution or abstained on."),
}


def window_table(document: Document) -> Table:
    """One row per window."""
    windows, reference = document["windows"], document["reference"]
    labelled = [window["labelled"] or {} for window in windows]
    values: dict[Any, list[Any]] = {
        "Estimated accuracy": [window["accuracy"] for window in windows],
        ACCURACY: [known.get("accuracy") for known in labelled],
        ECE: [known.get("ece_top_label") for known in labelled],
    }
    columns: dict[Any, list[Any]] = {
        "Window": [window["name"] for window in windows],
        "Rows": [window["n_rows"] for window in windows],
        "Estimated accuracy": [value["value"] if value else "withheld" for value in values["Estimated accuracy"]],
        **{key.capitalize(): [window[key] for window in windows] for key in ("confidence", "energy")},
        "OOD": [window["ood"] for window in windows],
        "Abstained": [window["abstained"] for window in windows],
        "Drift": [", ".join(w["drift"]) or ("none" if w["p_values"] else "too few rows") for w in windows],
        N_LABELLED: [known.get("n_rows") for known in labelled],
        **{key: [value["value"] if value else None for value in values[key]] for key in (ACCURACY, ECE)},
    }
    shown = {name: column for name, column in columns.items() if any(value is not None for value in column)}
    frame = pd.DataFrame(list(zip(*shown.values(), strict=True)), dtype=object)
    frame.columns = pd.Index(list(shown), tupleize_cols=False)
    extra = pd.DataFrame({
        name: [f"[{v['low']:.3f}, {v['high']:.3f}]" if v else "" for v in column] for name, column in values.items()
    })  # fmt: skip
    energy = "" if reference["energy"] is None else f", energy {reference['energy']:.2f}"
    notes = (
        f"Reference ({reference['name']}): {plural(reference['n_rows'], 'row')}, accuracy {reference['accuracy']:.3f}, "
        f"confidence {reference['confidence']:.3f}{energy}.",
        f"Drift: {plural(document['n_tests'], 'test')}; if nothing has changed, the probability of any alarm is at "
        f"most {document['false_alarm_rate']:g} (Holm)."
        if document["n_tests"]
        else "Drift was not tested: every window has too few rows. Use longer windows (--every, --rows).",
        *_withheld(windows),
    )
    title = f"{document['model']}: {', '.join(document['log'])}"
    return Table(frame, title, notes, digits={"Energy": 2}, extra=extra)


def _withheld(windows: Sequence[Document]) -> list[str]:
    """Why estimates are withheld, once for all windows with the same reason."""
    notes = dict.fromkeys(window["accuracy_note"] for window in windows if window["accuracy_note"])
    return [f"{', '.join(w['name'] for w in windows if w['accuracy_note'] == note)}: {note}" for note in notes]


def write_monitoring_page(path: PathLike, document: Document) -> Path:
    """Write the page; it needs no other file."""
    alarms, windows = document["alarms"], document["windows"]
    lead = f"{plural(len(windows), 'window')}, {plural(len(alarms), 'alarm') if alarms else 'no alarm'}."
    pictures = [picture for key in PICTURES if (picture := _picture(document, key)) is not None]
    table = window_table(document)
    table = replace(table, notes=table.notes[:2]) if alarms else table  # the others are among the alarms
    sections = [Section("Over time", [Block("pictures", pictures)]), Section("Windows", [table])]
    if alarms:
        sections.insert(0, Section("Alarms", [Block("bullets", (*alarms, *_withheld(windows)), style="warning")]))
    return write_page(path, Page(f"Monitoring: {document['model']}", lead, sections))


def _picture(document: Document, key: str) -> Picture | None:
    series = _series(document["windows"], key)
    title, caption = PICTURES[key]
    panel = partial(_draw, series, document["reference"].get(key), [w["name"] for w in document["windows"]], key)
    return draw(f"monitoring-{key}", title, caption, panel, below=0.25) if series else None


def _series(windows: Sequence[Document], key: str) -> list[Series]:
    if key == "accuracy":
        labelled = [(window["labelled"] or {}).get("accuracy") for window in windows]
        named = {"estimated": [window["accuracy"] for window in windows], "labelled rows": labelled}
    elif key == "shares":
        named = {"OOD": [w["ood"] for w in windows], "abstained": [w["abstained"] for w in windows]}
    else:
        named = {key: [window[key] for window in windows]}
    return [_line(name, values) for name, values in named.items() if any(v is not None for v in values)]


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
    if key == "shares":
        ax.set_ylim(bottom=0)
    elif len(series) == 1 and (legend := ax.get_legend()):
        legend.remove()  # the title says what it is
    ax.set_xlim(-0.4, len(names) - 0.6)
    shown = range(0, len(names), max(1, -(-len(names) // N_TICKS)))
    ax.set_xticks(list(shown), [safe_label(names[i], 18) for i in shown], rotation=30, ha="right")
    return ax
