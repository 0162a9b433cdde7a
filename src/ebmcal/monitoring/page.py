"""The result of monitoring as a table and as an HTML page."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.reports.table import Table
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ebmcal.reports.figures import Picture
    from ebmcal.reports.plots import Series

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
    import pandas as pd

    windows, reference = document["windows"], document["reference"]
    rows = [
        {
            "Window": window["name"],
            "Rows": window["n_rows"],
            "Estimated accuracy": window["accuracy"]["value"] if window["accuracy"] else "withheld",
            "Confidence": window["confidence"],
            "Energy": window["energy"],
            "OOD": window["ood"],
            "Abstained": window["abstained"],
            "Drift": ", ".join(window["drift"]) or ("none" if window["p_values"] else "too few rows"),
            **_labelled_columns(window),
        }
        for window in windows
    ]
    frame = pd.DataFrame(rows)
    extra = pd.DataFrame({
        "Estimated accuracy": [_interval(window["accuracy"]) for window in windows],
        ACCURACY: [_interval((window["labelled"] or {}).get("accuracy")) for window in windows],
        ECE: [_interval((window["labelled"] or {}).get("ece_top_label")) for window in windows],
    })  # fmt: skip
    empty = [name for name in frame if name not in ("Window", "Drift") and frame[name].isna().all()]
    return Table(
        frame.drop(columns=empty).astype(object), f"{document['model']}: {', '.join(document['log'])}",
        notes=(*_notes(document, reference), *_withheld(windows)), digits={"Energy": 2}, extra=extra,
    )  # fmt: skip


def _labelled_columns(window: Document) -> dict[Any, Any]:
    labelled = window["labelled"] or {}
    values = {ACCURACY: labelled.get("accuracy"), ECE: labelled.get("ece_top_label")}
    return {N_LABELLED: labelled.get("n_rows")} | {k: v["value"] if v else None for k, v in values.items()}


def _interval(value: Mapping[str, float] | None) -> str:
    return f"[{value['low']:.3f}, {value['high']:.3f}]" if value else ""


def _notes(document: Document, reference: Document) -> tuple[str, ...]:
    energy = "" if reference["energy"] is None else f", energy {reference['energy']:.2f}"
    return (
        f"Reference ({reference['name']}): {reference['n_rows']:,} rows, accuracy {reference['accuracy']:.3f}, "
        f"confidence {reference['confidence']:.3f}{energy}.",
        f"Drift: {document['n_tests']} tests; if nothing has changed, the probability of any alarm is at most "
        f"{document['false_alarm_rate']:g} (Holm).",
    )


def _withheld(windows: Sequence[Document]) -> list[str]:
    return [f"{window['name']}: {window['accuracy_note']}" for window in windows if window["accuracy_note"]]


def write_monitoring_page(path: PathLike, document: Document) -> Path:
    """Write the page; it needs no other file."""
    from ebmcal.reports.page import Bullets, Page, Pictures, Section, write_page

    n_alarms, n_windows = len(document["alarms"]), len(document["windows"])
    alarms = "no alarm" if not n_alarms else "1 alarm" if n_alarms == 1 else f"{n_alarms} alarms"
    lead = f"{n_windows} window{'s' * (n_windows != 1)}, {alarms}."
    pictures = [picture for key in PICTURES if (picture := _picture(document, key)) is not None]
    sections = [Section("Over time", [Pictures(tuple(pictures))]), Section("Windows", [window_table(document)])]
    if n_alarms:
        bullets = Bullets((*document["alarms"], *_withheld(document["windows"])), is_warning=True)
        sections.insert(0, Section("Alarms", [bullets]))
    return write_page(path, Page(f"Monitoring: {document['model']}", lead, sections))


def _picture(document: Document, key: str) -> "Picture | None":
    from ebmcal.reports.figures import draw

    series = _series(document["windows"], key)
    title, caption = PICTURES[key]
    panel = partial(_draw, series, document["reference"].get(key), [w["name"] for w in document["windows"]], key)
    return draw(f"monitoring-{key}", title, caption, panel, below=0.5) if series else None


def _series(windows: Sequence[Document], key: str) -> "list[Series]":
    if key == "accuracy":
        labelled = [(window["labelled"] or {}).get("accuracy") for window in windows]
        named = {"estimated": [window["accuracy"] for window in windows], "labelled rows": labelled}
    elif key == "shares":
        named = {"OOD": [w["ood"] for w in windows], "abstained": [w["abstained"] for w in windows]}
    else:
        named = {key: [window[key] for window in windows]}
    return [_line(name, values) for name, values in named.items() if any(v is not None for v in values)]


def _line(name: str, values: Sequence[Any]) -> "Series":
    from ebmcal.reports.plots import Series

    if not any(isinstance(value, Mapping) for value in values):
        return Series(name, np.arange(len(values)), np.array(values, dtype=float))
    missing = {"value": None, "low": None, "high": None}
    ends = (np.array([(v or missing)[end] for v in values], dtype=float) for end in ("value", "low", "high"))
    return Series(name, np.arange(len(values)), *ends)


def _draw(series: "Sequence[Series]", level: float | None, names: Sequence[str], key: str, ax: "Axes") -> "Axes":
    from ebmcal.reports.figures import MUTED, safe_label
    from ebmcal.reports.plots import line_plot

    line_plot(series, ax, y="share of texts" if key == "shares" else key)
    if level is not None:
        ax.axhline(level, color=MUTED, linestyle="--", linewidth=1)
    if key == "shares":
        ax.set_ylim(bottom=0)
    shown = range(0, len(names), max(1, -(-len(names) // N_TICKS)))
    ax.set_xticks(list(shown), [safe_label(names[i], 18) for i in shown], rotation=30, ha="right")
    return ax
