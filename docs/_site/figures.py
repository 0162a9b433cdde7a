"""Figures in pages come from files of results, by templates: nobody types them, so none can be wrong or old.

{{ run_value("docs/results/demo-splice.json", "nll", "hidden-smoothing") }}  one figure of a run's metrics.json
{{ run_table("docs/results/demo-splice.json", "accuracy nll") }}           a table of its rows
{{ json_value("benchmarks/cost.json", "training.tokens", ".0f") }}         any value of a JSON file
{{ cell("results/study/cells.csv", "nll", run="rt", method="hidden") }} mean over the rows of a CSV file
{{ code("ebmcal.noise.hardness.TOO_EASY") }}                               a constant of the code
{{ include("results/study/table.md", "The study is not finished.") }}      a file, or a note where it is not there
"""

import csv
import functools
import importlib
import json
import re
import statistics
from pathlib import Path

from jinja2 import Environment, StrictUndefined

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?!text\b).*?^```", re.M | re.S)  # a fence of text may hold a template


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


def run_table(path, metrics, form=".3f", only=None):
    """The rows of a run with one seed, with these metrics; `only` with these calibrators, "alone" for none."""
    from ebmcal.metrics import METRICS

    names = metrics.split()
    lines = ["| method | " + " | ".join(METRICS[n].title.replace(" ({bins})", "") for n in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for row in read_json(path)["rows"]:
        if only is not None and (row["posthoc"] or "alone") not in only.split(", "):
            continue
        title = f"`{row['method']}`" + (f" + {row['posthoc']}" if row["posthoc"] else "")
        values = " | ".join(short(row["metrics"][n]["value"], form) for n in names)
        lines.append(f"| {title} | {values} |")
    return "\n".join(lines)


def cell(path, column, form=".3f", **where):
    """The mean of a column over the rows of a CSV file that have these values; of means, where rows name their run."""
    runs = {}
    for row in read_rows(path):
        if row[column] and all(row[k] == str(v) for k, v in where.items()):
            runs.setdefault(row.get("run"), []).append(float(row[column]))
    if not runs:
        raise LookupError(f"{path} has no {column} where {where}")
    return short(statistics.fmean(map(statistics.fmean, runs.values())), form)


def count(path, **where):
    """How many rows of a CSV file have these values."""
    return str(sum(all(row[k] == str(v) for k, v in where.items()) for row in read_rows(path)))


def code(name, form=None):
    """A constant of the code, by its dotted name."""
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    return short(value, form) if form else str(value)


def bench(name, reference="", key="ratio", form=".1f"):
    """A figure of the speed benchmarks, by the name of the work and how its reference begins."""
    files = ("training", "sampling", "step_memory", "online_noise", "noise_stage")
    entries = [entry for file in files for entry in read_json(f"benchmarks/{file}.json")]
    found = [e for e in entries if e["name"].startswith(name) and e["reference"].startswith(reference)]
    found = [e for e in found if e["name"] == name] or found
    if len(found) != 1:
        raise LookupError(f"{len(found)} benchmarks are called {name}, against {reference}")
    return short(found[0][key], form) if form else str(found[0][key])


def over_seeds(path, metric, form=".3f", **where):
    """Mean ± standard deviation over the seeds of a file of results: rows by `method`, or of another kind."""
    rows = [row for row in read_json(path)["rows"] if all(row[k] == v for k, v in where.items())]
    values = [row["metrics"][metric]["value"] if "metrics" in row else row[metric] for row in rows]
    if len(values) < 2:
        raise LookupError(f"{path} has {len(values)} rows where {where}")
    return f"{short(statistics.mean(values), form)} ± {short(statistics.stdev(values), form)}"


def nll_with(run, method, seed, calibrator, form=".3f"):
    """NLL on the test rows of the study with a calibrator that is fitted on its calibration rows."""
    from ebmcal.calibrators import make_calibrator
    from ebmcal.metrics import nll
    from ebmcal.predictions import Predictions

    folder = ROOT / "results" / "study" / "predictions" / run / f"{method}-seed{seed}"
    test = Predictions.read(folder / "test.parquet")
    if calibrator != "plain":
        held_out = Predictions.read(folder / "calibration.parquet")
        test = make_calibrator(calibrator).fit_predictions(held_out).apply(test)
    return short(nll(test.labels, probs=test.probabilities()), form)


def cost_table(cores=2, nodes=64):
    """Hours of the stages of MNLI, as benchmarks/cost.py works them out."""
    home = ROOT / "benchmarks" / "cost.py"
    names = {"__file__": str(home), "__name__": "cost"}
    exec(compile(home.read_text("utf-8"), str(home), "exec"), names)
    return names["show"](read_json("benchmarks/cost.json")["tokens_per_cpu_second"], cores, nodes)


def call(name, *arguments):
    """What a function of the code answers, by its dotted name."""
    module, _, attribute = name.rpartition(".")
    return f"{getattr(importlib.import_module(module), attribute)(*arguments):,}"


def rows_wanted(calibrator, n_classes=None):
    """Rows below which a calibrator warns: for so many classes, or in terms of C."""
    from ebmcal.calibrators import make_calibrator

    wanted = make_calibrator(calibrator).rows_wanted
    if n_classes:
        return f"{wanted(n_classes):,}"
    return f"{wanted(2)}" if wanted(1) == wanted(2) else f"{wanted(1)}·C"


def setting(name):
    """The default of a setting of a run."""
    from ebmcal.config import RunConfig

    return str(RunConfig.model_fields[name].get_default(call_default_factory=True))


def include(path, otherwise):
    """The text of a file, or a marked note where there is none yet."""
    file = ROOT / path
    return file.read_text("utf-8").strip() if file.exists() else f'!!! note "Not measured yet"\n    {otherwise}'


def picture(name):
    """Where a picture of `pictures.PICTURES` stands."""
    return f'<span data-picture="{name}"></span>'


@functools.cache
def _environment():
    environment = Environment(
        undefined=StrictUndefined, comment_start_string="{##", trim_blocks=True, keep_trailing_newline=True
    )
    functions = (
        short,
        read_json,
        read_rows,
        json_value,
        run_value,
        run_table,
        cell,
        count,
        code,
        call,
        bench,
        over_seeds,
        nll_with,
        cost_table,
        rows_wanted,
        setting,
        include,
        picture,
    )
    environment.globals.update({function.__name__: function for function in functions})
    return environment
