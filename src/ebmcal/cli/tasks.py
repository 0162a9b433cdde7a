"""`ebmcal tasks`: what is built in, as a table, one task in full, or JSON for scripts."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ebmcal.tasks import TASKS, Task, find_task


def tasks(
    name: Annotated[str | None, typer.Argument(help="One task in full, for example rte or SST-2.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the built-in tasks: columns, labels, metric and the published settings."""
    chosen = [find_task(name)] if name else list(TASKS.values())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(task) for task in chosen], indent=2, ensure_ascii=False))
        return
    console = Console()
    console.print(_one(chosen[0]) if name else _overview(chosen))
    if not name:
        console.print("STS-B is left out: it is a regression task and has no classes.", style="dim")


def _overview(chosen: list[Task]) -> Table:
    table = Table(title="Built-in tasks", title_justify="left")
    for heading in ("task", "texts", "labels", "metric", "published: batch, lr, steps"):
        table.add_column(heading, overflow="fold")
    for task in chosen:
        texts = f"{task.text_column} + {task.pair_column}" if task.is_pair else task.text_column
        table.add_row(task.name, escape(texts), ", ".join(task.label_names), task.metric, _settings(task))
    return table


def _settings(task: Task) -> str:
    p = task.published
    return f"{p.batch_size}, {p.learning_rate:g}, {p.steps:,}" if p else "-"


def _one(task: Task) -> Table:
    table = Table(title=escape(task.title), title_justify="left", show_header=False)
    for key, value in _facts(task).items():
        table.add_row(key, escape(str(value)))
    return table


def _facts(task: Task) -> dict[str, str]:
    facts = {
        "task": task.name,
        "texts": f"pairs: {task.text_column!r} and {task.pair_column!r}" if task.is_pair else f"{task.text_column!r}",
        "label column": repr(task.label_column),
        "labels": ", ".join(f"{i} = {label}" for i, label in enumerate(task.label_names)),
        "metric": task.metric,
    }
    if task.folder:
        facts["local files"] = ", ".join(f"{task.folder}/{file}" for file in task.files.values())
        facts["splits"] = "train; dev cut in two by position: first half calibration, last half test"
    facts["hub"] = " ".join(part for part in (task.hub.dataset, task.hub.config) if part)
    if task.published:
        facts |= {name.replace("_", " "): f"{value:g}" for name, value in dataclasses.asdict(task.published).items()}
    return facts | ({"notes": task.notes} if task.notes else {})
