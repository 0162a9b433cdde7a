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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from ebmcal.config import RunConfig, fixed_settings, load_config, read_yaml
from ebmcal.data.tasks import find_task
from ebmcal.errors import EbmcalError, Interrupted, unknown_name
from ebmcal.evaluation import Evaluation
from ebmcal.metrics import HEADLINE_METRICS, holm, mean_of_tests
from ebmcal.progress import Reporter, make_reporter
from ebmcal.reports.page import Block, Page, Section, write_page
from ebmcal.reports.run_data import read_document, read_evaluation
from ebmcal.reports.table import Table
from ebmcal.reports.tables import comparison_rows_table, paper_table
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
    """One run of a benchmark; only a selected task is run. `fingerprints` are those of its data, if it was read."""

    name: str
    config: RunConfig
    is_selected: bool = True
    fingerprints: Mapping[str, str] = field(default_factory=dict)

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


@dataclass
class _Mistakes:
    """Mistakes and the tasks that have them; a mistake of several tasks is reported once."""

    found: dict[str, list[str]] = field(default_factory=dict)

    @contextlib.contextmanager
    def collect(self, place: str) -> Iterator[None]:
        try:
            yield
        except EbmcalError as error:
            places = self.found.setdefault(str(error), [])
            places += [] if place in places else [place]


def load_benchmark(path: Path, output: Path | None = None, only: Sequence[str] = ()) -> Benchmark:
    """Read and check a benchmark: settings, models and data of all tasks. One error lists all mistakes.

    `output` replaces that of the file. Tasks that `only` does not name are not selected; their data is not needed.

        load_benchmark(Path("benchmarks/glue-small.yaml"), only=["rte"])
    """
    shared, mistakes = read_yaml(path), _Mistakes()
    written, entries = shared.pop("output", None), shared.pop("tasks", None)
    with mistakes.collect("output"):
        if not isinstance(output or written, str | Path):
            raise EbmcalError(f"expected a directory, got {written!r}; write `output: runs/NAME` or use --output.")
    root = Path(str(output or written)).expanduser()
    for name in set(TASK_SETTINGS) & set(shared):
        # `calibration: cross-fit` or `holdout` is a way to calibrate, not a file.
        if name != "calibration" or shared[name] not in ("auto", "cross-fit", "holdout"):
            del shared[name]
            with mistakes.collect("all tasks"):
                raise EbmcalError(f"{name} belongs to one task; put it under tasks, {EXAMPLE}.")
    own = _task_settings(entries, mistakes)
    names = {name.lower(): name for name in own}
    for name in only:
        with mistakes.collect("--only"):
            if name.lower() not in names:
                raise unknown_name("task of this benchmark", name, own)
    selected = {names.get(name.lower()) for name in only} if only else set(own)
    tasks = []
    for name, settings in own.items():
        values = {**_inherited(shared, settings), **settings, "output": root / name}
        with mistakes.collect(name):
            task = BenchmarkTask(name, load_config(None, values), name in selected)
            tasks.append(task)
            if task.is_selected:
                tasks[-1] = replace(task, fingerprints=read_fingerprints(task.config))
    if mistakes.found:
        lines = [f"{', '.join(places)}: {what}".replace("\n", "\n    ") for what, places in mistakes.found.items()]
        raise EbmcalError("\n  - ".join([f"The benchmark {path} has mistakes; nothing was started:", *lines]))
    return Benchmark(root, tuple(tasks))


def read_fingerprints(config: RunConfig) -> Mapping[str, str]:
    """The fingerprint of each split; raises what would stop the run: encoder, data, noise, settings."""
    from ebmcal.pipeline.workspace import prepare

    return prepare(config, Reporter()).data.fingerprints


def _task_settings(entries: Any, mistakes: _Mistakes) -> dict[str, dict[str, Any]]:
    """The entries of `tasks`: name → settings."""
    own: dict[str, dict[str, Any]] = {}
    with mistakes.collect("tasks"):
        if not isinstance(entries, list) or not entries:
            raise EbmcalError(f"expected a list of tasks, {EXAMPLE}, got {type(entries).__name__}.")
        for number, entry in enumerate(entries, start=1):
            with mistakes.collect(f"entry {number} of tasks"):
                name, settings = _named_settings(entry)
                if name.lower() in (other.lower() for other in own):
                    raise EbmcalError(f"two tasks are called {name}; give one of them another `name`.")
                own[name] = settings
    return own


