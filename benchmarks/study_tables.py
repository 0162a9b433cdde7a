"""Tables and plots of the study, from the committed files in results/. No training, no torch.

    python benchmarks/study_tables.py  # draws docs/assets/study-*-{light,dark}.svg; docs/generate.py inserts the tables

`BLOCKS` maps the name of a marker in the documentation to the function that writes its table.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import log_softmax

from ebmcal.predictions import Predictions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
ASSETS = ROOT / "docs" / "assets"

#: Tasks of the study in the order of the tables: how they are shown, and the paper's name for them.
TASKS = {
    "sst2-2k": ("SST-2", "sst2"), "sst2": ("SST-2", "sst2"), "cola-500": ("CoLA", "cola"),
    "cola-2k": ("CoLA", "cola"), "cola": ("CoLA", "cola"), "mnli-500": ("MNLI", "mnli"), "mnli-2k": ("MNLI", "mnli"),
    "mnli": ("MNLI", "mnli"), "qnli": ("QNLI", "qnli"), "mrpc": ("MRPC", "mrpc"), "rte": ("RTE", "rte"),
    "wnli": ("WNLI", "wnli"), "clinc150-2k": ("CLINC150", None), "clinc150": ("CLINC150", None),
}  # fmt: skip

#: SST-2 with other numbers of rows, for the plot over rows.
SCALING = ("sst2-200", "sst2-1k", "sst2-5k", "sst2-20k", "sst2-67k")

#: Rows of the paper's table: (method, calibrator).
PAPER_ROWS = [
    ("baseline", None), ("baseline", "scaling-binning (train)"), ("baseline", "temperature (train)"),
    ("poscal", None), ("scalar", None), ("hidden", None), ("sharp-hidden", None),
    ("baseline", "scaling-binning (dev)"), ("baseline", "temperature (dev)"),
]  # fmt: skip

#: Columns of the headline table.
HEADLINE = [(method, calibrator) for method in ("baseline", "hidden") for calibrator in (None, "temperature (dev)")]

#: Tasks of the other tables: the first part of their names.
NAMES = {"sst2": "SST-2", "cola": "CoLA", "clinc150": "CLINC150", "mnli": "MNLI", "mrpc": "MRPC", "rte": "RTE"}

#: What `ebmcal run` returns by default; measured with seed 2, as the others without rows of its own.
CROSS_FITTED = ("baseline", "temperature (cross-fit)")

#: Methods that are not the paper's.
CONTROLS = ("label-smoothing", "laplace", "focal", "l2-sp", "sngp")

#: Methods that are compared with the baseline.
COMPARED = ("hidden", "poscal", *CONTROLS)

#: Also shown in the table of all results.
EXTRA_ROWS = list(itertools.product((*COMPARED, "frozen-probe"), (None, "temperature (dev)")))

#: Methods that the paper's tables show with the paper's λ of 1 in every step (tasks named NAME-paper).
AT_PAPER_STRENGTH = ("scalar", "hidden", "sharp-hidden")
STRONG = ", λ = 1"
INFILL = ", λ = 1, infill"
WEAK = ", λ = .1"

#: Setting of a method -> suffix of its tasks.
SUFFIXES = {"": "", WEAK: "", STRONG: "-paper", INFILL: "-paper-infill", ", λ = .03": "-weight-0.03"}

METRICS = ("accuracy", "nll")

MISSING = "–"


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *map(list, rows)])


def load(name: str, table: str = "results") -> pd.DataFrame:
    """A committed table; empty if nothing was measured yet."""
    path = RESULTS / name / f"{table}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame()


def title(method: str, calibrator: str | None) -> str:
    return method if calibrator is None else f"{method} + {calibrator}"


def short(value: float | None, digits: int = 3) -> str:
    """A number without its leading zero."""
    if value is None or pd.isna(value):
        return MISSING
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


class Cells:
    """Single values of a results table."""

    def __init__(self, *names: str) -> None:
        self.table = pd.concat([load(name) for name in names], ignore_index=True)
        if len(self.table):
            self.table["calibrator"] = self.table["calibrator"].fillna("")
            self.table["test_set"] = self.table["test_set"].fillna("test")

    def row(self, task: str, method: str, calibrator: str | None, metric: str, test_set: str = "test", seed: int = 1):
        """The row of a value (value, low, high, n_train, …), or None."""
        if not len(self.table):
            return None
        t = self.table
        seed = 0 if method == "frozen-probe" else seed
        is_row = (t["task"] == task) & (t["method"] == method) & (t["calibrator"] == (calibrator or ""))
        found = t[is_row & (t["metric"] == metric) & (t["test_set"] == test_set) & (t["seed"] == seed)]
        return found.iloc[0] if len(found) else None

    def value(self, *place: str | None, **options: str | int) -> float | None:
        row = self.row(*place, **options)
        return None if row is None else float(row["value"])

    def pair(self, task: str, method: str, calibrator: str | None) -> str:
        """Accuracy / top-label ECE in percent. (With 150 classes the class-wise ECE is close to 0 for any model.)"""
        accuracy, ece = (self.value(task, method, calibrator, m) for m in ("accuracy", "ece_top_label"))
        return MISSING if accuracy is None else f"{100 * accuracy:.1f} / {100 * (ece or 0):.1f}"

    def tasks(self, *methods: str) -> list[str]:
        """The tasks with results of all these methods."""
        return [t for t in TASKS if all(self.value(t, m, None, "accuracy") is not None for m in methods)]

    def largest(self, *methods: str) -> list[str]:
        """Of each task, the one with the most training rows that has results of all these methods."""
        return list({TASKS[t][0]: t for t in self.tasks(*methods)}.values())


def shown_name(task: str) -> str:
    """The name of a task in tables and plots.

    >>> shown_name("sst2-2k"), shown_name("clinc150")
    ('SST-2', 'CLINC150')
    """
    return NAMES.get(first := task.split("-")[0], first.upper())


def n_train(cells: Cells, task: str) -> int:
    return int(cells.row(task, "baseline", None, "accuracy")["n_train"])


def headline() -> str:
    """What `ebmcal run` returns by default on the largest training set of each task: the baseline, cross-fitted.

    Means over the seeds that were cross-fitted, next to the model as trained and to a temperature from extra rows.
    """
    found, cells, crossed, rows = default_temperatures(), Cells("study"), Cells("cross_fit"), []
    for task in [t for t in cells.largest("baseline") if t != "wnli"]:
        of_task = found[(found["name"] == task) & (found["method"] == "baseline")]
        if not len(of_task):
            continue
        row = crossed.row(task, *CROSS_FITTED, "ece_top_label", seed=of_task["seed"].min())
        name = f"{TASKS[task][0]} ({int(row['n_train']):,} / {int(row['n_rows']):,})"
        labels = Predictions.read(predictions_of(task, "baseline")).labels
        constant = np.bincount(labels).max() / len(labels)
        accuracy, ece = (of_task.groupby("fitted_on")[m].mean() for m in ("accuracy", "ece_top_label"))
        rows.append([
            name, f"{100 * accuracy['none']:.1f} ({100 * constant:.1f})",
            *(f"{100 * ece[source]:.1f}" for source in ("none", "cross-fitted", "calibration split")),
            f"{100 * row['noise_floor']:.1f}",
        ])  # fmt: skip
    header = ["task (training / test rows)", "accuracy (constant)", "ECE as trained", "cross-fitted"]
    return markdown([*header, "with extra rows", "by chance"], rows)


def default_temperatures() -> pd.DataFrame:
    """`fold_temperatures` with the default of cross-fitting: five folds up to 500 rows, one above.

    Where a model was trained twice, the one with today's held-out share counts (`NAME-tenth`).
    """
    found = fold_temperatures()
    found = found[~found["task"].str.endswith(("-halves", "-five"))]
    found = found.assign(
        name=found["task"].str.removesuffix("-tenth"),
        fitted_on=found["fitted_on"].replace({"five folds": "cross-fitted", "one fold": "cross-fitted"}),
    ).sort_values("task", kind="stable")
    return found.drop_duplicates(["name", "method", "seed", "fitted_on"], keep="last")


def predictions_of(place: str, method: str) -> Path:
    """The test predictions of a method of the study, seed 1."""
    return RESULTS / "study" / "predictions" / place / f"{method}-seed1" / "test.parquet"


def paper() -> str:
    """The paper's layout with the most training rows: performance / class-wise ECE; in brackets the paper's."""
    from ebmcal.benchmark import PUBLISHED

    cells, crossed = Cells("study"), Cells("cross_fit")
    tasks = [t for t in cells.largest("baseline") if TASKS[t][1]]
    rows = []
    for method, calibrator in [*PAPER_ROWS, CROSS_FITTED]:
        line = [title(method, calibrator) + (STRONG if method in AT_PAPER_STRENGTH else "")]
        pairs = []
        for task in tasks:
            metrics = ("matthews" if task.startswith("cola") else "accuracy", "ece_classwise")
            place = f"{task}-paper" if method in AT_PAPER_STRENGTH else task
            if (method, calibrator) == CROSS_FITTED:
                ours, theirs = [crossed.value(place, method, calibrator, m, seed=2) for m in metrics], None
            else:
                ours = [cells.value(place, method, calibrator, m) for m in metrics]
                theirs = PUBLISHED[calibrator or method][TASKS[task][1]]
            line.append(_paper_cell(ours, theirs))
            pairs += [(ours, theirs)] if task != "wnli" else []
        is_complete = all(None not in ours for ours, _ in pairs)
        ours, theirs = zip(*pairs, strict=True)
        published = None if None in theirs else np.mean(theirs, axis=0)
        line.append(_paper_cell(np.mean(ours, axis=0) if is_complete else [None], published))
        rows.append(line)
    header = ["method", *(f"{TASKS[t][0]} ({n_train(cells, t):,})" for t in tasks), "average without WNLI"]
    return markdown(header, rows)


def _paper_cell(ours: Iterable[float | None], theirs: Iterable[float] | None) -> str:
    text = MISSING if None in (ours := list(ours)) else "/".join(map(short, ours))
    return text if theirs is None else f"{text} ({'/'.join(map(short, theirs))})"


def against_baseline(
    method: str, calibrator: str | None, setting: str, tasks: Iterable[str] | None = None
) -> pd.DataFrame:
    """Per finished task: accuracy, class-wise ECE and NLL with a temperature of a method; those of the baseline.

    By default the tasks of the paper, each with the most training rows.
    """
    from ebmcal.benchmark import PUBLISHED

    cells, found = Cells("study"), {}
    for task in tasks or [t for t in cells.largest("baseline") if TASKS[t][1] and t != "wnli"]:
        places = {
            "": (f"{task}{SUFFIXES[setting]}", method, calibrator),
            "base_": (task, "baseline", None),
        }
        row = {}
        for prefix, place in places.items():
            row |= {f"{prefix}{m}": cells.value(*place, m) for m in ("accuracy", "ece_classwise")}
            row[f"{prefix}nll"] = cells.value(*place[:2], "temperature (dev)", "nll")
        paper_row = PUBLISHED.get(calibrator or method) if setting != WEAK else None
        row["paper"], row["base_paper"] = (
            r and TASKS[task][1] and r[TASKS[task][1]][1] for r in (paper_row, PUBLISHED["baseline"])
        )
        if row["accuracy"] is not None:
            found[task] = row
    return pd.DataFrame.from_dict(found, orient="index").astype(float)


def ranking() -> str:
    """The paper's methods and the controls: means over the finished tasks, next to the baseline and the paper."""
    rows = []
    names = [(*row, STRONG * (row[0] in AT_PAPER_STRENGTH)) for row in PAPER_ROWS if row != ("baseline", None)]
    names += [("hidden", None, INFILL), ("hidden", None, WEAK), *((method, None, "") for method in CONTROLS)]
    for method, calibrator, setting in names:
        t = against_baseline(method, calibrator, setting)
        if len(t):
            ece, base = t["ece_classwise"], t["base_ece_classwise"]
            rows.append([
                title(method, calibrator) + setting, str(len(t)),
                over_tasks(100 * (t["accuracy"] - t["base_accuracy"]), 1),
                f"{short(base.mean())} → {short(ece.mean())}", over_tasks(ece - base, 3), relative_change(ece, base),
                MISSING if t["paper"].isna().any() else relative_change(t["paper"], t["base_paper"]),
                MISSING if calibrator else over_tasks(t["nll"] - t["base_nll"], 3),
            ])  # fmt: skip
    header = ["method", "tasks", "accuracy, points", "class-wise ECE, baseline → method", "difference", "change"]
    return markdown([*header, "paper's change on these tasks", "NLL, both with temperature (dev)"], rows)


