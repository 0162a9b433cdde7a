"""`ebmcal benchmark`: tasks × methods × seeds, and the paper's tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from ebmcal.benchmark import Benchmark, Outcome


def benchmark(
    config: Annotated[Path, typer.Argument(help="A YAML file: output, tasks, and any setting of `ebmcal run`.")],
    output: Annotated[Path | None, typer.Option(help="The folder of the runs, in place of the file's.")] = None,
    only: Annotated[str | None, typer.Option(help="Run these tasks only: names with commas.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, show the cells, do nothing.")] = False,
) -> None:
    """Run every task with every method and seed, and set the results beside the published ones.

    The same command again goes on where it stopped. A cell that fails is shown as failed and does not stop the rest;
    the exit code is then 1.
    """
    from rich.console import Console as RichConsole

    from ebmcal.benchmark import load_benchmark, run_benchmark
    from ebmcal.cli.notices import as_notices
    from ebmcal.progress import Console

    chosen = [name.strip() for name in (only or "").split(",") if name.strip()]
    plan, console = load_benchmark(config, output, chosen), RichConsole()
    if dry_run:
        _show_cells(plan, console)
        return
    with as_notices():
        outcomes = run_benchmark(plan, Console)
    _show_results(outcomes, plan.output, console)
    if any(outcome.has_failed for outcome in outcomes if outcome.task.is_chosen):
        raise typer.Exit(1)


def _show_cells(plan: "Benchmark", console: "RichConsole") -> None:
    from rich.table import Table

    from ebmcal.benchmark import cell_state

    table = Table("Task", "Method", "Seed", "Steps", "State")
    states = [(task, cell, cell_state(task, cell)) for task in plan.chosen for cell in task.cells]
    for task, cell, state in states:
        table.add_row(task.name, cell.method, str(cell.seed), f"{task.config.steps:,}", state)
    console.print(table)
    n_done = sum(state == "done" for _, _, state in states)
    console.print(f"{n_done} of {len(states)} cells are done. Nothing was started.", highlight=False)


def _show_results(outcomes: "list[Outcome]", output: Path, console: "RichConsole") -> None:
    from ebmcal.benchmark.folding import fold
    from ebmcal.benchmark.paper import paper_tables
    from ebmcal.benchmark.results import failure_table, headline
    from ebmcal.tables import to_rich

    for table in paper_tables(outcomes):
        for part in fold(table, console.width):
            console.print(to_rich(part))
    failures = failure_table(outcomes)
    if failures.rows:
        console.print(to_rich(failures))
    console.print(f"{headline(outcomes)}. Open {output / 'report.html'} in a browser.", highlight=False, soft_wrap=True)
