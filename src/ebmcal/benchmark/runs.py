"""Running a benchmark: task after task through `ebmcal.pipeline`, what is done skipped, what fails written down."""

from collections.abc import Callable
from pathlib import Path

from ebmcal.benchmark.outcomes import Outcome, gather, outcome_of
from ebmcal.benchmark.spec import Benchmark, BenchmarkTask
from ebmcal.benchmark.writing import write_results
from ebmcal.errors import Interrupted
from ebmcal.judging import FITTED_ON
from ebmcal.pipeline.cell import is_predicted, is_trained
from ebmcal.pipeline.failures import Failures, reason_of
from ebmcal.pipeline.stages import run
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell
from ebmcal.storage.sealing import damage
from ebmcal.training.callbacks import last_checkpoint

MakeReporter = Callable[[Path], Reporter]


def run_benchmark(benchmark: Benchmark, make_reporter: MakeReporter = lambda log: Reporter()) -> list[Outcome]:
    """Do what is not done yet of the chosen tasks; the results are written after each of them.

    `make_reporter` gets the log file of a run. Returns the outcome of every task of the file, chosen or not.

        outcomes = run_benchmark(load_benchmark(Path("benchmarks/glue-small.yaml")))
    """
    errors: dict[str, str] = {}
    for number, task in enumerate(benchmark.chosen, start=1):
        reporter = make_reporter(task.folder.log)
        heading = f"{task.name} (task {number} of {len(benchmark.chosen)})"
        if is_finished(task):
            reporter.say(f"{heading}: done before")
        else:
            n_done = sum(cell_state(task, cell) == "done" for cell in task.cells)
            reporter.say(f"{heading}: {n_done} of {len(task.cells)} cells done before")
            errors |= run_task(task, reporter)
        write_results(benchmark.output, gather(benchmark, errors))
    return gather(benchmark, errors)


def run_task(task: BenchmarkTask, reporter: Reporter) -> dict[str, str]:
    """Run one task. Cells that fail are in its `metrics.json`; what stops the whole task is returned as {name: why}."""
    try:
        run(task.config, reporter, Failures(keep_going=True, reporter=reporter, log=task.folder.log))
        return {}
    except Interrupted:
        raise
    except Exception as error:
        reporter.say(f"{task.name} failed: {reason_of(error)}")
        return {task.name: reason_of(error)}


def is_finished(task: BenchmarkTask) -> bool:
    """Whether all of a task is there, whole, from the data as it is now: then nothing is computed again."""
    outcome = outcome_of(task)
    if outcome.document.get("fingerprints") != task.fingerprints or damage(task.folder.root):
        return False
    steps = [None, *(f"{name} ({shown})" for name in task.config.posthoc for shown in FITTED_ON.values())]
    steps = [step for step in steps if step not in outcome.document.get("not_fitted", {})]
    sets = [split for split in task.fingerprints or {} if split.startswith("test")]
    wanted = {(cell, step, name) for cell in task.cells for step in steps for name in sets}
    there = {
        (Cell(row["method"], row.get("seed")), row.get("posthoc"), row.get("test_set", "test"))
        for row in outcome.document["rows"]
        if "metrics" in row
    }
    return wanted <= there and all(cell_state(task, cell) == "done" for cell in task.cells)


def cell_state(task: BenchmarkTask, cell: Cell) -> str:
    """How far a cell is: "done", "trained", "stopped at step N", "failed: why" or "to do"."""
    folder = task.folder
    if is_trained(folder, cell):
        splits = [*(task.fingerprints or ["test"]), *(f"ood_{name}" for name in task.config.ood)]
        return "done" if all(is_predicted(folder, cell, split) for split in splits) else "trained"
    reason = outcome_of(task).failed.get(cell)
    checkpoint = last_checkpoint(folder.checkpoints(cell))
    if reason:
        return f"failed: {reason}"
    return f"stopped at step {checkpoint.name.rsplit('-', 1)[1]}" if checkpoint else "to do"