def _named_settings(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name of an entry, which becomes a directory, and its settings."""
    if isinstance(entry, str):
        entry = {"task": entry}
    if not isinstance(entry, Mapping):
        raise EbmcalError(f"expected a name or settings, {EXAMPLE}, got {entry!r}.")
    settings = {str(key).replace("-", "_"): value for key, value in entry.items()}
    if "output" in settings:
        raise EbmcalError("output is set once for the whole benchmark; each task gets a directory in it.")
    name, task, train = settings.pop("name", None), settings.get("task"), settings.get("train")
    if name is None and train is not None:
        name = Path(str(train)).stem
    elif name is None:
        if task is None:
            raise EbmcalError("expected task (built in: see `ebmcal tasks`) or train (a file), got neither.")
        try:
            name = find_task(str(task)).name
        except EbmcalError as error:
            raise EbmcalError(f"{error} For your own file: {{name: {task}, train: FILE}}.") from None
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

    @property
    def is_finished(self) -> bool:
        """Whether every trial was evaluated with these settings, calibrators and data."""
        task, directory = self.task, self.task.directory
        if self.failures or self.done != task.trials or not directory.config.is_file():
            return False
        earlier = load_config(directory.config)
        recorded = read_json(directory.fingerprints) if directory.fingerprints.is_file() else task.fingerprints
        return (
            fixed_settings(earlier) == fixed_settings(task.config)
            and set(task.config.posthoc) <= set(earlier.posthoc)
            and set(task.config.ood) <= set(earlier.ood)
            and all(recorded.get(split) == value for split, value in task.fingerprints.items())
        )

    def state(self, trial: Trial) -> str:
        """ "done", "failed: why", "started" or "not run"."""
        if trial in self.done:
            return "done"
        if trial in self.failures:
            return f"failed: {self.failures[trial]}"
        return "started" if self.task.directory.trial(trial).is_dir() else "not run"


def run_benchmark(benchmark: Benchmark, *, progress: bool | None = False) -> list[Outcome]:
    """Run what is not done yet of the selected tasks; results are written after each task.

    run_benchmark(load_benchmark(Path("benchmarks/glue-small.yaml")))
    """
    failures: dict[str, dict[Trial, str]] = {}
    for number, task in enumerate(benchmark.selected, start=1):
        reporter = make_reporter(progress, task.directory.log)
        title = f"{task.name} (task {number} of {len(benchmark.selected)})"
        if next(outcome for outcome in gather(benchmark) if outcome.task is task).is_finished:
            reporter.info(f"{title}: finished before")
        else:
            reporter.info(title)
            failures[task.name] = _run_task(task, progress)
            for trial, reason in failures[task.name].items():
                reporter.info(f"{task.name}, {trial.name} failed: {reason}")
        write_results(benchmark.output, gather(benchmark, failures))
    return gather(benchmark, failures)


def _run_task(task: BenchmarkTask, progress: bool | None) -> dict[Trial, str]:
    """Run a task; if it fails, run its trials one by one, so that only those fail that cannot succeed."""
    from ebmcal.runs import start_run

    failures: dict[Trial, str] = {}
    for trial in (None, *task.trials):
        single = {} if trial is None else {"methods": [trial.method], "seeds": [trial.seed]}
        try:
            start_run(task.config.model_copy(update=single), progress=progress)
            if trial is None:
                return {}
        except Interrupted:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            text = text if isinstance(error, EbmcalError) else f"{type(error).__name__}: {text}"
            text = text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
            if trial is not None or len(task.trials) == 1:
                failures[trial or task.trials[0]] = text
            if len(task.trials) == 1:
                break
    return failures


def gather(benchmark: Benchmark, failures: Mapping[str, Mapping[Trial, str]] | None = None) -> list[Outcome]:
    """The outcome of every task; `failures` (task → trial → why) replace those that `benchmark.json` recorded."""
    known: dict[str, Mapping[Trial, str]] = {}
    with contextlib.suppress(EbmcalError, KeyError, TypeError, AttributeError, ValueError):  # absent or edited
        for name, task in read_json(benchmark.output / "benchmark.json")["tasks"].items():
            known[name] = {Trial.parse(trial): why for trial, why in task["failures"].items()}
    known |= failures or {}
    return [_outcome(task, known.get(task.name, {})) for task in benchmark.tasks]


def _outcome(task: BenchmarkTask, failures: Mapping[Trial, str]) -> Outcome:
    try:
        document = read_document(task.directory)
        evaluation = read_evaluation(task.directory, document) if document else None
    except EbmcalError as error:
        return Outcome(task, failures=dict.fromkeys(task.trials, str(error)))
    if evaluation is not None:
        metric = find_task(task.config.task).metric if task.config.task else "accuracy"
        evaluation.meta.update({"task": task.name, "task_metric": evaluation.meta.get("task_metric") or metric})
    outcome = Outcome(task, evaluation, {}, document)
    is_open = set(task.trials) - set(outcome.done)
    return replace(outcome, failures={trial: why for trial, why in failures.items() if trial in is_open})


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
    for outcome in [outcome for outcome in outcomes if outcome.evaluation is not None]:
        frame = outcome.evaluation.results if outcome.evaluation else pd.DataFrame()
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
