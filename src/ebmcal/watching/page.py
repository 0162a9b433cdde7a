"""A watched log as a table and as one HTML page."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ebmcal.plots.windows import draw_windows, prepare_windows
from ebmcal.report.html import render
from ebmcal.report.pictures import Picture, draw
from ebmcal.storage.atomic import write_text
from ebmcal.tables.table import Column, Entry, Table, TableRow

Document = Mapping[str, Any]

READING = {
    "accuracy": "What accuracy to expect from the calibrated confidences, with 95% intervals, and the accuracy of the "
    "rows whose labels have come. The dashed line is the accuracy on the calibration texts.",
    "energy": "Mean energy; the dashed line is that of the calibration texts. High: unlike the texts the model knows.",
    "confidence": "Mean confidence; the dashed line is that of the calibration texts.",
    "shares": "How many texts are unusual, and how many the model's rule abstains from.",
}


def window_table(document: Document) -> Table:
    """Windows × what was seen of them."""
    has_labels = any(window["labelled"] for window in document["windows"])
    columns = [
        Column("name", "Window"), Column("n_rows", "Rows"), Column("expected", "Expected accuracy"),
        Column("confidence", "Confidence"), Column("energy", "Energy", digits=2), Column("unusual", "Unusual"),
        Column("abstained", "Abstained"), Column("drift", "Drift"),
    ]  # fmt: skip
    if has_labels:
        columns += [Column("n_labelled", "Labelled"), Column("accuracy", "Accuracy"), Column("ece", "ECE top-label")]
    rows = tuple(TableRow(tuple(_entries(window, has_labels))) for window in document["windows"])
    known = document["reference"]
    notes = (
        f"Calibration texts ({known['texts']}): {known['n_rows']:,} rows, accuracy {known['accuracy']:.3f}, confidence "
        f"{known['confidence']:.3f}" + (f", energy {known['energy']:.2f}." if known["energy"] is not None else "."),
        f"Drift: {document['n_tests']} tests; if nothing has changed, any of them alarms with a chance of at most "
        f"{document['false_alarms']:g} (Holm).",
        "Expected accuracy holds while a confidence means what it meant on the calibration texts.",
    )
    return Table(f"{document['model']}: {', '.join(document['log'])}", tuple(columns), rows, notes)


def _entries(window: Document, has_labels: bool) -> list[Entry]:
    entries = [Entry(window["name"]), Entry(window["n_rows"]), _figure(window["expected"]["confidence"])]
    entries += [Entry(window[key]) for key in ("confidence", "energy", "unusual", "abstained")]
    drift = ", ".join(window["drift"]) or ("none" if window["p_values"] else "too few rows")
    labelled = window["labelled"] or {}
    found = [Entry(labelled.get("n_rows")), _figure(labelled.get("accuracy")), _figure(labelled.get("ece_top_label"))]
    return [*entries, Entry(drift), *(found if has_labels else [])]


def _figure(value: Mapping[str, float] | None) -> Entry:
    return Entry(value["value"], low=value["low"], high=value["high"]) if value else Entry(None)


def write_page(path: Path, document: Document) -> Path:
    """Write the page; it needs no other file."""
    page = {
        "title": f"Watch: {document['model']}", "alarms": document["alarms"], "windows": window_table(document),
        "pictures": [_picture(document, name) for name in READING], "n_windows": len(document["windows"]),
    }  # fmt: skip
    write_text(path, render({**page, "pictures": [p for p in page["pictures"] if p]}, "watch.html.j2"))
    return path


def _picture(document: Document, name: str) -> Picture | None:
    data = prepare_windows(document, name)
    title = {"accuracy": "Accuracy to expect", "shares": "Unusual and abstained"}.get(name, name.capitalize())
    panel = partial(draw_windows, data, y=name)
    return draw(f"w-{name}", title, READING[name], panel, under=0.5) if data.lines else None
