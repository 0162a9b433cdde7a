"""The results of a benchmark as files: `benchmark.json`, `benchmark.md`, `benchmark.tex` and `report.html`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ebmcal.benchmark.paper import paper_tables
from ebmcal.benchmark.results import Outcome, failure_table, headline
from ebmcal.report.rendering import render
from ebmcal.runfolder import Cell
from ebmcal.storage.atomic import write_json, write_text
from ebmcal.tables import Table, to_data, to_latex, to_markdown


def write_results(output: Path, outcomes: Sequence[Outcome]) -> None:
    """Write what is known so far; called after every task, so that an interrupted benchmark has it too."""
    tables, failures = paper_tables(outcomes), failure_table(outcomes)
    write_json(output / "benchmark.json", to_document(outcomes, tables))
    shown = [*tables, *([failures] if failures.rows else [])]
    parts = [f"{headline(outcomes)}.", *map(to_markdown, shown)]
    write_text(output / "benchmark.md", "\n\n".join(parts) + "\n")
    write_text(output / "benchmark.tex", "\n\n".join(map(to_latex, tables)) + "\n")
    page = {"title": output.resolve().name, "headline": headline(outcomes), "tables": tables, "failures": failures}
    runs = [{"name": outcome.task.name, "link": _link(outcome)} for outcome in outcomes]
    write_text(output / "report.html", render(page | {"runs": runs}, "benchmark.html.j2"))


def to_document(outcomes: Sequence[Outcome], tables: Sequence[Table]) -> dict[str, Any]:
    """What `benchmark.json` holds: every cell with its state and training, and the tables as data."""
    return {
        "format": 1,
        "n_cells": sum(len(outcome.task.cells) for outcome in outcomes),
        "n_done": sum(len(outcome.done) for outcome in outcomes),
        "n_failed": sum(len(outcome.failed) for outcome in outcomes),
        "tasks": {outcome.task.name: _task(outcome) for outcome in outcomes},
        "tables": [to_data(table) for table in tables],
    }


def _task(outcome: Outcome) -> dict[str, Any]:
    known = {key: outcome.document.get(key) for key in ("task_metric", "encoder", "noise_lm", "fingerprints")}
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
