"""Running a benchmark task by task: finished tasks are skipped, failures are recorded and do not stop the rest."""

from ebmcal.benchmark.plan import Benchmark, BenchmarkTask
from ebmcal.benchmark.results import Outcome, gather, write_results
from ebmcal.config import fixed_settings, load_config
from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.progress import make_reporter
from ebmcal.run_dir import Trial

#: Characters of the reason of a failure.
LONGEST_REASON = 400


def run_benchmark(benchmark: Benchmark, *, progress: bool | None = False) -> list[Outcome]:
    """Run what is not done yet of the selected tasks; results are written after each task.

    run_benchmark(load_benchmark(Path("benchmarks/glue-small.yaml")))
    """
    failures: dict[str, dict[Trial, str]] = {}
    for number, task in enumerate(benchmark.selected, start=1):
        reporter = make_reporter(progress, task.directory.log)
        title = f"{task.name} (task {number} of {len(benchmark.selected)})"
        if is_finished(task):
            reporter.info(f"{title}: finished before")
        else:
            reporter.info(title)
            failures[task.name] = run_task(task, progress=progress)
            for trial, reason in failures[task.name].items():
                reporter.info(f"{task.name}, {trial.name} failed: {reason}")
        write_results(benchmark.output, gather(benchmark, failures))
    return gather(benchmark, failures)


def run_task(task: BenchmarkTask, *, progress: bool | None = False) -> dict[Trial, str]:
    """Run a task; if it fails, run its trials one by one, so that only those fail that cannot succeed."""
    from ebmcal.runs import start_run

    try:
        start_run(task.config, progress=progress)
        return {}
    except Interrupted:
        raise
    except Exception as error:
        if len(task.trials) == 1:
            return {task.trials[0]: describe_error(error)}
    failures = {}
    for trial in task.trials:
        try:
            single = {"methods": [trial.method], "seeds": [trial.seed]}
            start_run(task.config.model_copy(update=single), progress=progress)
        except Interrupted:
            raise
        except Exception as error:
            failures[trial] = describe_error(error)
    return failures


def describe_error(error: Exception) -> str:
    """An error on one line; of an unexpected one also its type.

    >>> describe_error(RuntimeError("the disk is\\nfull"))
    'RuntimeError: the disk is full'
    """
    text = " ".join(str(error).split())
    text = text if isinstance(error, EbmcalError) else f"{type(error).__name__}: {text}"
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"


def is_finished(task: BenchmarkTask) -> bool:
    """Whether every trial was evaluated with these settings and calibrators."""
    (outcome,) = gather(Benchmark(task.directory.root.parent, (task,)))
    if outcome.evaluation is None or outcome.failures or not task.directory.config.is_file():
        return False
    earlier = load_config(task.directory.config)
    same = fixed_settings(earlier) == fixed_settings(task.config) and set(task.config.posthoc) <= set(earlier.posthoc)
    return same and set(task.config.ood) <= set(earlier.ood) and outcome.done == task.trials
