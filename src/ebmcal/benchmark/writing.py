"""The outcomes of a benchmark as the paper's tables, and as files: `benchmark.json`, `.md`, `.tex` and `report.html`.

Performance and class-wise ECE in one table, top-label ECE in another. `ebmcal.tables` makes the layout; here the
averages over test sets get their spread over seeds, and a mean over fewer seeds than asked for is said to be one.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ebmcal.benchmark.across_tasks import across_tasks_table, compare_across_tasks
from ebmcal.benchmark.outcomes import Outcome, failure_table, headline
from ebmcal.report.html import render
from ebmcal.runfolder import Cell
from ebmcal.storage.atomic import write_json, write_text
from ebmcal.tables import Table, TableRow, mark_best, paper_table, select_columns, to_data, to_latex, to_markdown

Document = Mapping[str, Any]

#: What the paper defines, and what the authors' scripts compute.
ECES = {"ece_classwise": "ECE class-wise", "ece_top_label": "ECE top-label"}


def write_results(output: Path, outcomes: Sequence[Outcome]) -> None:
    """Write what is known so far; called after every task, so that an interrupted benchmark has it too."""
    tables, failures = [*paper_tables(outcomes), *_across(outcomes)], failure_table(outcomes)
    write_json(output / "benchmark.json", _document(outcomes, tables))
    shown = [*tables, *([failures] if failures.rows else [])]
    parts = [f"{headline(outcomes)}.", *map(to_markdown, shown)]
    write_text(output / "benchmark.md", "\n\n".join(parts) + "\n")
    write_text(output / "benchmark.tex", "\n\n".join(map(to_latex, tables)) + "\n")
    page = {"title": output.resolve().name, "headline": headline(outcomes), "tables": tables, "failures": failures}
    runs = [{"name": outcome.task.name, "link": _link(outcome)} for outcome in outcomes]
    write_text(output / "report.html", render(page | {"runs": runs}, "benchmark.html.j2"))


def paper_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Methods × test sets with their average, beside the published numbers; none while no cell is done or failed.

    For example:

        print(*map(to_markdown, paper_tables(outcomes)))
    """
    documents = [outcome.document for outcome in outcomes if outcome.document["rows"]]
    if not documents:
        return []
    notes = tuple(note for outcome in outcomes for note in _fewer_seeds(outcome))
    main, other = (_with_spread(paper_table(documents, ece=ece), documents, ece) for ece in ECES)
    other = replace(
        select_columns(other, lambda key: key.endswith("ece_top_label")), title="Test-set calibration error"
    )
    return [
        replace(table, title=f"{table.title}: {title}", notes=(*table.notes, *notes))
        for table, title in zip((main, other), ECES.values(), strict=True)
    ]


def _across(outcomes: Sequence[Outcome]) -> list[Table]:
    table = across_tasks_table([outcome.document for outcome in outcomes])
    return [table] if table.rows else []


def _document(outcomes: Sequence[Outcome], tables: Sequence[Table]) -> dict[str, Any]:
    """What `benchmark.json` holds: every cell with its state and training, and the tables as data."""
    return {
        "format": 1,
        "n_cells": sum(len(outcome.task.cells) for outcome in outcomes),
        "n_done": sum(len(outcome.done) for outcome in outcomes),
        "n_failed": sum(len(outcome.failed) for outcome in outcomes),
        "tasks": {outcome.task.name: _task(outcome) for outcome in outcomes},
        "across_tasks": compare_across_tasks([outcome.document for outcome in outcomes]),
        "tables": [to_data(table) for table in tables],
    }


def _task(outcome: Outcome) -> dict[str, Any]:
    known = {key: outcome.document.get(key) for key in ("task_metric", "encoder", "noise_source", "fingerprints")}
    return {
        "folder": outcome.task.folder.root.name,
        "error": outcome.error,
        **known,
        "cells": {cell.name: _cell(outcome, cell) for cell in outcome.task.cells},
    }


def _cell(outcome: Outcome, cell: Cell) -> dict[str, Any]:
    if cell in outcome.failed:
        return {"state": "failed", "reason": outcome.failed[cell]}
    if cell not in outcome.done:
        return {"state": "not run"}
    return {"state": "done", "training": (outcome.document.get("training") or {}).get(cell.name)}


def _link(outcome: Outcome) -> str | None:
    folder = outcome.task.folder
    return f"{quote(folder.root.name)}/report.html" if folder.report.exists() else None


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


def _spread_row(table: Table, row: TableRow, found: Mapping[tuple[Any, str], list[float]]) -> TableRow:
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
