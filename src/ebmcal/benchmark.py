"""`ebmcal benchmark`: tasks × methods × seeds from one YAML file, and the paper's tables.

output: runs/glue
tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]
encoder: roberta-base          # any setting of a run: for all tasks

`load_benchmark` reads and checks the file, `run_benchmark` runs what is not done yet, `gather` reads the run
directories. Written to the output directory: `benchmark.json`, `benchmark.md`, `benchmark.tex`, `results.csv` (one row
per model, calibrator and test set) and `report.html`.
"""

import contextlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from ebmcal.config import RunConfig, load_config, read_yaml
from ebmcal.data.tasks import find_task
from ebmcal.errors import EbmcalError, Interrupted, unknown_name
from ebmcal.evaluation import Evaluation
from ebmcal.metrics import HEADLINE_METRICS, holm, mean_of_tests
from ebmcal.progress import Reporter, make_reporter
from ebmcal.reports.page import Block, Column, Page, Section, Table, write_page
from ebmcal.reports.run_data import read_results
from ebmcal.reports.tables import (
    Key,
    comparison_rows_table,
    is_ensemble,
    list_test_sets,
    metric_title,
    over_seeds,
    row_name,
    task_metric,
)
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import read_json, write_json, write_text

EXAMPLE = "for example `tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]`"

#: Settings that belong to a single task.
TASK_SETTINGS = ("task", "train", "calibration", "test")

#: A setting of a task replaces these shared ones, which say the same in another way.
REPLACES = {
    "train": ("data_dir", "hub"), "data_dir": ("hub",), "hub": ("data_dir",),
    "steps": ("epochs",), "epochs": ("steps",),
}  # fmt: skip

#: What the paper defines, and what the authors' scripts compute.
ECES = {"ece_classwise": "class-wise ECE", "ece_top_label": "top-label ECE"}

ACROSS_NOTE = (
    "Model minus reference, mean over the tasks that have both, with 95% interval over their seeds and rows. The "
    "interval describes these tasks, not others. p (Holm) is adjusted for all tests of this table."
)
#: Characters of the reason of a failure.
LONGEST_REASON = 400


@dataclass(frozen=True)
class BenchmarkTask:
    """One run of a benchmark; only a selected task is run."""

    name: str
    config: RunConfig
    is_selected: bool = True

    @property
    def directory(self) -> RunDir:
        assert self.config.output is not None
        return RunDir(self.config.output)

    @property
    def trials(self) -> list[Trial]:
        return [Trial(method, seed) for seed in self.config.seeds for method in self.config.methods]


@dataclass(frozen=True)
class Benchmark:
    """The output directory and all tasks of the file."""

    output: Path
    tasks: tuple[BenchmarkTask, ...]

    @property
    def selected(self) -> list[BenchmarkTask]:
        return [task for task in self.tasks if task.is_selected]


