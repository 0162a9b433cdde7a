"""`ebmcal noise generate` makes the noise texts of a run in advance; `ebmcal noise show` looks at noise."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebmcal.cli.options import with_config
from ebmcal.errors import EbmcalError, require_extra, unknown_name
from ebmcal.noise import parse_noise

if TYPE_CHECKING:
    from ebmcal.config import RunConfig
    from ebmcal.noise.generation import Engine, NoiseStore
    from ebmcal.run_dir import RunDir

ENGINES = ("local", "ray")


def generate_noise(
    config: "RunConfig", count: int | None, engine: str | None, ray_address: str | None, workers: int | None
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


generate = with_config(
    generate_noise,
    count=Annotated[int | None, typer.Option(min=1, help="Texts to generate. [default: what a training draws]")],
    engine=Annotated[str | None, typer.Option(help="local (this process) or ray (Ray Data). [local]")],
    ray_address=Annotated[str | None, typer.Option(help="Ray: HOST:PORT of a cluster, or auto.")],
    workers=Annotated[int | None, typer.Option(min=1, help="Ray: number of one-thread workers.")],
)


def _check_sources(noise: str | None) -> None:
    if noise and all(part.is_online for part in parse_noise(noise)):
        raise EbmcalError(
            f"The noise {noise!r} is made during training; there is nothing to generate. Choose a source with a "
            "language model, for example --noise infill:smollm2."
        )


def _find_engine(name: str, ray_address: str | None, workers: int | None) -> "Engine":
    """The engine of that name; what it lacks is reported before any work starts."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if name == "local":
        if ray_address or workers:
            raise EbmcalError("--ray-address and --workers need --engine ray.")
        from ebmcal.noise.generation import generate_locally

        return generate_locally
    require_extra("ray", "ray")
    from ebmcal.noise import RayEngine

    return RayEngine(ray_address, workers)


def show(
    directory: Annotated[Path, typer.Argument(help="A noise store or a run directory.")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Examples to show.")] = 5,
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
