"""How well each model tells other texts from test texts: the "detection" part of `metrics.json`."""

from collections.abc import Mapping
from typing import Any

from ebmcal.tables.results import Document
from ebmcal.tables.table import Column, Entry, Row, Table

FIGURES = {
    "auroc": Column("auroc", "AUROC", better=1),
    "aupr": Column("aupr", "AUPR", better=1),
    "fpr_at_95_recall": Column("fpr_at_95_recall", "FPR at 95% recall", better=-1),
}
NOTE = (
    "Test texts against noise or out-of-domain texts, ranked by energy, by the largest probability or by entropy. "
    "AUROC 0.5 is guessing; FPR is the share of the other texts let in by a threshold that keeps 95% of the test texts."
)


def detection_table(document: Document) -> Table:
    """A row for each model, set of other texts and score.

    >>> found = {"hidden-seed1": {"noise by energy": {"auroc": 0.9}}}
    >>> [e.text() for e in detection_table({"detection": found}).rows[0].entries]
    ['hidden-seed1', 'noise by energy', '0.900']
    """
    models = document.get("detection")
    found = [
        (str(model), str(what), figures)
        for model, parts in (models.items() if isinstance(models, Mapping) else ())
        for what, figures in (parts.items() if isinstance(parts, Mapping) else ())
        if isinstance(figures, Mapping)
    ]
    keys = list(dict.fromkeys(key for _, _, figures in found for key in figures))
    columns = (
        Column("model", "Model"),
        Column("what", "Texts and score"),
        *(FIGURES.get(k, Column(k, k)) for k in keys),
    )
    rows = tuple(Row((Entry(m), Entry(w), *(_entry(f.get(k)) for k in keys)), section=m) for m, w, f in found)
    return Table("Telling other texts from test texts", columns, rows, (NOTE,) if rows else ())


def _entry(value: Any) -> Entry:
    return Entry(value if isinstance(value, (int, float, str)) else None)
