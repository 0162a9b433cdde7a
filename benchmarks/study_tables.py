"""The tables of a study, from `results/NAME` alone: no run folder, no model, no text.

    python benchmarks/study_tables.py results/study --beside results/other-texts

Writes `tables/*.md`, which the pages of the documentation include. Differences to the baseline are means over tasks,
with intervals and tests over seeds and rows (`ebmcal.metrics.comparing`); p-values of a table are Holm-adjusted.
"""

import argparse
import csv
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebmcal.calibrators import make_calibrator
from ebmcal.metrics import ood_detection, ood_scores
from ebmcal.metrics.comparing import PairedTest, compare_measured, holm, mean_of_tests
from ebmcal.metrics.intervals import Measured, measure
from ebmcal.metrics.registry import metric
from ebmcal.predictions import Predictions
from ebmcal.predictions.ensembles import ensemble
from ebmcal.storage.atomic import write_text

BASELINE = "baseline"
DISTANCES = {"mahalanobis": "Mahalanobis", "knn": "kNN"}
SHOWN = {"accuracy": "accuracy", "ece_classwise": "ECE class-wise", "ece_top_label": "ECE top-label", "nll": "NLL"}
N_RESAMPLES = 400

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Study:
    """The cells of a study and where their predictions are: a folder for each method, and its name there."""

    folder: Path
    rows: Rows
    places: dict[str, tuple[Path, str]]

    @classmethod
    def read(cls, folder: Path, beside: Sequence[Path] = ()) -> "Study":
        """A study, and others with the same tasks whose methods are set beside it as `method, folder`."""
        found: Rows = []
        places = {}
        for place in (folder, *beside):
            for row in read_csv(place / "cells.csv"):
                own = row["method"]
                row["method"] = own if place == folder else f"{own}, {place.name}"
                places[row["method"]] = (place, own)
                found.append(row)
        return cls(folder, found, places)

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(row["run"] for row in self.rows))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row["method"] for row in self.rows))

    def seeds(self, run: str, method: str) -> list[str]:
        return sorted({r["seed"] for r in self.rows if (r["run"], r["method"]) == (run, method)})

    def values(self, run: str, method: str, key: str, posthoc: str = "") -> list[float]:
        chosen = (r for r in self.rows if (r["run"], r["method"], r["posthoc"]) == (run, method, posthoc))
        return [float(row[key]) for row in chosen if row.get(key) not in (None, "")]

    def complete(self, method: str) -> bool:
        """Whether a method was run on every task with the seeds of the baseline: averages are over the same for all."""
        return all(set(self.seeds(run, BASELINE)) <= set(self.seeds(run, method)) for run in self.runs)

    def mean(self, method: str, key: str, posthoc: str = "") -> float:
        """Over tasks, of means over seeds."""
        return statistics.fmean(statistics.fmean(self.values(run, method, key, posthoc)) for run in self.runs)

    def predictions(self, run: str, method: str, seed: str, split: str) -> Predictions:
        return Predictions.read(self.file("predictions", run, method, seed) / f"{split}.parquet")

    def file(self, kind: str, run: str, method: str, seed: str) -> Path:
        """Where the predictions or the history of a cell are, by their name without a suffix."""
        folder, own = self.places[method]
        return folder / kind / run / f"{own}-seed{seed}"


def headline(study: Study) -> str:
    """Averages over tasks, and differences to the baseline."""
    lines = [["method", "accuracy", "ECE class-wise", "against baseline", "ECE top-label", "NLL", "Brier"]]
    for method in filter(study.complete, study.methods):
        ece, base = (study.mean(name, "ece_classwise") for name in (method, BASELINE))
        change = "" if method == BASELINE else f"{100 * (ece / base - 1):+.0f}%"
        figures = [_number(study.mean(method, key)) for key in ("accuracy", "ece_classwise", "ece_top_label")]
        rest = [_number(study.mean(method, key)) for key in ("nll", "brier")]
        lines.append([f"`{method}`", *figures[:2], change, figures[2], *rest])
    return markdown(lines)


def differences(study: Study) -> str:
    """Method minus baseline with intervals over seeds and rows, averaged over tasks."""
    methods = [m for m in study.methods if m != BASELINE and study.complete(m)]
    tests = {(method, key): _difference(study, method, key) for method in methods for key in SHOWN}
    adjusted = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    lines = [["method", *SHOWN.values()]]
    for method in methods:
        lines.append([f"`{method}`", *(_shown(tests[method, key], adjusted[method, key]) for key in SHOWN)])
    return markdown(lines)


def _shown(test: PairedTest, p_value: float | None) -> str:
    chance = "" if p_value is not None and p_value < 0.05 else " (n.s.)"
    return f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]{chance}"