def load_benchmark(path: Path, output: Path | None = None, only: Sequence[str] = ()) -> Benchmark:
    """Read and check a benchmark: settings, models and data of all tasks. One error lists all mistakes.

    `output` replaces that of the file. Tasks that `only` does not name are not selected; their data is not needed.

        load_benchmark(Path("benchmarks/glue-small.yaml"), only=["rte"])
    """
    shared, mistakes = read_yaml(path), dict[str, list[str]]()  # mistake → where it was made

    @contextlib.contextmanager
    def collect(place: str) -> Iterator[None]:
        try:
            yield
        except EbmcalError as error:
            mistakes.setdefault(str(error), []).append(place)

    written, entries = output or shared.pop("output", None), shared.pop("tasks", None)
    shared.pop("output", None)
    with collect("output"):
        if not isinstance(written, str | Path):
            raise EbmcalError(f"expected a directory, got {written!r}; write `output: runs/NAME` or use --output.")
    for name in set(TASK_SETTINGS) & set(shared):
        # `calibration: cross-fit` or `holdout` is a way to calibrate, not a file.
        if name != "calibration" or shared[name] not in ("auto", "cross-fit", "holdout"):
            del shared[name]
            with collect("all tasks"):
                raise EbmcalError(f"{name} belongs to one task; put it under tasks, {EXAMPLE}.")
    own: dict[str, dict[str, Any]] = {}
    with collect("tasks"):
        if not isinstance(entries, list) or not entries:
            raise EbmcalError(f"expected a list of tasks, {EXAMPLE}, got {type(entries).__name__}.")
        for number, entry in enumerate(entries, start=1):
            with collect(f"entry {number} of tasks"):
                name, settings = _named_settings(entry)
                if name.lower() in map(str.lower, own):
                    raise EbmcalError(f"two tasks are called {name}; give one of them another `name`.")
                own[name] = settings
    names = {name.lower(): name for name in own}
    with collect("--only"):
        for unknown in [name for name in only if name.lower() not in names]:
            raise unknown_name("task of this benchmark", unknown, own)
    selected, tasks = {names.get(name.lower()) for name in only or own}, []
    for name, settings in own.items():
        values = {**_inherited(shared, settings), **settings, "output": Path(str(written)).expanduser() / name}
        with collect(name):
            task = BenchmarkTask(name, load_config(None, values), name in selected)
            if task.is_selected:
                check_task(task)
            tasks.append(task)
    if mistakes:
        lines = [f"{', '.join(places)}: {what}".replace("\n", "\n    ") for what, places in mistakes.items()]
        raise EbmcalError("\n  - ".join([f"The benchmark {path} has mistakes; nothing was started:", *lines]))
    return Benchmark(Path(str(written)).expanduser(), tuple(tasks))


def check_task(task: BenchmarkTask) -> None:
    """Raise what would stop the run: encoder, data, noise, settings."""
    from ebmcal.pipeline import prepare

    prepare(task.config, Reporter())


