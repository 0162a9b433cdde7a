"""`ebmcal tasks`: the built-in tasks as a table, one task in detail, or JSON."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ebmcal.data.tasks import TASKS, Task, find_task


def tasks(
    name: Annotated[str | None, typer.Argument(help="Show one task in detail, for example rte or SST-2.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in tasks: columns, labels, metric and published settings."""
    chosen = [find_task(name)] if name else list(TASKS.values())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(task) for task in chosen], indent=2, ensure_ascii=False))
        return
    console = Console()
    console.print(_details(chosen[0]) if name else _overview(chosen))
    if not name:
        console.print("STS-B is not included: it is a regression task without classes.", style="dim")


def _overview(chosen: list[Task]) -> Table:
    table = Table(title="Built-in tasks", title_justify="left")
    for heading in ("task", "texts", "labels", "metric", "published: batch, lr, steps"):
        table.add_column(heading, overflow="fold")
    for task in chosen:
        texts = " + ".join(name for name in (task.text_column, task.text_pair_column) if name)
        labels = ", ".join(task.label_names) or "from the training file"
        table.add_row(task.name, escape(texts), labels, task.metric, _settings(task))
    return table


def _settings(task: Task) -> str:
    p = task.published
    return f"{p.batch_size}, {p.learning_rate:g}, {p.steps:,}" if p else "-"


def _details(task: Task) -> Table:
    table = Table(title=escape(task.title), title_justify="left", show_header=False)
    for key, value in _facts(task).items():
        table.add_row(key, escape(value))
    return table


def _facts(task: Task) -> dict[str, str]:
    names = [repr(name) for name in (task.text_column, task.text_pair_column) if name]
    labels = ", ".join(f"{i} = {label}" for i, label in enumerate(task.label_names))
    facts = {
        "task": task.name,
        "texts": f"pairs: {' and '.join(names)}" if task.is_pair else names[0],
        "label column": repr(task.label_column),
        "labels": labels or "from the training file",
        "metric": task.metric,
    }
    if task.folder:
        facts["local files"] = ", ".join(f"{task.folder}/{file}" for file in task.files.values())
    if "dev" in task.files:
        facts["splits"] = "train; dev is cut in two by position: first half calibration, second half test"
    if task.hub:
        facts["hub"] = " ".join(part for part in (task.hub.dataset, task.hub.config) if part)
    if task.published:
        facts |= {name.replace("_", " "): f"{value:g}" for name, value in dataclasses.asdict(task.published).items()}
    return facts | ({"notes": task.notes} if task.notes else {})
