"""Figures in pages come from files of results, by templates: nobody types them, so none can be wrong or old.

{{ run_value("docs/results/demo-splice.json", "nll", "hidden") }}          one figure of a run's metrics.json
{{ run_table("docs/results/demo-splice.json", "accuracy nll") }}           a table of its rows
{{ json_value("benchmarks/cost.json", "training.tokens", ".0f") }}         any value of a JSON file
{{ cell("results/noise/cells.csv", "nll", run="rt-far", method="hidden") }} mean over the rows of a CSV file
{{ code("ebmcal.noise.hardness.TOO_EASY") }}                               a constant of the code
{{ include("results/study/table.md", "The study is not finished.") }}      a file, or a note where it is not there
"""

import csv
import functools
import importlib
import json
import re
from pathlib import Path

from jinja2 import Environment, StrictUndefined

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def fill(markdown, where):
    """The page with its templates filled; a mistake in one names the page. Code fences are left as they are."""
    kept = []

    def keep(match):
        kept.append(match.group())
        return f"\0{len(kept) - 1}\0"

    try:
        filled = _environment().from_string(FENCE.sub(keep, markdown)).render()
    except Exception as error:
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
    return re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], filled)


def short(value, form=".3f"):
    """A number as the pages write it: no zero in front of the point."""
    text = format(value, form)
    return re.sub(r"^(-?)0\.", r"\1.", text) if form.endswith("f") else text


@functools.cache
def read_json(path):
    return json.loads((ROOT / path).read_text("utf-8"))


@functools.cache
def read_rows(path):
    with open(ROOT / path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def json_value(path, keys, form=".3f", times=1):
    """The value at `a.b.0.c` of a JSON file, formatted; text as it is."""
    value = read_json(path)
    for key in keys.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value if isinstance(value, str) or form is None else short(value * times, form)


def run_row(path, method, posthoc=None, seed=None):
    """The one row of a run's figures that has this method, calibrator and seed."""
    rows = [row for row in read_json(path)["rows"] if row["method"] == method and row["posthoc"] == posthoc]
    rows = [row for row in rows if seed is None or row["seed"] == seed]
    if len(rows) != 1:
        raise LookupError(f"{path} has {len(rows)} rows of {method}, {posthoc}, seed {seed}")
    return rows[0]


def run_value(path, metric, method, posthoc=None, form=".3f", part="value", seed=None):
    """A metric of a run."""
    return short(run_row(path, method, posthoc, seed)["metrics"][metric][part], form)


def run_table(path, metrics, form=".3f"):
    """All rows of a run with one seed, with these metrics."""
    from ebmcal.metrics import METRICS

    names = metrics.split()
    lines = ["| method | " + " | ".join(METRICS[n].title.replace(" ({bins})", "") for n in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for row in read_json(path)["rows"]:
        title = f"`{row['method']}`" + (f" + {row['posthoc']}" if row["posthoc"] else "")
        values = " | ".join(short(row["metrics"][n]["value"], form) for n in names)
        lines.append(f"| {title} | {values} |")
    return "\n".join(lines)


def cell(path, column, form=".3f", **where):
    """The mean of a column over the rows of a CSV file that have these values."""
    found = [row for row in read_rows(path) if all(row[k] == str(v) for k, v in where.items())]
    values = [float(row[column]) for row in found if row[column]]
    if not values:
        raise LookupError(f"{path} has no {column} where {where}")
    return short(sum(values) / len(values), form)


def count(path, **where):
    """How many rows of a CSV file have these values."""
    return str(sum(all(row[k] == str(v) for k, v in where.items()) for row in read_rows(path)))


def code(name, form=None):
    """A constant of the code, by its dotted name."""
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    return short(value, form) if form else str(value)


def include(path, otherwise):
    """The text of a file, or a marked note where there is none yet."""
    file = ROOT / path
    return file.read_text("utf-8").strip() if file.exists() else f'!!! note "Not measured yet"\n    {otherwise}'


def picture(name):
    """Where a picture of `pictures.PICTURES` stands."""
    return f'<span data-picture="{name}"></span>'


@functools.cache
def _environment():
    environment = Environment(undefined=StrictUndefined, comment_start_string="{##", keep_trailing_newline=True)
    functions = (json_value, run_value, run_table, cell, count, code, include, picture)
    environment.globals.update({function.__name__: function for function in functions})
    return environment