def _named_settings(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name of an entry, which becomes a directory, and its settings."""
    if not isinstance(entry, str | Mapping):
        raise EbmcalError(f"expected a name or settings, {EXAMPLE}, got {entry!r}.")
    entry = {"task": entry} if isinstance(entry, str) else entry
    settings = {str(key).replace("-", "_"): value for key, value in entry.items()}
    if "output" in settings:
        raise EbmcalError("output is set once for the whole benchmark; each task gets a directory in it.")
    name, train = settings.pop("name", None), settings.get("train")
    if name is None and train is None and settings.get("task") is None:
        raise EbmcalError("expected task (built in: see `ebmcal tasks`) or train (a file), got neither.")
    name = name or (Path(str(train)).stem if train is not None else find_task(str(settings["task"])).name)
    if not re.fullmatch(r"\w[\w.+-]*", str(name)):
        raise EbmcalError(f"the name {name!r} becomes a directory: use letters, digits and . _ - + only.")
    return str(name), settings


def _inherited(shared: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The shared settings that apply to a task with these settings of its own."""
    replaced = {other for name in settings for other in REPLACES.get(name, ())}
    with contextlib.suppress(EbmcalError):
        if settings.get("task") and find_task(str(settings["task"])).folder is None:
            replaced.add("data_dir")  # an installed task; the directory is for the others
    return {name: value for name, value in shared.items() if name not in replaced}


@dataclass(frozen=True)
class Outcome:
    """What is known about a task: its evaluation, the trials that failed, and why its results cannot be read."""

    task: BenchmarkTask
    evaluation: Evaluation | None = None
    failures: Mapping[Trial, str] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> list[Trial]:
        names = set() if self.evaluation is None else set(self.evaluation.results["model"])
        return [trial for trial in self.task.trials if trial.name in names]

    def state(self, trial: Trial) -> str:
        """ "done", "failed: why", "started" or "not run"."""
        if trial in self.done:
            return "done"
        if trial in self.failures:
            return f"failed: {self.failures[trial]}"
        return "started" if self.task.directory.trial(trial).is_dir() else "not run"


def run_benchmark(benchmark: Benchmark, *, progress: bool | None = False) -> list[Outcome]:
    """Run what is not done yet of the selected tasks; results are written after each task.

    A finished task is only evaluated again.

    run_benchmark(load_benchmark(Path("benchmarks/glue-small.yaml")))
    """
    failures: dict[str, dict[Trial, str]] = {}
    for number, task in enumerate(benchmark.selected, start=1):
        reporter = make_reporter(progress, task.directory.log)
        reporter.info(f"{task.name} (task {number} of {len(benchmark.selected)})")
        failures[task.name] = _run_task(task, progress)
        for trial, reason in failures[task.name].items():
            reporter.info(f"{task.name}, {trial.name} failed: {reason}")
        write_results(benchmark.output, gather(benchmark, failures))
    return gather(benchmark, failures)


def _run_task(task: BenchmarkTask, progress: bool | None) -> dict[Trial, str]:
    """Run a task; if it fails, run its trials one by one, so that only those fail that cannot succeed."""
    reason = _run(task.config, progress)
    if reason is None or len(task.trials) == 1:
        return dict.fromkeys(task.trials, reason) if reason else {}
    singles = {t: task.config.model_copy(update={"methods": [t.method], "seeds": [t.seed]}) for t in task.trials}
    reasons = {trial: _run(config, progress) for trial, config in singles.items()}
    return {trial: reason for trial, reason in reasons.items() if reason}


def _run(config: RunConfig, progress: bool | None) -> str | None:
    """Start a run; returns why it failed, or None."""
    from ebmcal.runs import start_run

    try:
        start_run(config, progress=progress)
    except Interrupted:
        raise
    except Exception as error:
        kind = "" if isinstance(error, EbmcalError) else f"{type(error).__name__}: "
        return textwrap.shorten(f"{kind}{error}", LONGEST_REASON, placeholder="…")
    return None


def gather(benchmark: Benchmark, failures: Mapping[str, Mapping[Trial, str]] | None = None) -> list[Outcome]:
    """The outcome of every task; `failures` (task → trial → why) replace those that `benchmark.json` recorded."""
    known: dict[str, Mapping[Trial, str]] = {}
    with contextlib.suppress(EbmcalError, KeyError, TypeError, AttributeError, ValueError):  # absent or edited
        for name, task in read_json(benchmark.output / "benchmark.json")["tasks"].items():
            known[name] = {Trial.parse(trial): why for trial, why in task["failures"].items()}
    known |= failures or {}
    return [_outcome(task, known.get(task.name, {})) for task in benchmark.tasks]


def _outcome(task: BenchmarkTask, failures: Mapping[Trial, str]) -> Outcome:
    if not task.directory.results.exists():
        return Outcome(task, failures=failures)
    try:
        document, evaluation = read_results(task.directory)
    except EbmcalError as error:
        return Outcome(task, failures=dict.fromkeys(task.trials, str(error)))
    metric = find_task(task.config.task).metric if task.config.task else "accuracy"
    evaluation.meta.update({"task": task.name, "task_metric": evaluation.meta.get("task_metric") or metric})
    outcome = Outcome(task, evaluation, document=document)
    return replace(outcome, failures={trial: why for trial, why in failures.items() if trial not in outcome.done})


def headline(outcomes: Sequence[Outcome]) -> str:
    """How many trials are done, failed and open.

    >>> headline([])
    '0 of 0 trials done'
    """
    n_trials, n_done = sum(len(o.task.trials) for o in outcomes), sum(len(o.done) for o in outcomes)
    n_failed = sum(len(o.failures) for o in outcomes)
    n_open = n_trials - n_done - n_failed
    parts = [f"{n_done} of {n_trials} trials done", f"{n_failed} failed" * bool(n_failed)]
    return ", ".join(filter(None, [*parts, f"{n_open} not finished" * bool(n_open)]))


def paper_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Methods × test sets, once with each ECE, then paired comparisons over all tasks; none without results."""
    known = [outcome.evaluation for outcome in outcomes if outcome.evaluation is not None]
    if not known:
        return []
    failed = [f"{o.task.name}, {trial.name} failed and is left out." for o in outcomes for trial in o.failures]
    tables = {f"Performance and {name}": paper_table(known, ece=ece) for ece, name in ECES.items()}
    found = [replace(t, title=title, notes=(*t.notes, *failed)) for title, t in tables.items()]
    across = across_tasks(known)
    return [*found, comparison_rows_table(across, "Over all tasks", (ACROSS_NOTE,))] if across else found


def across_tasks(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Paired tests averaged over tasks, for models that were compared on at least two."""
    frame = pd.concat([evaluation.comparisons for evaluation in evaluations])
    frame = frame[(frame["test_set"] == "test") & frame["standard_error"].notna()]
    keys, tests = ["model", "calibrator", "reference", "metric"], []
    for key, each in frame.groupby(keys, dropna=False, sort=False):
        if len(each) > 1:
            place = {name: value if isinstance(value, str) else None for name, value in zip(keys, key, strict=True)}
            tests.append({**place, "n_tasks": len(each), **asdict(mean_of_tests(each.to_dict("records")))})
    tests.sort(key=lambda test: HEADLINE_METRICS.index(test["metric"]) if test["metric"] in HEADLINE_METRICS else 99)
    adjusted = holm([test["p_value"] for test in tests])
    return [{**test, "p_adjusted": p} for test, p in zip(tests, adjusted, strict=True)]


def failure_table(outcomes: Sequence[Outcome]) -> Table:
    """The trials that failed and why."""
    rows = [(o.task.name, trial.method, trial.seed, why) for o in outcomes for trial, why in o.failures.items()]
    return Table(pd.DataFrame(rows, columns=["Task", "Method", "Seed", "Reason"]), "Failed")


def results_frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per task, model, calibrator and test set; metrics in columns."""
    frames = []
    for outcome in outcomes:
        if outcome.evaluation is None:
            continue
        frame = outcome.evaluation.results
        frame = frame[frame["seed"].notna()].assign(calibrator=frame["calibrator"].fillna(""))
        keys = ["model", "method", "seed", "calibrator", "test_set", "n_rows"]
        wide = frame.pivot(index=keys, columns="metric", values="value").reset_index()
        training, audit = outcome.document.get("training") or {}, outcome.document.get("audit") or {}
        wide.insert(0, "task", outcome.task.name)
        wide.insert(1, "encoder", outcome.task.config.encoder)
        wide.insert(2, "n_train", ((audit.get("splits") or {}).get("train") or {}).get("rows"))
        wide["seconds"] = [(training.get(name) or {}).get("seconds") for name in wide["model"]]
        frames.append(wide)
    return pd.concat(frames) if frames else pd.DataFrame()


def write_results(output: Path, outcomes: Sequence[Outcome]) -> None:
    """Write what is known so far; called after each task, so that an interrupted benchmark has it too."""
    tables, title = paper_tables(outcomes), f"{headline(outcomes)}."
    shown = [*tables, *(table for table in [failure_table(outcomes)] if len(table))]
    tasks = {
        outcome.task.name: {
            "directory": outcome.task.directory.root.name,
            "trials": {trial.name: outcome.state(trial).partition(":")[0] for trial in outcome.task.trials},
            "failures": {trial.name: why for trial, why in outcome.failures.items()},
        }
        for outcome in outcomes
    }
    known = [outcome.evaluation for outcome in outcomes if outcome.evaluation is not None]
    across, rows = across_tasks(known) if known else [], [table.to_dict() for table in tables]
    write_json(
        output / "benchmark.json", {"headline": title[:-1], "tasks": tasks, "across_tasks": across, "tables": rows}
    )
    write_text(output / "benchmark.md", "\n\n".join([title, *(table.to_markdown() for table in shown)]) + "\n")
    write_text(output / "benchmark.tex", "\n\n".join(table.to_latex() for table in tables) + "\n")
    write_text(output / "results.csv", results_frame(outcomes).to_csv(index=False))
    blocks: list[Block] = [*shown] or ["No model has been evaluated yet."]
    names = [outcome.task.name for outcome in outcomes if outcome.task.directory.report.exists()]
    links = [(name, f"{quote(name)}/report.html") for name in names]
    write_page(output / "report.html", Page(output.resolve().name, title, [Section("", blocks)], links))


PUBLISHED_NOTE = (
    "Published: He et al. 2021, RoBERTa-base, one run. The paper defines its ECE class-wise (20 bins); "
    "the authors' scripts compute it top-label."
)
#: Test sets of the paper.
TEST_SETS = {
    "sst2": "SST-2", "mnli": "MNLI", "mnli_mm": "MNLI(mm)", "qnli": "QNLI", "qqp": "QQP", "mrpc": "MRPC",
    "cola": "CoLA", "rte": "RTE", "wnli": "WNLI", "average": "Average",
}  # fmt: skip
_ROWS = """
baseline: .942/.050 .876/.067 .872/.068 .929/.043 .904/.034 .862/.133 .539/.182 .724/.279 .571/.058 .802/.102
scaling-binning (train): .940/.036 .872/.051 .869/.056 .931/.034 .904/.035 .843/.092 .586/.146 .717/.271 .457/.144 .791/.096
temperature (train): .942/.042 .876/.058 .872/.060 .929/.030 .904/.034 .862/.126 .539/.175 .724/.275 .571/.063 .802/.096
poscal: .944/.040 .876/.067 .872/.067 .930/.039 .905/.032 .867/.129 .540/.184 .789/.206 .571/.060 .810/.092
scalar: .942/.033 .871/.038 .871/.047 .927/.016 .899/.034 .862/.098 .540/.150 .753/.207 .542/.033 .801/.073
hidden: .956/.032 .869/.032 .868/.044 .923/.016 .900/.033 .867/.099 .545/.131 .797/.148 .542/.036 .807/.063
sharp-hidden: .947/.038 .875/.027 .872/.031 .930/.016 .900/.032 .862/.089 .563/.133 .811/.182 .571/.073 .815/.069
scaling-binning (dev): .944/.019 .876/.030 .870/.032 .931/.021 .905/.021 .862/.062 .557/.048 .731/.042 .542/.189 .802/.052
temperature (dev): .942/.037 .876/.024 .872/.026 .929/.018 .904/.026 .862/.126 .539/.109 .724/.235 .571/.046 .802/.072
"""  # noqa: E501

#: The results of the paper: method → test set → (performance, ECE). Performance is accuracy, for CoLA the Matthews
#: correlation. It is not certain which ECE was published: the paper and the authors' scripts differ.
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    method: {name: tuple(map(float, pair.split("/"))) for name, pair in zip(TEST_SETS, row.split(), strict=True)}
    for method, _, row in (line.partition(":") for line in _ROWS.strip().splitlines())
}


def published_set(task: str | None, test_set: str = "test") -> str | None:
    """The key of a test set in `PUBLISHED`, or None if the paper has no such task.

    >>> published_set("SST-2"), published_set("mnli", "test_mismatched"), published_set("mine")
    ('sst2', 'mnli_mm', None)
    """
    name = "".join(c for c in (task or "").lower() if c.isalnum())
    if name == "mnli" and "mismatched" in test_set:
        return "mnli_mm"
    return name if name in TEST_SETS and name != "average" and test_set.startswith("test") else None


def paper_table(evaluations: Sequence["Evaluation"], *, ece: str = "ece_classwise", published: bool = True) -> Table:
    """Methods × test sets of one evaluation per task, with their average, in the layout of the paper's main table.

    `ece` is the metric in the ECE columns. Averages are over test sets and given only where a method has all of them.
    Standard deviations are over seeds. `published` adds the paper's rows for the same test sets. Calibrators on the
    baseline have rows under their own name; those fitted on the calibration split are listed last and are not marked
    best, as in the paper; the same holds for ensembles.
    """
    values, deviations, known = dict[Column, Any](), dict[Column, Any](), list[str | None]()
    for evaluation in evaluations:
        for test_set in list_test_sets(evaluation):
            task, metric = str(evaluation.meta.get("task") or "results"), task_metric(evaluation)
            known.append(published_set(task, test_set))
            title = TEST_SETS.get(known[-1] or "", task if test_set == "test" else f"{task} {test_set}")
            found = over_seeds(evaluation.results, test_set)
            short = {"accuracy": "acc.", "matthews": "mcc.", "macro_f1": "F1"}.get(metric, metric_title(metric))
            for name, shown in ((metric, short), (ece, "ECE")):
                rows = found[found.index.get_level_values("metric") == name].droplevel("metric")
                values[title, shown], deviations[title, shown] = rows["value"], rows["deviation"]
    keys = sorted(
        dict.fromkeys(key for column in values.values() for key in column.index),
        key=lambda key: ("", "calibration split", "ensembles").index(_section(key)),
    )
    frames = [pd.DataFrame({c: v.reindex(keys) for c, v in part.items()}) for part in (values, deviations)]
    names, sections = [_paper_name(key) for key in keys], [_section(key) for key in keys]
    notes = [f"ECE: {metric_title(ece).removeprefix('ECE ')} ECE, 20 bins.", "± standard deviation over seeds."]
    if published and any(known):
        rows = [[x for name in known for x in PUBLISHED[m].get(name or "", (None, None))] for m in PUBLISHED]
        theirs = pd.DataFrame(rows, columns=frames[0].columns, dtype=float)
        pairs = zip(frames, (theirs, theirs * np.nan), strict=True)
        frames = [pd.concat([frame.reset_index(drop=True), more]) for frame, more in pairs]
        names, sections = names + [f"{m}, published" for m in PUBLISHED], sections + ["published"] * len(PUBLISHED)
        notes.append(PUBLISHED_NOTE)
    if len(known) > 1:
        for i, shown in enumerate(("perf.", "ECE")):
            # Averages over fewer sets are not comparable. Seeds of different tasks are independent.
            parts = [frame.iloc[:, i : 2 * len(known) : 2] for frame in frames]
            frames[0]["Average", shown] = parts[0].mean(axis=1, skipna=False)
            frames[1]["Average", shown] = np.sqrt((parts[1] ** 2).sum(axis=1, skipna=False)) / len(known)
    columns: list[Column] = ["Method", *frames[0].columns]
    index = pd.Index(columns, tupleize_cols=False)
    extra = [["", *("" if x != x else f"± {x:.3f}" for x in row)] for row in frames[1].to_numpy()]
    body = [[name, *row] for name, row in zip(names, frames[0].to_numpy(), strict=True)]
    return Table(
        pd.DataFrame(body, columns=index), "Test-set performance and calibration error", tuple(notes),
        {column: -1 if column[1] == "ECE" else 1 for column in columns[1:]},
        extra=pd.DataFrame(extra, columns=index), sections=sections,
        unranked=frozenset(i for i, section in enumerate(sections) if section),
    )  # fmt: skip


def _paper_name(key: Key) -> str:
    """The paper applies calibrators to its baseline only and names the row after the calibrator."""
    return key[1] if key[0] == "baseline" and key[1] else row_name(*key)


def _section(key: Key) -> str:
    if is_ensemble(key):
        return "ensembles"
    return "calibration split" if key[1].endswith(("(dev)", "(cross-fit)")) else ""
