"""A stress test as tables and as one HTML page: curves against strength, tests with their failures, texts shown."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ebmcal.plots.strength import draw_strength, prepare_strength
from ebmcal.report.html import render
from ebmcal.report.pictures import Picture, draw
from ebmcal.storage.atomic import write_text
from ebmcal.tables.table import Column, Entry, Table, TableRow

Document = Mapping[str, Any]

#: What is drawn against strength, picture by picture: heading, how to read it, key of a condition → label of its axis.
PICTURES = (
    (
        "accuracy and calibration",
        "Each point: the same texts, changed at this strength; bars are 95% intervals over the texts. A model that "
        "knows what it does not know loses accuracy and keeps its calibration.",
        {"accuracy": "accuracy", "ece_top_label": "ECE top-label"},
    ),
    (
        "energy and unusual texts",
        "Mean energy above that of the unchanged texts, and the share of texts called unusual: both should rise.",
        {"energy": "energy − energy at 0", "unusual": "share unusual"},
    ),
)


def condition_table(document: Document) -> Table:
    """Changes × strengths × models: accuracy, calibration, energy, share unusual."""
    columns = (
        Column("change", "Texts"), Column("strength", "Strength", digits=2), Column("model", "Model"),
        Column("accuracy", "Accuracy"), Column("ece_top_label", "ECE top-label (20 bins)"), Column("nll", "NLL"),
        Column("confidence", "Confidence"), Column("energy", "Energy", digits=2), Column("unusual", "Unusual"),
        Column("changed_label", "Label changed"),
    )  # fmt: skip
    rows = sorted(document["conditions"], key=lambda c: (_places(document).index(c["change"]), c["strength"]))
    entries = [
        TableRow(
            (
                Entry(c["title"]), Entry(c["strength"]), Entry(c["model"]),
                *(Entry(m["value"], low=m["low"], high=m["high"]) for m in c["metrics"].values()),
                *(Entry(c[key]) for key in ("confidence", "energy", "unusual", "changed_label")),
            ),
            section=c["change"],
        )
        for c in rows
    ]  # fmt: skip
    states = zip(document["models"], document["calibrated"], strict=True)
    notes = (
        "; ".join(f"{model}: {state}" for model, state in states) + ".",
        f"{document['n_rows']:,} texts of {document['texts']}, seed {document['seed']}. In brackets: 95% "
        "intervals over the texts.",
        f"Unusual: an energy that at most {document['false_alarms']:.0%} of usual texts have "
        f"({', '.join(dict.fromkeys(document['usual_texts']))}).",
    )
    return Table("Changed texts", columns, tuple(entries), notes)


def test_table(document: Document) -> Table:
    """Tests × strengths × models: the share that failed."""
    columns = (
        Column("test", "Test"), Column("kind", "Kind"), Column("strength", "Strength"), Column("model", "Model"),
        Column("n_cases", "Cases"), Column("share", "Failed"),
    )  # fmt: skip
    order = list(dict.fromkeys((t["suite"], t["test"], t["strength"]) for t in document["tests"]))
    rows = sorted(document["tests"], key=lambda t: order.index((t["suite"], t["test"], t["strength"])))
    entries = tuple(
        TableRow(
            (
                Entry(f"{t['suite']}: {t['test']}"), Entry(t["kind"]), Entry(t["strength"] or None), Entry(t["model"]),
                Entry(t["n_cases"]), Entry(t["share"], low=t["low"], high=t["high"]),
            ),
            section=t["test"],
        )
        for t in rows
    )  # fmt: skip
    notes = ["Failed: the share of cases with a wrong or changed label, or a probability that moved the wrong way."]
    notes += [f"Left out: {'; '.join(document['skipped'])}."] if document["skipped"] else []
    return Table("Tests", columns, entries, tuple(notes))


test_table.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for one of its own


def write_page(path: Path, document: Document) -> Path:
    """Write the page; it needs no other file."""
    names = [name for name in _places(document) if name]
    page = {
        "title": f"Stress test: {' beside '.join(document['models'])}",
        "document": document,
        "conditions": condition_table(document),
        "tests": test_table(document),
        "sections": [_section(document, name, f"s{i}") for i, name in enumerate(names)],
        "failures": [test for test in document["tests"] if test["failures"]],
    }
    write_text(path, render(page, "stress.html.j2"))
    return path


def _places(document: Document) -> list[str]:
    return list(dict.fromkeys(c["change"] for c in document["conditions"]))


def _section(document: Document, change: str, key: str) -> dict[str, Any]:
    first = next(c for c in document["conditions"] if c["change"] == change)
    made = [_picture(document["conditions"], first, i, f"{key}-{i}") for i in range(len(PICTURES))]
    return {
        "title": first["title"],
        "pictures": [picture for picture in made if picture],
        "examples": document["examples"].get(change, []),
    }


def _picture(conditions: Sequence[Document], first: Document, which: int, key: str) -> Picture | None:
    title, reading, curves = PICTURES[which]
    shown = {name: prepare_strength(conditions, first["change"], name) for name in curves}
    panels = [partial(draw_strength, data, x=first["unit"], y=curves[name]) for name, data in shown.items() if data]
    return draw(key, f"{first['title']}: {title}", reading, *panels) if panels else None