def relative_change(values: pd.Series, base: pd.Series) -> str:
    """The change of the mean over tasks."""
    return f"{100 * (values.mean() / base.mean() - 1):+.0f}%"


def over_tasks(differences: pd.Series, digits: int) -> str:
    """The mean of one difference per task, with its 95% t interval if there are at least three."""
    mean, n = differences.mean(), len(differences)
    if n < 3:
        return f"{mean:+.{digits}f}"
    half = stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / n**0.5
    return f"{mean:+.{digits}f} [{mean - half:+.{digits}f}, {mean + half:+.{digits}f}]"


def larger() -> str:
    """An encoder five times as large (tasks named NAME-mpnet, NAME-mpnet-paper)."""
    cells, rows = Cells("study"), []
    settings = [("baseline", ""), ("label-smoothing", ""), ("hidden", ""), ("hidden", STRONG), ("sharp-hidden", STRONG)]
    for task, (method, setting) in itertools.product(TASKS, settings):
        place = (f"{task}-mpnet{'-paper' if setting else ''}", method)
        if cells.value(*place, None, "accuracy") is not None:
            values = [cells.value(*place, None, m) for m in ("accuracy", "ece_classwise", "ece_top_label", "nll")]
            values += [cells.value(*place, "temperature (dev)", m) for m in ("ece_top_label", "nll")]
            rows.append([f"{TASKS[task][0]} ({n_train(cells, task):,})", method + setting, *map(short, values)])
    header = ["task (rows)", "method", "accuracy", "class-wise ECE", "top-label ECE", "NLL"]
    return markdown([*header, "top-label ECE with temperature (dev)", "NLL with temperature (dev)"], rows)