def by_task(study: Study) -> str:
    """Accuracy, class-wise ECE and NLL of each task: means over seeds, with their standard deviation."""
    lines = [["task", "method", "seeds", *SHOWN.values(), "seconds"]]
    for run in study.runs:
        for method in study.methods:
            if seeds := study.seeds(run, method):
                figures = [spread(study.values(run, method, key)) for key in SHOWN]
                seconds = f"{statistics.fmean(study.values(run, method, 'seconds')):.0f}"
                lines.append([run, f"`{method}`", str(len(seeds)), *figures, seconds])
    return markdown(lines)


def post_hoc(study: Study) -> str:
    """Class-wise ECE / NLL of every method with and without a calibrator, averaged over tasks."""
    steps = list(dict.fromkeys(row["posthoc"] for row in study.rows))
    lines = [["method", *(step or "as trained" for step in steps)]]
    for method in filter(study.complete, study.methods):
        cells = [[study.mean(method, key, step) for key in ("ece_classwise", "nll")] for step in steps]
        lines.append([f"`{method}`", *(" / ".join(map(_number, cell)) for cell in cells)])
    return markdown(lines)


def ensembles(study: Study) -> str:
    """The seeds of a method together, their probabilities averaged: what as many trainings and predictions buy."""
    lines = [["method", "members", "accuracy", "ECE class-wise", "NLL"]]
    for method in filter(study.complete, study.methods):
        members = {run: study.seeds(run, method) for run in study.runs}
        if min(map(len, members.values())) > 1:
            figures = [_figures(_together(study, run, method, seeds)) for run, seeds in members.items()]
            sizes = "–".join(map(str, sorted({len(seeds) for seeds in members.values()})))
            lines.append([f"`{method}`", sizes, *(_number(statistics.fmean(c)) for c in zip(*figures, strict=True))])
    return markdown(lines)


def _together(study: Study, run: str, method: str, seeds: Sequence[str]) -> Predictions:
    return ensemble([study.predictions(run, method, seed, "test") for seed in seeds])


def shift(study: Study) -> str:
    """Texts from elsewhere that have labels: accuracy, class-wise ECE and NLL; temperature as fitted on the task."""
    lines = [["texts", "method", "accuracy", "ECE class-wise", "NLL", "ECE with temperature (dev)", "NLL"]]
    for name in _shifted(study):
        for method in study.methods:
            cells = list(_cells_with(study, method, name))
            if not cells or (cells[0][1].labels < 0).any():
                continue
            raw = [_figures(shifted) for _, shifted in cells]
            mended = [_figures(make_calibrator("temperature").fit_predictions(c).apply(s)) for c, s in cells]
            columns = [*zip(*raw, strict=True), *list(zip(*mended, strict=True))[1:]]
            figures = [_number(statistics.fmean(column)) for column in columns]
            lines.append([name.removeprefix("shift_"), f"`{method}`", *figures])
    return markdown(lines)


def detection(study: Study) -> str:
    """Telling test texts from texts of elsewhere: AUROC by scores of the models, and by distances before training."""
    by_layer = read_csv(study.folder / "layers.csv")
    names = list(dict.fromkeys(row["texts"] for row in by_layer))
    lines = [["score", *names]]
    for kind, title in {"energy": "energy", "max_prob": "largest probability"}.items():
        for method in study.methods:
            lines.append(
                [f"{title}, `{method}`", *(_mean_auroc(study, method, f"shift_{name}", kind) for name in names)]
            )
    half = len({row["layer"] for row in by_layer}) // 2
    for kind, title in DISTANCES.items():
        for method in study.methods:
            known = [r for r in by_layer if (r["method"], r["score"], r["layer"]) == (method, kind, str(half))]
            if known:
                lines.append([f"{title}, half-way up, `{method}`", *_mean_aurocs(known, names)])
        known = [row for row in read_csv(study.folder / "untouched.csv") if row["score"] == kind]
        lines.append([f"{title}, untouched encoder", *_mean_aurocs(known, names)])
    return markdown(lines)


def layers(study: Study) -> str:
    """Which layer of the finetuned encoder tells texts of elsewhere: AUROC by distances, means over all models."""
    found = read_csv(study.folder / "layers.csv")
    shown = list(dict.fromkeys(row["texts"] for row in found))
    lines = [["layer", *(f"{title}: {name}" for title in DISTANCES.values() for name in shown)]]
    for layer in sorted({row["layer"] for row in found}, key=int):
        known = [[r for r in found if (r["layer"], r["score"]) == (layer, kind)] for kind in DISTANCES]
        lines.append([layer, *(figure for rows in known for figure in _mean_aurocs(rows, shown))])
    return markdown(lines)


