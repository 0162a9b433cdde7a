"""The tables of one document: methods × metrics, every seed by itself, out-of-domain detection.

`differences` has the paired tests; `paper` sets several runs side by side in the layout of the paper.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ebmcal.metrics import HEADLINE_METRICS
from ebmcal.tables.document import (
    Document,
    Key,
    figure,
    figure_notes,
    heading,
    interval_notes,
    mean_figure,
    metric_names,
    row_name,
    row_over_seeds,
    rows_by_method,
)
from ebmcal.tables.published import PUBLISHED, PUBLISHED_NOTE, published_set
from ebmcal.tables.table import Column, Entry, Table, TableRow, mark_best

DETECTION_COLUMNS = {
    "auroc": Column("auroc", "AUROC", better=1),
    "aupr": Column("aupr", "AUPR", better=1),
    "fpr_at_95_recall": Column("fpr_at_95_recall", "FPR at 95% recall", better=-1),
}
DETECTION_NOTE = (
    "Test texts against noise or out-of-domain texts, ranked by energy, by the largest probability or by entropy. "
    "AUROC 0.5 is guessing; FPR is the share of the other texts let in by a threshold that keeps 95% of the test texts."
)


def summary_table(
    document: Document, *, test_set: str = "test", metrics: Sequence[str] | None = None, published: bool = True
) -> Table:
    """Methods × metrics, mean ± spread over seeds, the best figure of each column marked.

    Shows the task's metric, both ECEs, NLL and Brier score unless `metrics` names others; tasks of the paper also get
    its `published` figures.

    >>> rows = [{"method": m, "metrics": {"accuracy": a}} for m, a in [("baseline", 0.8), ("hidden", 0.9)]]
    >>> [entry.best for entry in summary_table({"rows": rows}).column("accuracy")]
    [False, True]
    """
    found = rows_by_method(document, test_set)
    theirs = published_set(document.get("task"), test_set) if published else None
    names = list(metrics) if metrics is not None else _main_metrics(document, found)
    n_seeds = {key: sum(row.get("n_members", 1) for row in rows if not row.get("error")) for key, rows in found.items()}
    columns = [Column("method", "Method"), *_headings(document, names), *_published_columns(document, theirs)]
    rows = [
        TableRow(
            (
                Entry(row_name(key)),
                *_figures(rows, names, row_over_seeds(document, key, test_set)),
                *_published(key, theirs),
            )
        )
        for key, rows in found.items()
    ]
    if len(set(n_seeds.values())) > 1:  # a run that is not finished
        columns.append(Column("n_seeds", "Seeds"))
        rows = [TableRow((*row.entries, Entry(n))) for row, n in zip(rows, n_seeds.values(), strict=True)]
    rows = [TableRow(row.entries, section=key[0]) for row, key in zip(rows, found, strict=True)]
    notes = (*_notes(document, found, names, theirs), *figure_notes(found, names))
    return mark_best(Table(_title(document, test_set), tuple(columns), tuple(rows), notes))


def seed_table(document: Document, *, test_set: str = "test", metrics: Sequence[str] | None = None) -> Table:
    """Every trained model by itself: method × seed, every metric, with its interval."""
    found = rows_by_method(document, test_set)
    names = list(metrics) if metrics is not None else metric_names(row for rows in found.values() for row in rows)
    first = (Column("method", "Method"), Column("seed", "Seed"), Column("n_rows", "Rows"), Column("note", "Fitted"))
    rows = [TableRow(_seed_entries(key, row, names), section=key[0]) for key, rows in found.items() for row in rows]
    return Table(
        f"{_title(document, test_set)}: every model, every metric",
        (*first, *_headings(document, names)),
        tuple(rows),
        tuple(interval_notes((row for rows in found.values() for row in rows), names)),
    )


def detection_table(document: Document, of: str = "") -> Table:
    """A row for each model, set of other texts (those whose name begins with `of`) and score.

    >>> found = {"hidden-seed1": {"noise by energy": {"auroc": 0.9}}}
    >>> [e.text() for e in detection_table({"detection": found}).rows[0].entries]
    ['hidden-seed1', 'noise by energy', '0.900']
    """
    models = document.get("detection")
    found = [
        (str(model), str(what), figures)
        for model, parts in (models.items() if isinstance(models, Mapping) else ())
        for what, figures in (parts.items() if isinstance(parts, Mapping) else ())
        if isinstance(figures, Mapping) and str(what).startswith(of)
    ]
    keys = list(dict.fromkeys(key for _, _, figures in found for key in figures))
    columns = (
        Column("model", "Model"),
        Column("what", "Texts and score"),
        *(DETECTION_COLUMNS.get(k, Column(k, k)) for k in keys),
    )
    rows = tuple(
        TableRow((Entry(m), Entry(w), *(_detection_entry(f.get(k)) for k in keys)), section=m) for m, w, f in found
    )
    return Table("Telling other texts from test texts", columns, rows, (DETECTION_NOTE,) if rows else ())


def _headings(document: Document, metrics: Sequence[str]) -> list[Column]:
    return [heading(name, document.get("n_bins")) for name in metrics]


def _seed_entries(key: Key, row: Mapping[str, Any], names: Sequence[str]) -> tuple[Entry, ...]:
    first = (Entry(row_name(key)), Entry(row.get("seed")), Entry(row.get("n_rows")), Entry(row.get("note") or None))
    return (*first, *(figure(row, name) for name in names))


def _main_metrics(document: Document, found: Mapping[Key, list[Mapping[str, Any]]]) -> list[str]:
    available = metric_names(row for rows in found.values() for row in rows)
    wanted = dict.fromkeys([document.get("task_metric") or "accuracy", *HEADLINE_METRICS])
    return [name for name in wanted if name in available]


def _figures(rows: list[Mapping[str, Any]], names: Sequence[str], together: Mapping[str, Any] | None) -> list[Entry]:
    return [mean_figure(rows, name, together) for name in names]


def _published_columns(document: Document, theirs: str | None) -> list[Column]:
    if theirs is None:
        return []
    title = heading(document.get("task_metric") or "accuracy").title
    return [Column("published", f"Published {title}"), Column("published_ece", "Published ECE, see note")]


def _published(key: Key, theirs: str | None) -> list[Entry]:
    """The paper applies post-hoc steps to its baseline only, under the name of the step."""
    if theirs is None:
        return []
    method = key[1] if key[0] == "baseline" and key[1] else row_name(key)
    return [Entry(value) for value in PUBLISHED.get(method, {}).get(theirs, (None, None))]


def _title(document: Document, test_set: str) -> str:
    task = document.get("task") or "Results"
    return task if test_set == "test" else f"{task}, {test_set}"


def _notes(
    document: Document, found: Mapping[Key, list[Mapping[str, Any]]], names: Sequence[str], theirs: str | None
) -> list[str]:
    rows = [row for rows in found.values() for row in rows]
    n_seeds = max((len(rows) for rows in found.values()), default=0)
    notes = interval_notes(rows, names, n_seeds)
    if n_seeds > 1:
        mean = f"Mean over {n_seeds} seeds" if document.get("over_seeds") else "Mean ± sample standard deviation over "
        notes = [f"{mean}.", *notes] if document.get("over_seeds") else [f"{mean}{n_seeds} seeds."]
    return [*notes, PUBLISHED_NOTE] if theirs else notes


def _detection_entry(value: Any) -> Entry:
    return Entry(value if isinstance(value, (int, float, str)) else None)