def infill() -> str:
    """The paper's noise next to splices, at the paper's λ."""
    cells, noise, rows = Cells("study"), load("study", "detection"), []
    settings = {"baseline": ("", "baseline"), "hidden, λ = 1, splice": ("-paper", "hidden")}
    settings |= {"hidden, λ = 1, infill:smollm2": ("-paper-infill", "hidden")}
    for task in [t for t in TASKS if cells.value(f"{t}-paper-infill", "hidden", None, "accuracy") is not None]:
        for name, (suffix, method) in settings.items():
            place = (f"{task}{suffix}", method)
            auroc = noise[(noise["task"] == place[0]) & (noise["method"] == method) & (noise["seed"] == 1)]
            auroc = auroc.loc[(auroc["texts"] == "noise") & (auroc["score"] == "energy"), "auroc"]
            values = [cells.value(*place, None, m) for m in ("accuracy", "matthews", "ece_classwise", "ece_top_label")]
            values += [cells.value(*place, "temperature (dev)", "nll"), *auroc[:1]]
            line = [f"{TASKS[task][0]} ({n_train(cells, task):,})", name, *map(short, values)]
            rows.append(line + [MISSING] * (8 - len(line)))
    header = ["task (rows)", "method, noise", "accuracy", "Matthews", "class-wise ECE", "top-label ECE"]
    return markdown([*header, "NLL with temperature (dev)", "noise AUROC"], rows)


def seeds() -> str:
    """Baseline and `hidden` where several seeds are finished: mean and range over seeds, both with a temperature."""
    cells = Cells("study", "cross_fit")
    rows = []
    for task in [t for t in cells.tasks("baseline", "hidden") if t != "wnli"]:
        both = [s for s in range(1, 10) if cells.value(task, "hidden", None, "nll", seed=s) is not None
                and cells.value(task, "baseline", None, "nll", seed=s) is not None]  # fmt: skip
        if len(both) < 2:
            continue
        for metric, calibrator in (("accuracy", None), ("ece_top_label", None), ("nll", "temperature (dev)")):
            b, h = (np.array([cells.value(task, m, calibrator, metric, seed=s) for s in both]) for m in
                    ("baseline", "hidden"))  # fmt: skip
            shown = metric.replace("ece_top_label", "top-label ECE").replace("nll", "NLL")
            rows.append([
                f"{TASKS[task][0]} ({n_train(cells, task):,})", title(shown, calibrator), str(len(both)),
                *(f"{short(v.mean())} ({short(v.min())} to {short(v.max())})" for v in (b, h)),
                " ".join(f"{v:+.3f}" for v in h - b),
            ])  # fmt: skip
    if not rows:
        return "No task has several seeds of both methods yet; second seeds of baselines are under Cross-fitting."
    return markdown(
        [
            "task (rows)",
            "metric",
            "seeds",
            "baseline: mean (range)",
            "hidden: mean (range)",
            "hidden − baseline, by seed",
        ],
        rows,
    )


