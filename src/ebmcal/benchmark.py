"""`ebmcal benchmark`: tasks × methods × seeds from one YAML file, and the paper's table.

output: runs/glue
tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]
encoder: roberta-base          # any setting of a run: for all tasks; null in a task removes it

`load_benchmark` reads and checks the file; `run_benchmark` runs what is not done yet, one run directory per task. The
output directory gets `benchmark.md` and `benchmark.tex` (the tables) and `results.csv` (all results, tidy).
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ebmcal.config import RunConfig, load_config, read_yaml
from ebmcal.data.tasks import find_task
from ebmcal.errors import EbmcalError, Interrupted, unknown_name
from ebmcal.evaluation import Evaluation
from ebmcal.progress import Reporter, make_reporter
from ebmcal.reports.page import Column, Table
from ebmcal.reports.run_data import read_results
from ebmcal.reports.tables import Key, is_ensemble, list_test_sets, metric_title, over_seeds, row_name, task_metric
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_text

EXAMPLE = "for example `tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]`"

#: Settings that belong to a single task.
TASK_SETTINGS = {"task", "train", "calibration", "test"}

#: What the paper defines, and what the authors' scripts compute.
ECES = {"ece_classwise": "class-wise ECE", "ece_top_label": "top-label ECE"}


@dataclass(frozen=True)
class Benchmark:
    """The runs of a benchmark by name, each in a directory of `output`; only the `selected` ones are run."""

    output: Path
    runs: dict[str, RunConfig]
    selected: list[str]

    def evaluations(self) -> list[Evaluation]:
        """The evaluation of every run that has one; `meta["task"]` is the name of the run."""
        found = []
        for name, config in self.runs.items():
            if (directory := RunDir(self.output / name)).results.exists():
                found.append(read_results(directory)[1])
                metric = find_task(config.task).metric if config.task else "accuracy"
                found[-1].meta.update({"task": name, "task_metric": found[-1].meta.get("task_metric") or metric})
        return found


def trials(config: RunConfig) -> list[Trial]:
    """The methods and seeds of a run."""
    return [Trial(method, seed) for seed in config.seeds for method in config.methods]


def load_benchmark(path: Path, output: Path | None = None, only: Sequence[str] = ()) -> Benchmark:
    """Read and check a benchmark: settings, models and data of all tasks. One error lists the mistakes of all tasks.

    `output` replaces that of the file. Tasks that `only` does not name are not selected; their data is not needed.

        load_benchmark(Path("benchmarks/glue-small.yaml"), only=["rte"])
    """
    from ebmcal.pipeline import prepare

    root, entries, shared = _read(path, output)
    runs, wanted = dict[str, RunConfig](), [name.lower() for name in only]
    mistakes: dict[str, list[str]] = {}  # mistake → where it was made
    for number, entry in enumerate(entries, start=1):
        try:
            name, settings = _named_settings(entry)
            if name.lower() in map(str.lower, runs):
                raise EbmcalError(f"two tasks are called {name}; give one of them another `name`.")
            given = {key: value for key, value in (shared | settings).items() if value is not None}
            runs[name] = load_config(None, given | {"output": root / name})
            if not only or name.lower() in wanted:
                prepare(runs[name], Reporter())
        except EbmcalError as error:
            mistakes.setdefault(str(error), []).append(str(number))
    if mistakes:
        lines = [f"task {', '.join(at)}: {what}".replace("\n", "\n    ") for what, at in mistakes.items()]
        raise EbmcalError("\n  - ".join([f"The benchmark {path} has mistakes; nothing was started:", *lines]))
    for unknown in [name for name in wanted if name not in map(str.lower, runs)]:
        raise unknown_name("task of this benchmark", unknown, runs)
    return Benchmark(root, runs, [name for name in runs if not only or name.lower() in wanted])


def _read(path: Path, output: Path | None) -> tuple[Path, list[Any], dict[str, Any]]:
    """The output directory, the entries of the tasks and the shared settings of a file."""
    shared = read_yaml(path)
    given, entries = shared.pop("output", None), shared.pop("tasks", None)
    written = output or given
    if not isinstance(written, str | Path):
        raise EbmcalError(f"{path}: expected a directory, got {written!r}; write `output: runs/NAME` or use --output.")
    if not isinstance(entries, list) or not entries:
        raise EbmcalError(f"{path}: expected a list of tasks, {EXAMPLE}, got {type(entries).__name__}.")
    for name in TASK_SETTINGS & shared.keys():
        # `calibration: cross-fit` is a way to calibrate, not a file.
        if name != "calibration" or shared[name] not in ("auto", "cross-fit", "holdout"):
            raise EbmcalError(f"{path}: {name} belongs to one task; put it under tasks, {EXAMPLE}.")
    return Path(written).expanduser(), entries, shared


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


def run_benchmark(benchmark: Benchmark, *, progress: bool | None = False) -> dict[str, str]:
    """Run what is not done yet of the selected tasks; returns why trials failed: "task, trial" → reason.

    The tables are written after each task, so that an interrupted benchmark has them too.

        run_benchmark(load_benchmark(Path("benchmarks/glue-small.yaml")))
    """
    failures: dict[str, str] = {}
    for number, name in enumerate(benchmark.selected, start=1):
        reporter = make_reporter(progress, RunDir(benchmark.output / name).log)
        reporter.info(f"{name} (task {number} of {len(benchmark.selected)})")
        for trial, reason in _run_trials(benchmark.runs[name], progress).items():
            failures[f"{name}, {trial.name}"] = reason
            reporter.info(f"{name}, {trial.name} failed: {reason}")
        write_results(benchmark)
    return failures


def _run_trials(config: RunConfig, progress: bool | None) -> dict[Trial, str]:
    """Run a task; if it fails, run its trials one by one, so that only those fail that cannot succeed."""
    wanted, reason = trials(config), _run(config, progress)
    if reason is None or len(wanted) == 1:
        return dict.fromkeys(wanted, reason) if reason else {}
    singles = {t: config.model_copy(update={"methods": [t.method], "seeds": [t.seed]}) for t in wanted}
    reasons = {trial: _run(single, progress) for trial, single in singles.items()}
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
        return textwrap.shorten(f"{kind}{error}", width=400, placeholder="…")
    return None


def write_results(benchmark: Benchmark) -> None:
    """Write the tables, and all results in one tidy file."""
    tables = paper_tables(benchmark)
    write_text(benchmark.output / "benchmark.md", "\n\n".join(table.to_markdown() for table in tables) + "\n")
    write_text(benchmark.output / "benchmark.tex", "\n\n".join(table.to_latex() for table in tables) + "\n")
    frames = [found.results.assign(task=found.meta["task"]) for found in benchmark.evaluations()]
    write_text(benchmark.output / "results.csv", pd.concat(frames).to_csv(index=False) if frames else "")


def paper_tables(benchmark: Benchmark) -> list[Table]:
    """Methods × test sets, once with each ECE; none without results."""
    found = benchmark.evaluations()
    titles = {ece: f"Performance and {name}" for ece, name in ECES.items()} if found else {}
    return [replace(paper_table(found, ece=ece), title=title) for ece, title in titles.items()]


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


def paper_table(evaluations: Sequence[Evaluation], *, ece: str = "ece_classwise") -> Table:
    """Methods × test sets of one evaluation per task, with their average, in the layout of the paper's main table.

    `ece` is the metric in the ECE columns. Averages are over test sets and given only where a method has all of them.
    Standard deviations are over seeds. The paper's rows for the same test sets follow. Calibrators on the baseline have
    rows under their own name; those fitted on the calibration split are listed last and are not marked best, as in the
    paper; the same holds for ensembles.
    """
    values, deviations, known = _columns(evaluations, ece)
    keys = sorted(
        dict.fromkeys(key for column in values.values() for key in column.index),
        key=lambda key: ("", "calibration split", "ensembles").index(_section(key)),
    )
    frames = [pd.DataFrame({c: v.reindex(keys) for c, v in part.items()}) for part in (values, deviations)]
    names, sections = [_paper_name(key) for key in keys], [_section(key) for key in keys]
    notes = [f"ECE: {metric_title(ece).removeprefix('ECE ')} ECE, 20 bins.", "± standard deviation over seeds."]
    if any(known):
        rows = [[x for name in known for x in PUBLISHED[m].get(name or "", (None, None))] for m in PUBLISHED]
        theirs = pd.DataFrame(rows, columns=frames[0].columns, dtype=float)
        pairs = zip(frames, (theirs, theirs * np.nan), strict=True)
        frames = [pd.concat([frame.reset_index(drop=True), more]) for frame, more in pairs]
        names, sections = names + [f"{m}, published" for m in PUBLISHED], sections + ["published"] * len(PUBLISHED)
        notes.append(PUBLISHED_NOTE)
    if len(known) > 1:
        _add_averages(frames[0], frames[1], len(known))
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


def _columns(
    evaluations: Sequence[Evaluation], ece: str
) -> tuple[dict[Column, Any], dict[Column, Any], list[str | None]]:
    """Values and deviations by column (test set, metric), and the published name of each test set."""
    values, deviations, known = dict[Column, Any](), dict[Column, Any](), list[str | None]()
    for evaluation in evaluations:
        task, metric = str(evaluation.meta.get("task") or "results"), task_metric(evaluation)
        short = {"accuracy": "acc.", "matthews": "mcc.", "macro_f1": "F1"}.get(metric, metric_title(metric))
        for test_set in list_test_sets(evaluation):
            known.append(published_set(task, test_set))
            title = TEST_SETS.get(known[-1] or "", task if test_set == "test" else f"{task} {test_set}")
            found = over_seeds(evaluation.results, test_set)
            for name, shown in ((metric, short), (ece, "ECE")):
                rows = found[found.index.get_level_values("metric") == name].droplevel("metric")
                values[title, shown], deviations[title, shown] = rows["value"], rows["deviation"]
    return values, deviations, known


def _add_averages(values: pd.DataFrame, deviations: pd.DataFrame, n_sets: int) -> None:
    """Averages over all test sets; over fewer they are not comparable. Seeds of different tasks are independent."""
    for i, shown in enumerate(("perf.", "ECE")):
        value, deviation = (frame.iloc[:, i : 2 * n_sets : 2] for frame in (values, deviations))
        values["Average", shown] = value.mean(axis=1, skipna=False)
        deviations["Average", shown] = np.sqrt((deviation**2).sum(axis=1, skipna=False)) / n_sets


def _paper_name(key: Key) -> str:
    """The paper applies calibrators to its baseline only and names the row after the calibrator."""
    return key[1] if key[0] == "baseline" and key[1] else row_name(*key)


def _section(key: Key) -> str:
    if is_ensemble(key):
        return "ensembles"
    return "calibration split" if key[1].endswith(("(dev)", "(cross-fit)")) else ""
