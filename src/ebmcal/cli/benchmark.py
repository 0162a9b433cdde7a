"""`ebmcal benchmark`: tasks × methods × seeds, and the paper's tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ebmcal.benchmark import Outcome


def benchmark(
    config: Annotated[Path, typer.Argument(help="YAML file: output, tasks, and any setting of `ebmcal run`.")],
    output: Annotated[Path | None, typer.Option(help="Output directory, instead of the one in the file.")] = None,
    only: Annotated[str | None, typer.Option(help="Tasks to run, separated by commas.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, list the trials, run nothing.")] = False,
) -> None:
    """Run every task with every method and seed, and compare the results with the published ones.

    The same command again continues where it stopped. A trial that fails does not stop the others; the exit code is
    then 1.
    """
    from ebmcal.benchmark import gather, load_benchmark, run_benchmark

    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    plan = load_benchmark(config, output, names)
    if dry_run:
        _list_trials([outcome for outcome in gather(plan) if outcome.task.is_selected])
        return
    outcomes = run_benchmark(plan, progress=True)
    _show_results(outcomes, plan.output)
    if any(outcome.failures for outcome in outcomes if outcome.task.is_selected):
        raise typer.Exit(1)


def _list_trials(outcomes: "list[Outcome]") -> None:
    import pandas as pd

    from ebmcal.reports.tables import Table

    rows = [(o.task.name, t.method, t.seed, o.state(t)) for o in outcomes for t in o.task.trials]
    Table(pd.DataFrame(rows, columns=["Task", "Method", "Seed", "State"])).print()
    n_done = sum(state == "done" for *_, state in rows)
    typer.echo(f"{n_done} of {len(rows)} trials are done. Nothing was started.")


def _show_results(outcomes: "list[Outcome]", output: Path) -> None:
    from ebmcal.benchmark.results import failure_table, headline, paper_tables

    failures = failure_table(outcomes)
    for table in [*paper_tables(outcomes), *([failures] if len(failures) else [])]:
        table.print()
    typer.echo(f"{headline(outcomes)}. Report: {output / 'report.html'}")