def read_csv(path: Path) -> Rows:
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def _mean_aurocs(rows: Rows, names: Sequence[str]) -> list[str]:
    """Of rows with `texts` and `auroc`: means for each name of texts."""
    found = [[float(row["auroc"]) for row in rows if row["texts"] == name] for name in names]
    return [_number(statistics.fmean(values)) if values else "" for values in found]


def _mean_auroc(study: Study, method: str, name: str, kind: str) -> str:
    """Over tasks and seeds."""
    cells = [(study.predictions(*where, "test"), shifted) for where, shifted in _places_with(study, method, name)]
    return _number(statistics.fmean(_auroc(kind, *cell) for cell in cells)) if cells else ""


def matched(study: Study) -> str:
    """ECE at equal accuracy: of each training, the last point whose accuracy the baseline's curve reached as well."""
    lines = [["task", "method", "accuracy", "ECE class-wise there", "baseline's at that accuracy"]]
    for run in study.runs:
        curves = {m: [_curve(study, run, m, seed) for seed in study.seeds(run, m)] for m in study.methods}
        for method in (m for m in study.methods if m != BASELINE):
            pairs = [
                _at_equal_accuracy(a, b) for a, b in zip(curves[BASELINE], curves[method], strict=False) if a and b
            ]
            if pairs:
                lines.append([run, f"`{method}`", *(_number(statistics.fmean(c)) for c in zip(*pairs, strict=True))])
    return markdown(lines)


TABLES: dict[str, Callable[[Study], str]] = {
    "headline": headline, "differences": differences, "by-task": by_task, "post-hoc": post_hoc,
    "ensembles": ensembles, "shift": shift, "detection": detection, "layers": layers,
    "matched": matched,
}  # fmt: skip


def _difference(study: Study, method: str, key: str) -> PairedTest:
    """Method minus baseline: over the seeds and rows of each task, then over tasks."""
    return mean_of_tests([_difference_on(study, run, method, key).to_json() for run in study.runs])


def _difference_on(study: Study, run: str, method: str, key: str) -> PairedTest:
    seeds = [seed for seed in study.seeds(run, method) if seed in study.seeds(run, BASELINE)]
    both = [
        [_measured(study.predictions(run, name, seed, "test"), key) for seed in seeds] for name in (method, BASELINE)
    ]
    return compare_measured(*both)


def _measured(predictions: Predictions, key: str) -> Measured:
    wanted = {key: (metric(key), {})}
    return measure(wanted, predictions.labels, predictions.probabilities(), n_resamples=N_RESAMPLES, seed=0)[key]


def _shifted(study: Study) -> list[str]:
    return sorted({path.stem for path in (study.folder / "predictions").glob("*/*/shift_*.parquet")})


def _places_with(study: Study, method: str, name: str) -> Iterable[tuple[tuple[str, str, str], Predictions]]:
    for run in study.runs:
        for seed in study.seeds(run, method):
            if (study.file("predictions", run, method, seed) / f"{name}.parquet").exists():
                yield (run, method, seed), study.predictions(run, method, seed, name)


def _cells_with(study: Study, method: str, name: str) -> Iterable[tuple[Predictions, Predictions]]:
    for where, shifted in _places_with(study, method, name):
        yield study.predictions(*where, "calibration"), shifted


def _figures(predictions: Predictions) -> list[float]:
    keys = ("accuracy", "ece_classwise", "nll")
    return [float(metric(key).function(predictions.labels, probs=predictions.probabilities())) for key in keys]


def _auroc(kind: str, test: Predictions, other: Predictions) -> float:
    scores = (ood_scores(kind, logits=p.logits, energies=p.energies) for p in (test, other))
    return ood_detection(*scores)["auroc"]


def _curve(study: Study, run: str, method: str, seed: str) -> list[tuple[float, float]]:
    path = study.file("history", run, method, seed).with_suffix(".jsonl")
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.exists() else []
    return [(line["eval_accuracy"], line["eval_ece_classwise"]) for line in lines if "eval_accuracy" in line]


def _at_equal_accuracy(base: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """The accuracy that both reach, and the least class-wise ECE of each among its points that reach it."""
    accuracy = min(max(a for a, _ in base), max(a for a, _ in other))
    eces = [min(ece for a, ece in curve if a >= accuracy) for curve in (other, base)]
    return (accuracy, *eces)


def _number(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def spread(values: list[float]) -> str:
    around = f" ± {_number(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{_number(statistics.fmean(values))}{around}"


def markdown(lines: list[list[str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--beside", type=Path, nargs="*", default=[])
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    folder, found = options.folder, Study.read(options.folder, options.beside)
    (folder / "tables").mkdir(exist_ok=True)
    for name in options.tables:
        write_text(folder / "tables" / f"{name}.md", TABLES[name](found))
    print(f"{len(options.tables)} tables in {folder / 'tables'}")
