"""Variants of one setting beside the study's own cells, task by task: sources of noise, weights, methods.

    python benchmarks/variant_tables.py results/noise --method hidden --as splice --examples
    python benchmarks/variant_tables.py results/ablations --method hidden-smoothing --as "as in the study"

A run of the folder is called TASK-VARIANT. Cells of `--study` with the same task, of the baseline and of `--method`,
stand beside them under the name `--as`. Writes `tables/variants.md`: means over seeds ± their standard deviation;
with `--examples` `tables/examples.md`, noise texts of each variant.
"""

import argparse
import html
import statistics
from pathlib import Path
from typing import Any

from ebmcal.storage.atomic import read_json, write_text
from study_tables import BASELINE, Rows, markdown, read_csv, spread

DEV = "temperature (dev)"

#: Heading → column of `cells.csv`, and the calibrator.
SHOWN = {
    "accuracy": ("accuracy", ""), "ECE class-wise": ("ece_classwise", ""), "ECE top-label": ("ece_top_label", ""),
    "NLL": ("nll", ""), "NLL, temperature (dev)": ("nll", DEV),
}  # fmt: skip

#: Of noise: how well it is told from data.
TOLD = {"told apart: untouched encoder": "probe", "training": "told_apart", "held-out": "told_apart_held_out"}


def table(rows: Rows) -> str:
    """A line for each task, variant and method."""
    groups: dict[tuple[str, str, str], Rows] = {}
    for row in rows:
        groups.setdefault((row["task"], row["variant"], row["method"]), []).append(row)
    lines = [["task", "variant", "method", "seeds", *SHOWN, *TOLD]]
    for (task, variant, method), members in sorted(groups.items(), key=lambda item: item[0][0]):
        seeds = {row["seed"] for row in members}
        figures = [_figure(members, key, posthoc) for key, posthoc in SHOWN.values()]
        told = [_plain(members, key, ".2f") for key in TOLD.values()]
        lines.append([task, variant, f"`{method}`", str(len(seeds)), *figures, *told])
    return markdown(lines)


def examples(folder: Path, study: Path, name: str) -> str:
    """Noise texts of each variant, of the last task that has it."""
    *_, own = read_json(study / "examples.json").values()
    found = {name: own} | {
        run.split("-", 1)[1]: texts for run, texts in read_json(folder / "examples.json").items() if texts
    }
    lines = [[variant, "<br>".join(_escape(e["noise"]) for e in texts)] for variant, texts in found.items()]
    return markdown([["source", "texts"], *lines])


def _escape(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;")


def _values(rows: Rows, key: str, posthoc: str) -> list[float]:
    return [float(row[key]) for row in rows if row["posthoc"] == posthoc and row.get(key) not in (None, "")]


def _figure(rows: Rows, key: str, posthoc: str) -> str:
    values = _values(rows, key, posthoc)
    return spread(values) if values else ""


def _plain(rows: Rows, key: str, form: str) -> str:
    values = _values(rows, key, "")
    return format(statistics.fmean(values), form) if values else ""


def read(folder: Path, study: Path, method: str, name: str) -> Rows:
    """Rows of the variants, behind those of the study for the same tasks; each with its task and variant."""

    def named(row: dict[str, Any], task: str, variant: str) -> dict[str, Any]:
        return row | {"task": task, "variant": variant}

    own = [named(row, *row["run"].split("-", 1)) for row in read_csv(folder / "cells.csv")]
    tasks, names = {row["task"] for row in own}, {BASELINE: "", method: name}
    beside = [row for row in read_csv(study / "cells.csv") if row["run"] in tasks and row["method"] in names]
    return [named(row, row["run"], names[row["method"]]) for row in beside] + own


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--study", type=Path, default=Path("results/study"))
    parser.add_argument("--method", required=True)
    parser.add_argument("--as", dest="name", required=True)
    parser.add_argument("--examples", action="store_true", help="noise texts of each variant, too")
    given = parser.parse_args()
    target = given.folder / "tables" / "variants.md"
    target.parent.mkdir(exist_ok=True)
    write_text(target, table(read(given.folder, given.study, given.method, given.name)))
    if given.examples:
        write_text(target.with_name("examples.md"), examples(given.folder, given.study, given.name))
    print(target)
