"""The paper's tables over the tasks of a benchmark: performance and class-wise ECE, and top-label ECE by itself.

`ebmcal.tables` makes the layout; here the averages over test sets get their spread over seeds, and a mean over fewer
seeds than asked for is said to be one.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ebmcal.benchmark.results import Outcome
from ebmcal.tables import Row, Table, mark_best, paper_table

Document = Mapping[str, Any]

#: What the paper defines, and what the authors' scripts compute.
ECES = {"ece_classwise": "ECE class-wise", "ece_top_label": "ECE top-label"}


def paper_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Methods × test sets with their average, beside the published numbers; none while no cell is done or failed."""
    documents = [outcome.document for outcome in outcomes if outcome.document["rows"]]
    if not documents:
        return []
    notes = tuple(note for outcome in outcomes for note in _fewer_seeds(outcome))
    main, other = (_with_spread(paper_table(documents, ece=ece), documents, ece) for ece in ECES)
    other = replace(select(other, lambda key: key.endswith("ece_top_label")), title="Test-set calibration error")
    return [
        replace(table, title=f"{table.title}: {title}", notes=(*table.notes, *notes))
        for table, title in zip((main, other), ECES.values(), strict=True)
    ]


def select(table: Table, wanted: Callable[[str], bool]) -> Table:
    """The first column and those whose key is wanted."""
    indices = [i for i, column in enumerate(table.columns) if i == 0 or wanted(column.key)]
    rows = tuple(replace(row, entries=tuple(row.entries[i] for i in indices)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in indices), rows=rows)


def _with_spread(table: Table, documents: Sequence[Document], ece: str) -> Table:
    """Averages over test sets with the standard deviation of the same average over seeds."""
    seeds = sorted({row["seed"] for document in documents for row in document["rows"] if row.get("seed") is not None})
    found: dict[tuple[Any, str], list[float]] = {}
    for seed in seeds:
        single = paper_table([_of_seed(document, seed) for document in documents], ece=ece, published=False)
        for row in single.rows:
            for column, entry in zip(single.columns, row.entries, strict=True):
                if entry.number is not None:
                    found.setdefault((row.entries[0].value, column.key), []).append(entry.number)
    return mark_best(replace(table, rows=tuple(_spread_row(table, row, found) for row in table.rows)))


def _spread_row(table: Table, row: Row, found: Mapping[tuple[Any, str], list[float]]) -> Row:
    entries = []
    for column, entry in zip(table.columns, row.entries, strict=True):
        values = found.get((row.entries[0].value, column.key), [])
        known = column.group == "Average" and len(values) > 1
        entries.append(replace(entry, spread=statistics.stdev(values)) if known else entry)
    return replace(row, entries=tuple(entries))


def _of_seed(document: Document, seed: int) -> Document:
    return {**document, "rows": [row for row in document["rows"] if row.get("seed") == seed]}


def _fewer_seeds(outcome: Outcome) -> list[str]:
    notes = []
    for method in outcome.task.config.methods:
        done, failed = (sum(cell.method == method for cell in cells) for cells in (outcome.done, outcome.failed))
        if done and failed:
            notes.append(f"{outcome.task.name}, {method}: {failed} of {done + failed} seeds failed and are left out.")
    return notes