def finished() -> str:
    """The seeds that are finished, by task and method."""
    cells = Cells("study", "cross_fit")
    methods = {"baseline": "", "hidden": "", "label-smoothing": "", "poscal": ""}
    methods |= {f"{m}{STRONG}": "-paper" for m in AT_PAPER_STRENGTH}
    cross_fitted = load("cross_fit", "temperatures")
    rows = []
    for task in cells.tasks("baseline"):
        line = [f"{TASKS[task][0]} ({n_train(cells, task):,})"]
        for name, suffix in methods.items():
            place = (f"{task}{suffix}", name.removesuffix(STRONG), None, "accuracy")
            line.append(", ".join(str(s) for s in range(1, 10) if cells.value(*place, seed=s) is not None) or MISSING)
        of_task = cross_fitted[(cross_fitted["task"] == task) & (cross_fitted["method"] != "frozen-probe")]
        line.append(", ".join(sorted(set(of_task["method"]))) or MISSING)
        rows.append(line)
    return markdown(["seeds of", *methods, "cross-fitted"], rows)


def curves() -> str:
    """Class-wise ECE during training, when methods have the same accuracy: the highest that all of a task reach."""
    found, rows = load("study", "curves"), []
    for task in TASKS:
        of_task = found[found["task"].isin([task, f"{task}-paper"])] if len(found) else found
        best = of_task.groupby(["task", "model"])["accuracy"].max() if len(of_task) else of_task
        if len(of_task) and (of_task["method"] == "baseline").any() and len(best) > 1:
            for (place, model), curve in of_task.groupby(["task", "model"], sort=False):
                first = curve[curve["accuracy"] >= best.min() - 1e-9].iloc[0]
                method, _, seed = model.rpartition("-seed")
                rows.append([
                    f"{TASKS[task][0]} ({n_train(Cells('study'), task):,})",
                    f"{method}{STRONG * place.endswith('-paper')}, seed {seed}", short(best.min()),
                    f"{int(first['step']):,} of {int(curve['step'].max()):,}", short(first["ece_classwise"]),
                    short(curve["ece_classwise"].iloc[-1]),
                ])  # fmt: skip
    header = ["task (rows)", "method", "accuracy that all reach", "after steps", "class-wise ECE then", "at the end"]
    return markdown(header, rows)


def results() -> str:
    """Every task and method: accuracy, both ECEs with intervals, NLL, ranking, behaviour on errors."""
    cells = Cells("study")
    header = [
        "task (rows)", "method", "accuracy", "class-wise ECE", "top-label ECE", "NLL", "confidence on errors",
        "accuracy at 80% coverage", "AURC",
    ]  # fmt: skip
    rows = []
    for task in cells.tasks("baseline"):
        for method, calibrator in dict.fromkeys([*PAPER_ROWS, *EXTRA_ROWS]):
            if cells.value(task, method, calibrator, "accuracy") is None:
                continue
            line = [f"{TASKS[task][0]} ({n_train(cells, task):,})", title(method, calibrator)]
            for metric in ("accuracy", "ece_classwise", "ece_top_label"):
                row = cells.row(task, method, calibrator, metric)
                line.append(f"{short(row['value'])} [{short(row['low'])}, {short(row['high'])}]")
            for metric in ("nll", "confidence_on_errors", "accuracy_at_coverage", "aurc"):
                line.append(short(cells.value(task, method, calibrator, metric)))
            rows.append(line)
    return markdown(header, rows)


def detection() -> str:
    """Out-of-scope detection on CLINC150: AUROC and FPR at 95% recall by score."""
    found = load("study", "detection")
    found = found[found["texts"].isin(["ood_out_of_scope", "ood_captions"])] if len(found) else found
    found = found[(found["method"] != "frozen-probe") | (found["score"] != "energy")]  # the probe has no energy
    found = found[(found["method"] != "frozen-probe") | found["task"].isin(TASKS)]  # the same in both
    found = found.sort_values("task", key=lambda t: t.str.removesuffix("-paper"), kind="stable")
    header = ["task (rows)", "texts", "method", "score", "AUROC", "FPR at 95% recall"]
    rows = [
        [
            f"{shown_name(r.task)} ({r.n_train:,})",
            r.texts.removeprefix("ood_").replace("_", "-"),
            r.method + next((name for name, end in SUFFIXES.items() if end and r.task.endswith(end)), ""), r.score,
            f"{short(r.auroc)} [{short(r.low)}, {short(r.high)}]", short(r.fpr95),
        ]
        for r in found.itertuples()
    ]  # fmt: skip
    return markdown(header, rows)


