"""The run directories of a benchmark as results: states of all trials, the paper's tables, comparisons over tasks.

Written to the output directory: `benchmark.json`, `benchmark.md`, `benchmark.tex`, `results.csv` (one row per model,
calibrator and test set) and `report.html`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ebmcal.benchmark.plan import Benchmark, BenchmarkTask
from ebmcal.data.tasks import find_task
from ebmcal.errors import EbmcalError
from ebmcal.metrics import HEADLINE_METRICS, holm, mean_of_tests
from ebmcal.reports.page import Block, Page, Section, write_page
from ebmcal.reports.run_data import read_document, read_evaluation
from ebmcal.reports.tables import Table, comparison_rows_table, paper_table
from ebmcal.run_dir import Trial
from ebmcal.storage import read_json, write_json, write_text

if TYPE_CHECKING:
    import pandas as pd

    from ebmcal.evaluation import Evaluation

#: What the paper defines, and what the authors' scripts compute.
ECES = {"ece_classwise": "class-wise ECE", "ece_top_label": "top-label ECE"}

ACROSS_NOTE = (
    "Model minus reference, mean over the tasks that have both, with 95% interval over their seeds and rows. The "
    "interval describes these tasks, not others. p (Holm) is adjusted for all tests of this table."
)


@dataclass(frozen=True)
class Outcome:
    """What is known about a task: its evaluation, the trials that failed, and why its results cannot be read."""

    task: BenchmarkTask
    evaluation: "Evaluation | None" = None
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


def gather(benchmark: Benchmark, failures: Mapping[str, Mapping[Trial, str]] | None = None) -> list[Outcome]:
    """The outcome of every task; `failures` (task → trial → why) replace those that `benchmark.json` recorded."""
    recorded = _recorded_failures(benchmark.output / "benchmark.json")
    return [_outcome(task, {**recorded, **(failures or {})}.get(task.name, {})) for task in benchmark.tasks]


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
    open_trials = [trial for trial in task.trials if trial not in outcome.done]
    return replace(outcome, failures={trial: why for trial, why in failures.items() if trial in open_trials})


def _recorded_failures(path: Path) -> dict[str, dict[Trial, str]]:
    try:
        tasks = read_json(path)["tasks"]
        return {
            name: {Trial.parse(trial): why for trial, why in task["failures"].items()} for name, task in tasks.items()
        }
    except (EbmcalError, KeyError, TypeError, AttributeError, ValueError):
        return {}


def headline(outcomes: Sequence[Outcome]) -> str:
    """How many trials are done, failed and open.

    >>> headline([])
    '0 of 0 trials done'
    """
    n_trials, n_done, n_failed = (
        sum(len(part) for part in parts)
        for parts in zip(*((o.task.trials, o.done, o.failures) for o in outcomes), strict=True)
    ) if outcomes else (0, 0, 0)  # fmt: skip
    parts = [f"{n_done} of {n_trials} trials done"]
    parts += [f"{n_failed} failed"] if n_failed else []
    parts += [f"{n_trials - n_done - n_failed} not finished"] if n_trials - n_done - n_failed else []
    return ", ".join(parts)


def paper_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Methods × test sets, once with each ECE, then paired comparisons over all tasks; none without results."""
    known = [outcome.evaluation for outcome in outcomes if outcome.evaluation is not None]
    if not known:
        return []
    notes = tuple(
        f"{outcome.task.name}, {trial.name} failed and is left out."
        for outcome in outcomes
        for trial in outcome.failures
    )
    tables = [paper_table(known, ece=ece).named(f"Performance and {name}") for ece, name in ECES.items()]
    across = across_tasks(known)
    found = [replace(table, notes=(*table.notes, *notes)) for table in tables]
    return [*found, comparison_rows_table(across, "Over all tasks", (ACROSS_NOTE,))] if across else found


