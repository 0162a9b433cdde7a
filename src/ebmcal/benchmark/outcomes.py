"""The run folders of a benchmark → what came out of each task: documents, failures, counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebmcal.benchmark.spec import Benchmark, BenchmarkTask
from ebmcal.errors import EbmcalError
from ebmcal.pipeline.failures import failed_row
from ebmcal.report.material import read_document
from ebmcal.runfolder import Cell
from ebmcal.tables import Column, Entry, Table, TableRow
from ebmcal.tasks import find_task


@dataclass(frozen=True)
class Outcome:
    """What is known of a task: its `metrics.json` with the rows of the wanted cells, and what stopped it as a whole."""

    task: BenchmarkTask
    document: Mapping[str, Any]
    error: str | None = None

    @property
    def failed(self) -> dict[Cell, str]:
        """Cell → why, of those that failed when they were last tried."""
        return {_cell(row): row["error"] for row in self.document["rows"] if row.get("error")}

    @property
    def done(self) -> list[Cell]:
        there = {_cell(row) for row in self.document["rows"] if not row.get("error")}
        return [cell for cell in self.task.cells if cell in there]

    @property
    def has_failed(self) -> bool:
        return bool(self.error or self.failed)


def gather(benchmark: Benchmark, errors: Mapping[str, str] | None = None) -> list[Outcome]:
    """The outcome of every task, in the order of the file; `errors`: task → what stopped it."""
    return [outcome_of(task, (errors or {}).get(task.name)) for task in benchmark.tasks]


def outcome_of(task: BenchmarkTask, error: str | None = None) -> Outcome:
    """Read what a run folder has of the wanted cells. With `error`, the cells without figures have failed by it."""
    document, error = _read(task, error)
    rows = [row for row in document.get("rows") or [] if _cell(row) in task.cells]
    if error:
        absent = [cell for cell in task.cells if cell not in map(_cell, rows)]
        rows += [failed_row(cell, name, error) for cell in absent for name in _test_sets(task)]
    metric = find_task(task.config.task).metric if task.config.task else "accuracy"
    return Outcome(task, {"task_metric": metric, **document, "task": task.name, "rows": rows}, error)


def failure_table(outcomes: Sequence[Outcome]) -> Table:
    """The cells that failed and why."""
    columns = tuple(Column(name.lower(), name) for name in ("Task", "Method", "Seed", "Reason"))
    rows = []
    for outcome in outcomes:
        name = outcome.task.name
        rows += [
            TableRow((Entry(name), Entry(cell.method), Entry(cell.seed), Entry(why)))
            for cell, why in outcome.failed.items()
        ]
        if outcome.error and outcome.error not in outcome.failed.values():
            rows.append(TableRow((Entry(name), Entry("all"), Entry(), Entry(outcome.error))))
    return Table("Failed", columns, tuple(rows))


def headline(outcomes: Sequence[Outcome]) -> str:
    """How many cells are done, failed and open.

    >>> headline([])
    '0 of 0 cells done'
    """
    n_cells = sum(len(outcome.task.cells) for outcome in outcomes)
    n_done, n_failed = (sum(len(getattr(o, what)) for o in outcomes) for what in ("done", "failed"))
    parts = [f"{n_done} of {n_cells} cells done"]
    parts += [f"{n_failed} failed"] if n_failed else []
    parts += [f"{n_cells - n_done - n_failed} not run"] if n_cells - n_done - n_failed else []
    return ", ".join(parts)


def _read(task: BenchmarkTask, error: str | None) -> tuple[Mapping[str, Any], str | None]:
    """The document of a run and what is wrong with the task; a damaged document is as good as none."""
    try:
        return read_document(task.folder), error
    except EbmcalError as damage:
        return {}, error or str(damage)


def _test_sets(task: BenchmarkTask) -> list[str]:
    return [split for split in task.fingerprints or {"test": ""} if split.startswith("test")]


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["method"], row["seed"])