def shift() -> str:
    """Sentiment and entailment models on texts of another domain, nothing refitted."""
    study, recipe = Cells("study"), Cells("recipe")
    places = [(study, task, task, ("baseline", "label-smoothing", "hidden")) for task in study.tasks("baseline")]
    places += [(study, f"{task}-paper", task, AT_PAPER_STRENGTH) for task in study.tasks("baseline")]
    # The default of `hidden` on 500 rows.
    places += [(recipe, "sst2", "sst2", ("baseline",)), (recipe, "sst2-every-4", "sst2", ("hidden",))]
    rows = []
    for cells, place, task, methods in places:
        sets = sorted({s for s in cells.table.loc[cells.table["task"] == place, "test_set"] if s.startswith("shift_")})
        for method in methods:
            own = cells.row(place, method, None, "accuracy")
            if sets and own is not None:
                name = f"{TASKS[task][0]} ({int(own['n_train']):,})"
                line = [name, method + STRONG * place.endswith("-paper"), short(own["value"])]
                for test_set in sets:
                    pair = (
                        cells.value(place, method, None, m, test_set=test_set) for m in ("accuracy", "ece_classwise")
                    )
                    line.append(f"{test_set.removeprefix('shift_')} {' / '.join(map(short, pair))}")
                rows.append(line)
    width = max((len(r) for r in rows), default=3)
    header = ["task (rows)", "method", "own test set", *["shifted set: accuracy / class-wise ECE"] * (width - 3)]
    return markdown(header, [r + [MISSING] * (width - len(r)) for r in rows])


#: Settings of the trials in results/recipe: suffix of the task, method -> how it is shown.
RECIPES = {
    ("-every-4", "hidden"): "λ = .1",
    ("-weight-0.03", "hidden"): "λ = .03, the default",
    ("-strong", "hidden"): "λ = 1 in every step",
    ("-spared", "hidden-spared"): "λ = .1, last layer spared",
    ("-strong", "hidden-spared"): "λ = 1 in every step, last layer spared",
    ("-mixture", "hidden"): "noise `splice, unrelated`",
    ("-unrelated", "hidden"): "noise `unrelated` in every step",
    ("-unrelated-every-4", "hidden"): "noise `unrelated`",
    ("-every-4", "scalar"): "`scalar`",
}


def recipe() -> str:
    """Settings of `hidden` minus the baseline, means over the seeds of both: on calibration rows and on test rows."""
    found, rows = recipe_measurements(), []
    for task, size, (suffix, method) in itertools.product(("clinc150", "sst2", "cola", "mnli"), ("", "-2k"), RECIPES):
        place = (f"{task}{size}{suffix}", method)
        if place in found.index:
            changes = (found.loc[place] - found.loc[f"{task}{size}", "baseline"]).dropna(how="all")
            n_train = int(load("recipe").query("task == @place[0]")["n_train"].iloc[0])
            cells = [with_range(changes[name].to_numpy(), digits) for name, digits in RECIPE_COLUMNS.items()]
            rows.append([f"{NAMES[task]} ({n_train:,})", RECIPES[suffix, method], str(len(changes)), *cells])
    return markdown(["task (rows)", "setting", "seeds", *RECIPE_COLUMNS], rows)


#: Columns of the table of settings, and their digits.
RECIPE_COLUMNS = {
    "accuracy, points": 1, "NLL with temperature": 3, "OOS AUROC by energy": 3,
    "test accuracy, points": 1, "test NLL with temperature": 3, "accuracy on shifted texts, points": 1,
}  # fmt: skip


def recipe_measurements() -> pd.DataFrame:
    """What `RECIPE_COLUMNS` shows, by task, method and seed."""
    keys = ["task", "method", "seed"]
    chosen, tested = load("recipe", "calibration").set_index(keys), Cells("recipe").table.dropna(subset="seed")
    test = {
        (metric, calibrator): tested[
            (tested["metric"] == metric) & (tested["calibrator"] == calibrator) & (tested["test_set"] == "test")
        ].set_index(keys)["value"]
        for metric, calibrator in (("accuracy", ""), ("nll", "temperature (dev)"))
    }
    shifted = tested[(tested["metric"] == "accuracy") & tested["test_set"].str.startswith("shift_")]
    columns = [
        100 * chosen["accuracy"], chosen["nll_temperature"], chosen["auroc_ood_out_of_scope_val_by_energy"],
        100 * test["accuracy", ""], test["nll", "temperature (dev)"], 100 * shifted.groupby(keys)["value"].mean(),
    ]  # fmt: skip
    return pd.concat([c[~c.index.duplicated()] for c in columns], axis=1, keys=list(RECIPE_COLUMNS)).sort_index()


def with_range(values: np.ndarray, digits: int) -> str:
    """The mean and the range of differences."""
    values = values[~np.isnan(values)]
    if not len(values):
        return MISSING
    low, high = (f"{v:+.{digits}f}" for v in (values.min(), values.max()))
    return f"{values.mean():+.{digits}f} ({low} to {high})" if len(values) > 1 else f"{values.mean():+.{digits}f}"


#: Settings of the trials in results/energy: suffix of the task -> name.
STRENGTHS = {
    "": "λ = .1, falling to 0",
    "-published": "λ = .1, falling to 0, not centred",
    "-strong": "λ = .4",
    "-strong-published": "λ = .4, not centred",
    "-paper": "λ = 1",
}


def energy() -> str:
    """Strength and centring of the energy over the number of classes, on test rows."""
    cells, seen = Cells("energy"), load("energy", "detection")
    rows = []
    for task, name in {"sst2": "2 (SST-2)", "clinc10": "10", "clinc50": "50", "clinc150": "150"}.items():
        for suffix, setting in {None: "baseline", **STRENGTHS}.items():
            place = (f"{task}{suffix or ''}", "baseline" if suffix is None else "hidden")
            if cells.value(*place, None, "accuracy") is None:
                continue
            texts = "ood_captions" if task == "sst2" else "ood_out_of_scope"
            is_row = (seen["task"] == place[0]) & (seen["method"] == place[1]) & (seen["texts"] == texts)
            values = [cells.value(*place, None, m) for m in ("accuracy", "ece_top_label")]
            values.append(cells.value(*place, "temperature (dev)", "nll"))
            values.append(float(seen.loc[is_row & (seen["score"] == "energy"), "auroc"].iloc[0]))
            kitchen = cells.value(*place, None, "accuracy", test_set="shift_kitchen")
            rows.append([name, setting, *map(short, [*values, kitchen])])
    header = ["classes", "training", "accuracy", "top-label ECE", "NLL with temperature", "OOD AUROC by energy"]
    return markdown([*header, "accuracy on kitchen reviews"], rows)