def across_tasks(evaluations: Sequence["Evaluation"]) -> list[dict[str, Any]]:
    """Paired tests averaged over tasks, for models that were compared on at least two."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for evaluation in evaluations:
        for test in _tests_over_seeds(evaluation):
            key = tuple(test[name] for name in ("model", "calibrator", "reference", "metric"))
            found.setdefault(key, []).append(test)
    tests = []
    for (model, calibrator, reference, metric), each in found.items():
        if len(each) > 1:
            place = {"model": model, "calibrator": calibrator, "reference": reference, "metric": metric}
            tests.append({**place, "n_tasks": len(each), **asdict(mean_of_tests(each))})
    tests.sort(key=lambda test: HEADLINE_METRICS.index(test["metric"]) if test["metric"] in HEADLINE_METRICS else 99)
    adjusted = holm([test["p_value"] for test in tests])
    return [{**test, "p_adjusted": p} for test, p in zip(tests, adjusted, strict=True)]


def _tests_over_seeds(evaluation: "Evaluation") -> list[dict[str, Any]]:
    """The tests of methods on the test split, over seeds where there are several; each row at most once."""
    frame = evaluation.comparisons
    if not len(frame) or "standard_error" not in frame:
        return []
    frame = frame[(frame["test_set"] == "test") & frame["standard_error"].notna()]
    frame = frame.assign(calibrator=frame["calibrator"].where(frame["calibrator"].notna(), None))
    frame = frame.assign(model=[str(name).rpartition("-seed")[0] or str(name) for name in frame["model"]])
    frame = frame.assign(reference=[str(name).rpartition("-seed")[0] or str(name) for name in frame["reference"]])
    last = frame.drop_duplicates(["model", "calibrator", "reference", "metric"], keep="last")
    records: list[dict[str, Any]] = last.to_dict("records")
    return records


def write_results(output: Path, outcomes: Sequence[Outcome]) -> None:
    """Write what is known so far; called after each task, so that an interrupted benchmark has it too."""
    tables, failures = paper_tables(outcomes), failure_table(outcomes)
    shown = [*tables, *([failures] if len(failures) else [])]
    write_json(output / "benchmark.json", _document(outcomes, tables))
    write_text(
        output / "benchmark.md", "\n\n".join([f"{headline(outcomes)}.", *(t.to_markdown() for t in shown)]) + "\n"
    )
    write_text(output / "benchmark.tex", "\n\n".join(table.to_latex() for table in tables) + "\n")
    write_text(output / "results.csv", results_frame(outcomes).to_csv(index=False))
    blocks: list[Block] = [*shown] or ["No model has been evaluated yet."]
    reports = [o.task.name for o in outcomes if o.task.directory.report.exists()]
    links = [(name, f"{quote(name)}/report.html") for name in reports]
    write_page(
        output / "report.html", Page(output.resolve().name, f"{headline(outcomes)}.", [Section("", blocks)], links)
    )


def failure_table(outcomes: Sequence[Outcome]) -> Table:
    """The trials that failed and why."""
    import pandas as pd

    rows = [(o.task.name, trial.method, trial.seed, why) for o in outcomes for trial, why in o.failures.items()]
    return Table(pd.DataFrame(rows, columns=["Task", "Method", "Seed", "Reason"]), "Failed")


def results_frame(outcomes: Sequence[Outcome]) -> "pd.DataFrame":
    """One row per task, model, calibrator and test set; metrics in columns."""
    import pandas as pd

    frames = []
    for outcome in outcomes:
        if outcome.evaluation is None:
            continue
        frame = outcome.evaluation.results
        frame = frame[frame["seed"].notna()]
        keys = ["model", "method", "seed", "calibrator", "test_set", "n_rows"]
        frame = frame.assign(calibrator=frame["calibrator"].fillna(""))
        wide = frame.pivot(index=keys, columns="metric", values="value").reset_index()
        training, audit = outcome.document.get("training") or {}, outcome.document.get("audit") or {}
        wide.insert(0, "task", outcome.task.name)
        wide.insert(1, "encoder", outcome.task.config.encoder)
        wide.insert(2, "n_train", ((audit.get("splits") or {}).get("train") or {}).get("rows"))
        wide["seconds"] = [(training.get(name) or {}).get("seconds") for name in wide["model"]]
        frames.append(wide)
    return pd.concat(frames) if frames else pd.DataFrame()


def _document(outcomes: Sequence[Outcome], tables: Sequence[Table]) -> dict[str, Any]:
    """The content of `benchmark.json`."""
    known = [outcome.evaluation for outcome in outcomes if outcome.evaluation is not None]
    return {
        "headline": headline(outcomes),
        "tasks": {
            outcome.task.name: {
                "directory": outcome.task.directory.root.name,
                "trials": {trial.name: outcome.state(trial).partition(":")[0] for trial in outcome.task.trials},
                "failures": {trial.name: why for trial, why in outcome.failures.items()},
            }
            for outcome in outcomes
        },
        "across_tasks": across_tasks(known),
        "tables": [table.to_dict() for table in tables],
    }
