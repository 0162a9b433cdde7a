"""The tables of one run: methods × metrics, every seed by itself, and the paired tests against the baseline.

`paper` sets several runs side by side in the layout of the paper.
"""

from collections.abc import Mapping, Sequence

from ebmcal.tables.published import PUBLISHED, PUBLISHED_NOTE, published_set
from ebmcal.tables.results import (
    MAIN_METRICS,
    Document,
    Key,
    figure,
    figure_notes,
    heading,
    mean_figure,
    method_rank,
    metric_names,
    results,
    row_name,
)
from ebmcal.tables.table import Column, Entry, Row, Table, mark_best


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
    found = results(document, test_set)
    theirs = published_set(document.get("task"), test_set) if published else None
    names = list(metrics) if metrics is not None else _main_metrics(document, found)
    n_seeds = {key: len([row for row in rows if not row.get("error")]) for key, rows in found.items()}
    columns = [Column("method", "Method"), *map(heading, names), *_published_columns(document, theirs)]
    rows = [
        Row((Entry(row_name(key)), *_figures(rows, names), *_published(key, theirs))) for key, rows in found.items()
    ]
    if len(set(n_seeds.values())) > 1:  # a run that is not finished
        columns.append(Column("n_seeds", "Seeds"))
        rows = [Row((*row.entries, Entry(n))) for row, n in zip(rows, n_seeds.values(), strict=True)]
    rows = [Row(row.entries, section=key[0]) for row, key in zip(rows, found, strict=True)]
    notes = (*_notes(max(n_seeds.values(), default=0), theirs), *figure_notes(found, names))
    return mark_best(Table(_title(document, test_set), tuple(columns), tuple(rows), notes))


def seed_table(document: Document, *, test_set: str = "test", metrics: Sequence[str] | None = None) -> Table:
    """Every trained model by itself: method × seed, every metric, with its bootstrap interval."""
    found = results(document, test_set)
    names = list(metrics) if metrics is not None else metric_names(row for rows in found.values() for row in rows)
    first = (Column("method", "Method"), Column("seed", "Seed"), Column("n_rows", "Rows"), Column("note", "Fitted"))
    rows = [Row(_seed_entries(key, row, names), section=key[0]) for key, rows in found.items() for row in rows]
    return Table(
        f"{_title(document, test_set)}: every model, every metric",
        (*first, *map(heading, names)),
        tuple(rows),
        _notes(1),
    )


def paired_table(document: Document) -> Table:
    """Differences between methods on the same rows, with intervals and p-values, as the document has them."""
    columns = (
        Column("method", "Method"),
        Column("against", "Against"),
        Column("seed", "Seed"),
        Column("metric", "Metric"),
        Column("difference", "Difference"),
        Column("p_value", "p", digits=None),
    )
    tests = sorted(document.get("paired") or [], key=lambda test: method_rank(str(test.get("method"))))
    rows = tuple(Row(_paired_entries(test), section=str(test.get("method"))) for test in tests)
    note = "Method minus the one it is set against, on the same rows; interval and p-value from paired resampling."
    return Table("Paired tests", columns, rows, (note,) if rows else ())


def _seed_entries(key: Key, row: Mapping, names: Sequence[str]) -> tuple[Entry, ...]:
    first = (Entry(row_name(key)), Entry(row.get("seed")), Entry(row.get("n_rows")), Entry(row.get("note") or None))
    return (*first, *(figure(row, name) for name in names))


def _paired_entries(test: Mapping) -> tuple[Entry, ...]:
    metric = heading(str(test.get("metric", ""))).title
    name = row_name((str(test.get("method")), test.get("posthoc")))
    difference = Entry(test.get("difference"), low=test.get("low"), high=test.get("high"))
    return (
        Entry(name),
        Entry(test.get("against")),
        Entry(test.get("seed")),
        Entry(metric),
        difference,
        Entry(test.get("p_value")),
    )


def _main_metrics(document: Document, found: Mapping[Key, list[Mapping]]) -> list[str]:
    available = metric_names(row for rows in found.values() for row in rows)
    wanted = dict.fromkeys([document.get("task_metric") or "accuracy", *MAIN_METRICS])
    return [name for name in wanted if name in available]


def _figures(rows: list[Mapping], names: Sequence[str]) -> list[Entry]:
    return [mean_figure(rows, name) for name in names]


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


def _notes(n_seeds: int, theirs: str | None = None) -> tuple[str, ...]:
    spread = "In brackets: 95% bootstrap interval."
    if n_seeds > 1:
        spread = f"Mean ± sample standard deviation over {n_seeds} seeds."
    return (spread, PUBLISHED_NOTE) if theirs else (spread,)