def strength() -> str:
    """The paper's methods at its strength: accuracy / class-wise ECE as trained, and the NLL with a temperature."""
    cells = Cells("energy")
    methods = {"baseline": "", "poscal": "", "scalar": "-paper", "hidden": "-paper", "sharp-hidden": "-paper"}
    tasks, rows = ("sst2", "cola", "clinc150"), []
    for method, suffix in methods.items():
        line = [method + (STRONG if suffix else "")]
        for task in (f"{task}{suffix}" for task in tasks):
            values = [cells.value(task, method, None, m) for m in ("accuracy", "ece_classwise")]
            values.append(cells.value(task, method, "temperature (dev)", "nll"))
            line.append(MISSING if values[0] is None else " / ".join(map(short, values)))
        rows.append(line)
    return markdown(["method", *(NAMES[task] for task in tasks)], rows)


def fold_temperatures() -> pd.DataFrame:
    """Temperatures of cross-fitted models and their test results; the number of folds instead of "all folds"."""
    found = load("cross_fit", "temperatures").sort_values(["task", "method"], kind="stable")
    n_folds = np.where(found["task"].str.endswith("-halves"), "two folds", "five folds")
    return found.assign(fitted_on=found["fitted_on"].mask(found["fitted_on"] == "all folds", n_folds))


def cross_fit() -> str:
    """Cross-fitted temperature next to a temperature from the calibration split."""
    header = ["task", "method", "temperature from", "rows", "T", "accuracy", "class-wise ECE", "top-label ECE", "NLL"]
    metrics = ("accuracy", "ece_classwise", "ece_top_label", "nll")
    rows = [
        [
            *(f"{shown_name(r.task)} ({r.n_train:,})", r.method, r.fitted_on, f"{r.n_rows:,}"),
            *(f"{r.temperature:.2f}", *(short(getattr(r, metric)) for metric in metrics)),
        ]
        for r in fold_temperatures().itertuples()
    ]
    return markdown(header, rows)


def label_issues() -> str:
    """Flipped labels that are found."""
    found = load("label_issues", "label_issues")
    header = ["task (rows)", "method", "suspects", "precision", "recall", "found in the top 10%"]
    rows = [
        [f"{r.task} ({r.rows:,})", r.method, str(r.suspects), short(r.precision), short(r.recall),
         f"{100 * r.recall_top_10_percent:.0f}%"]
        for r in found.itertuples()
    ]  # fmt: skip
    return markdown(header, rows)


def _pairs(cells: Cells, metric: str, ours: tuple[str, str | None], theirs: tuple[str, str | None]) -> pd.DataFrame:
    """A metric of two methods on every task that has both; WNLI is left out, where no method beats chance."""
    rows = [(t, cells.value(t, *ours, metric), cells.value(t, *theirs, metric)) for t in TASKS if t != "wnli"]
    return pd.DataFrame(rows, columns=["task", "ours", "theirs"]).dropna()


def paired(task: str, place: str, method: str) -> pd.Series | None:
    """Mean paired difference to the baseline with 95% intervals: accuracy and NLL, both with a temperature."""
    logits, labels = {}, None
    fitted = load("study", "calibration").set_index(["task", "model"])["temperature"]
    for name, at in ((f"{method}-seed1", place), ("baseline-seed1", task)):
        path = predictions_of(at, name.removesuffix("-seed1"))
        if not path.exists():
            return None
        p = Predictions.read(path)
        logits[name], labels = p.logits / fitted[at, name], p.labels
    rows = np.arange(len(labels))
    ours, theirs = ((z.argmax(axis=1) == labels, -log_softmax(z, axis=1)[rows, labels]) for z in logits.values())
    found = {}
    for metric, a, b in zip(("accuracy", "nll"), ours, theirs, strict=True):
        difference = a.astype(float) - b.astype(float)
        half = 1.96 * difference.std(ddof=1) / len(rows) ** 0.5
        found |= {metric: difference.mean(), f"{metric}_low": difference.mean() - half}
        found |= {f"{metric}_high": difference.mean() + half}
    return pd.Series(found)


def differences() -> str:
    """Methods minus the baseline: accuracy, top-label ECE as trained, NLL with a temperature."""
    cells, rows = Cells("study"), []
    settings = [(method, "", "") for method in COMPARED] + [(method, STRONG, "-paper") for method in AT_PAPER_STRENGTH]
    for method, setting, suffix in settings:
        for task in [t for t in cells.tasks("baseline") if t != "wnli"]:
            found = paired(task, place := f"{task}{suffix}", method)
            if found is None:
                continue
            ece = [cells.value(*of, None, "ece_top_label") for of in ((place, method), (task, "baseline"))]
            intervals = [f"{found[m]:+.3f} [{found[f'{m}_low']:+.3f}, {found[f'{m}_high']:+.3f}]" for m in METRICS]
            name = f"{TASKS[task][0]} ({n_train(cells, task):,})"
            rows.append([method + setting, name, *intervals, f"{ece[0] - ece[1]:+.3f}"])
    return markdown(["minus baseline", "task (rows)", "accuracy", "NLL with temperature", "ECE as trained"], rows)


def _table(name: str) -> str:
    """A link to a table."""
    return f"[table](study-tables.md#{name})"


def findings() -> str:
    """What holds, a sentence each."""
    cells, crossed = Cells("study"), default_temperatures()
    scaled = _pairs(cells, "ece_top_label", ("baseline", "temperature (dev)"), ("baseline", None))
    nll = crossed[crossed["method"] == "baseline"].pivot(
        index=["name", "seed"], columns="fitted_on", values="nll"
    )  # fmt: skip
    change = {m: _mean_change(m, None, STRONG) for m in AT_PAPER_STRENGTH}
    accuracy = _pairs(cells, "accuracy", ("hidden", None), ("baseline", None))
    weak = _pairs(cells, "nll", ("hidden", "temperature (dev)"), ("baseline", "temperature (dev)"))
    oos = load("study", "detection").query("texts == 'ood_out_of_scope' and seed == 1").set_index(
        ["task", "method", "score"]
    )["auroc"]  # fmt: skip
    lines = [
        "**A temperature does most of the work.** Mean top-label ECE of the baseline: "
        f"{short(scaled['theirs'].mean())} as trained, {short(scaled['ours'].mean())} with a temperature "
        f"({_table('all-results')}).",
        f"**The temperature needs no extra rows.** Mean NLL of {len(nll)} baselines: "
        f"{short(nll['cross-fitted'].mean())} with a cross-fitted temperature, "
        f"{short(nll['calibration split'].mean())} with one from extra rows ({_table('cross-fitting')}).",
        f"**The paper's λ lowers the calibration error as trained.** Mean class-wise ECE: `scalar` {change['scalar']}, "
        f"`hidden` {change['hidden']}, `sharp-hidden` {change['sharp-hidden']} ({_table('means-over-tasks')}).",
        f"**A weak energy costs nothing but time.** `hidden` with λ = .1, {len(accuracy)} combinations of task and "
        f"rows: {100 * (accuracy['ours'] - accuracy['theirs']).mean():+.1f} points of accuracy; NLL with a temperature "
        f"{(weak['ours'] - weak['theirs']).mean():+.3f} ({_table('differences-from-the-baseline')}).",
        "**A plain baseline detects out-of-scope queries.** CLINC150: AUROC "
        f"{short(oos['clinc150', 'baseline', 'energy'])} by energy, {short(oos['clinc150', 'baseline', 'max_prob'])} "
        f"by maximum probability ({_table('out-of-distribution-texts')}).",
    ]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))


def _mean_change(method: str, calibrator: str | None, setting: str) -> str:
    """The relative change of the mean class-wise ECE over the finished tasks."""
    t = against_baseline(method, calibrator, setting)
    n_missing = len(against_baseline("baseline", None, "")) - len(t)
    return relative_change(t["ece_classwise"], t["base_ece_classwise"]) + (f" ({len(t)} tasks)" if n_missing else "")


def _infill_finding() -> str:
    """The paper's λ and noise: mean change of the accuracy, next to splices on the same tasks and rows."""
    found = (against_baseline("hidden", None, setting, TASKS) for setting in (INFILL, STRONG))
    ours, splices = (100 * (t["accuracy"] - t["base_accuracy"]) for t in found)
    both = ours.index.intersection(splices.index)
    return (
        f"**The paper's noise is not clearly better than splices.** Accuracy of `hidden` with λ = 1, {len(both)} "
        f"combinations of task and rows: {over_tasks(ours[both], 1)} points, {over_tasks(splices[both], 1)} with "
        f"splices ({_table('the-papers-noise')})."
    )


def refuted() -> str:
    """What does not hold, in the same form."""
    cells = Cells("study")
    plain, scaled, default = ("baseline", None), ("baseline", "temperature (dev)"), ("hidden", None)
    ours, theirs = (_pairs(cells, "ece_top_label", default, plain)[x].mean() for x in ("ours", "theirs"))
    energy = load("study", "detection").query("texts == 'ood_out_of_scope' and seed == 1 and score == 'energy'")
    energy = energy.set_index(["task", "method"])["auroc"]
    means = {m: against_baseline(m, None, STRONG)["ece_classwise"] for m in AT_PAPER_STRENGTH}
    shared = sorted(set.intersection(*(set(m.index) for m in means.values())))
    by_method = ", ".join(f"`{m}` {short(values[shared].mean())}" for m, values in means.items())
    controls = {m: _mean_change(m, None, "") for m in ("poscal", *CONTROLS) if len(against_baseline(m, None, ""))}
    unsafe = [cells.value("clinc150", m, None, "ece_top_label") for m in ("baseline", "label-smoothing", "laplace")]
    probe = _pairs(cells, "ece_top_label", ("frozen-probe", None), plain)[["ours", "theirs"]].mean()
    settings = recipe_measurements()
    strong = [
        (settings.loc[f"{task}-strong", method] - settings.loc[task, "baseline"]).mean()["test NLL with temperature"]
        for task, method in (("sst2", "hidden"), ("clinc150", "hidden"), ("clinc150", "hidden-spared"))
    ]
    lines = [
        f"**A weak energy does not calibrate.** `hidden`, λ = .1, falling to 0: mean top-label ECE {short(theirs)} → "
        f"{short(ours)} ({_table('differences-from-the-baseline')}).",
        _infill_finding(),
        f"**The paper's ranking of its energies.** Mean class-wise ECE over {len(shared)} tasks: {by_method}; the "
        f"differences are within the noise ({_table('means-over-tasks')}).",
        "**The energy-based model is not better than its cheap alternatives.** Change of the class-wise ECE: "
        f"{', '.join(f'`{m}` {change}' for m, change in controls.items())}; a temperature "
        f"{_mean_change(*scaled, '')} ({_table('means-over-tasks')}).",
        "**No strength fits all tasks.** λ = 1 in every step, 500 rows, three seeds: the NLL with a temperature "
        f"changes by {strong[0]:+.3f} on SST-2 and {strong[1]:+.3f} on CLINC150 ({strong[2]:+.3f} if the last layer is "
        "spared) "
        f"({_table('the-recipe-of-hidden')}).",
        "**Training with noise does not improve OOD detection.** Out-of-scope queries, AUROC by energy: baseline "
        f"{short(energy['clinc150', 'baseline'])}, `hidden` with λ = .03 "
        f"{short(energy['clinc150-weight-0.03', 'hidden'])}, with λ = 1 {short(energy['clinc150-paper', 'hidden'])} "
        f"({_table('out-of-distribution-texts')}).",
        "**Label smoothing and Laplace are not safe defaults.** With 150 classes, where the baseline is calibrated, "
        f"they raise the top-label ECE from {short(unsafe[0])} to {short(unsafe[1])} and {short(unsafe[2])} "
        f"({_table('all-results')}).",
        "**Finetuning does not improve calibration.** Mean top-label ECE: logistic regression on the frozen encoder "
        f"{short(probe['ours'])}, finetuned {short(probe['theirs'])} ({_table('all-results')}).",
    ]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))


BLOCKS: dict[str, Callable[[], str]] = {
    "study-headline": headline,
    "study-findings": findings, "study-paper": paper, "study-results": results,
    "study-detection": detection, "study-shift": shift, "study-recipe": recipe, "study-cross-fit": cross_fit,
    "study-label-issues": label_issues, "study-energy": energy, "study-differences": differences,
    "study-strength": strength, "study-ranking": ranking, "study-seeds": seeds, "study-larger": larger,
    "study-curves": curves, "study-refuted": refuted, "study-infill": infill,
    "study-finished": finished,
}  # fmt: skip

#: Colour of a method in the plots (Okabe-Ito).
COLOURS = {
    "baseline": "#0072b2", "baseline + temperature (dev)": "#56b4e9",
    "hidden": "#d55e00", "hidden + temperature (dev)": "#e69f00",
}  # fmt: skip

#: Background of the plots: the pages they are for.
PAGES = {"white": "light", "#1e2129": "dark"}


def draw_ece() -> None:
    """Top-label ECE per task with intervals."""
    import matplotlib.pyplot as plt

    cells = Cells("study")
    tasks = cells.tasks("baseline")
    figure, axes = plt.subplots(figsize=(7.5, 0.75 * len(tasks) + 1.4))
    for number, (method, calibrator) in enumerate(HEADLINE):
        name = title(method, calibrator)
        found = [(y, cells.row(t, method, calibrator, "ece_top_label")) for y, t in enumerate(tasks)]
        found = [(y + (number - 1.5) * 0.17, row) for y, row in found if row is not None]
        values = [row["value"] for _, row in found]
        errors = [
            [max(0.0, r["value"] - r["low"]) for _, r in found],
            [max(0.0, r["high"] - r["value"]) for _, r in found],
        ]
        if found:
            places = [y for y, _ in found]
            axes.errorbar(values, places, xerr=errors, fmt="o", ms=4, color=COLOURS[name], label=name, capsize=2)
    axes.set_yticks(range(len(tasks)), [f"{TASKS[t][0]} ({n_train(cells, t):,} rows)" for t in tasks])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("top-label ECE on the test rows (95% intervals); lower is better")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    save(figure, "study-ece")


def draw_rows() -> None:
    """NLL of the baseline minus that of `hidden`, both with a temperature, against the number of training rows."""
    import matplotlib.pyplot as plt

    cells = Cells("study")
    tasks = [t for t in cells.tasks("baseline", "hidden") if t != "wnli"]
    found = [(t, f) for t in (*tasks, *SCALING) if (f := paired(t, t, "hidden")) is not None]
    figure, axes = plt.subplots(figsize=(6.5, 3.6))
    for number, task in enumerate(dict.fromkeys(shown_name(t) for t, _ in found)):
        of_task = sorted(
            (n_train(cells, t), f["nll"], f["nll_low"], f["nll_high"]) for t, f in found if shown_name(t) == task
        )
        n, values, low, high = np.array(of_task).T
        rows = n * 1.03 ** (number - 3)  # side by side
        axes.errorbar(rows, -values, yerr=[high - values, values - low], fmt="o-", ms=4, capsize=2, label=task)
    axes.axhline(0, color="#888888", lw=1)
    axes.set_xscale("log")
    ticks = [200, 500, 1000, 2000, 5000, 10_000, 20_000, 67_000]
    axes.set_xticks(ticks, [f"{rows:,}" for rows in ticks])
    axes.minorticks_off()
    axes.set_xlabel("training rows")
    axes.set_ylabel("NLL of baseline − hidden\n(both with temperature; above 0: hidden is better)")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, "study-rows")


def save(figure, name: str) -> None:
    """An SVG file with its own background, named after the style of the page that it is for."""
    import matplotlib

    path = ASSETS / f"{name}-{PAGES[matplotlib.rcParams['figure.facecolor']]}.svg"
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    import matplotlib.pyplot as plt

    for paper in PAGES:
        with plt.style.context(["default", *["dark_background"][: PAGES[paper] == "dark"]]):
            plt.rcParams.update(dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper))
            draw_ece()
            draw_rows()
