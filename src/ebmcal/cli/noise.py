"""`ebmcal noise fit`, `sample` and `show`: the noise language model and its texts, on their own.

`fit` and `sample` take the settings of `ebmcal run` and fill the same cache, so that a later run finds its noise made.
"""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebmcal.cli.options import with_config
from ebmcal.config import ResolvedConfig, RunConfig
from ebmcal.errors import EbmcalError
from ebmcal.noise_setting import NoisePart, parse_noise

if TYPE_CHECKING:
    from rich.console import Console

    from ebmcal.noise.filling import Engine
    from ebmcal.noise.store import NoiseStore
    from ebmcal.runfolder import RunFolder


def fit_config(config: RunConfig) -> None:
    """Finetune the noise LM; prints where it is and its perplexity."""
    from ebmcal.pipeline.run_noise import fit_noise_lm
    from ebmcal.pipeline.stages import prepare
    from ebmcal.progress import Console

    reporter = Console()
    resolved, data = prepare(config, reporter)
    for part in _stored_parts(resolved):
        folder, card = fit_noise_lm(resolved, part, data, reporter)
        typer.echo(f"{folder}: perplexity {card['perplexity']:.1f} on held-out texts")


def _stored_parts(config: ResolvedConfig) -> list[NoisePart]:
    """The sources that have a language model; an error where there is none."""
    parts = [part for part in parse_noise(config.noise) if not part.is_online]
    if not parts:
        raise EbmcalError(
            f"The noise {config.noise!r} is written while a model trains: there is nothing to make first. "
            "A source with a language model is, for example, --noise infill:gpt2."
        )
    return parts


def sample_config(
    config: RunConfig, count: int | None, store: Path | None, engine: str | None, ray_address: str | None,
    ray_workers: int | None,
) -> None:  # fmt: skip
    """Write noise; prints where it is."""
    chosen = _engine(engine or "here", ray_address, ray_workers)
    if store and store.exists() and not store.is_dir():
        raise EbmcalError(f"--store {store} is a file; give a folder.")
    from ebmcal.pipeline.run_noise import fill_noise_store, fit_noise_lm, n_held_out, noise_wanted
    from ebmcal.pipeline.stages import prepare
    from ebmcal.progress import Console

    reporter = Console()
    resolved, data = prepare(config, reporter)
    train, parts = data.splits["train"], _stored_parts(resolved)
    if store and len(parts) > 1:
        raise EbmcalError(f"--store takes the texts of one source; noise names {', '.join(p.name for p in parts)}.")
    for part in parts:
        lm, card = fit_noise_lm(resolved, part, data, reporter)
        n_drawn, n_others = noise_wanted(resolved, part, len(train)), n_held_out(data)
        wanted = count or n_drawn + n_others
        filled = fill_noise_store(resolved, part, train, lm, card, reporter, count=wanted, folder=store, engine=chosen)
        which = "" if count else f" ({n_drawn:,} for a training, {n_others:,} held out)"
        more = f" (made before; {wanted:,} were asked for)" if len(filled) > wanted else which
        typer.echo(
            f"{filled.folder}: {len(filled):,} noise texts{more}. Look at them with: ebmcal noise show {filled.folder}"
        )


def _engine(name: str, ray_address: str | None, ray_workers: int | None) -> "Engine":
    """The engine of that name; what it lacks is told before any work starts."""
    from ebmcal.errors import require_extra, unknown_name
    from ebmcal.noise.filling import here
    from ebmcal.noise.on_ray import RayEngine

    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if name == "here":
        if ray_address or ray_workers:
            raise EbmcalError("--ray-address and --ray-workers are for --engine ray; add it, or leave them out.")
        return here
    require_extra("ray", "ray")
    return RayEngine(ray_address, ray_workers)


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


COUNT = Annotated[int | None, typer.Option(min=1, help="Texts to write; by default what a training needs.")]
STORE = Annotated[Path | None, typer.Option(help="Folder of the store; by default in the cache, found by `run`.")]

ENGINE = Annotated[
    str | None, typer.Option(help="here (this process) or ray (Ray Data, many processes). [default: here]")
]
ADDRESS = Annotated[str | None, typer.Option(help="A running Ray cluster, HOST:PORT; by default one on this machine.")]
WORKERS = Annotated[
    int | None, typer.Option(min=1, help="Ray workers; by default one for each GPU, or CPU if there is none.")
]
ENGINES = ("here", "ray")

fit = with_config(fit_config)
sample = with_config(
    sample_config,
    [
        _parameter("count", COUNT),
        _parameter("store", STORE),
        _parameter("engine", ENGINE),
        _parameter("ray_address", ADDRESS),
        _parameter("ray_workers", WORKERS),
    ],
)


def show(
    store: Annotated[Path, typer.Argument(help="A noise store, or a run folder.")],
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="Examples to show.")] = 5,
    model: Annotated[Path | None, typer.Option(help="A trained model: how well does it tell noise from data?")] = None,
    data: Annotated[Path | None, typer.Option(help="With --model: predictions on real texts to compare with.")] = None,
) -> None:
    """Show masked inputs, the words they hid, and what was written; share of copies; how easily noise is told apart."""
    from rich.console import Console

    from ebmcal.noise.hardness import KEPT_FROM, kept_share
    from ebmcal.noise.store import NoiseStore
    from ebmcal.runfolder import RunFolder

    console, run = Console(), RunFolder(store)
    if data and not model:
        raise EbmcalError("--data goes with --model: the energies of a model are compared.")
    if model and run.metrics.exists():
        raise EbmcalError(
            "--model is for a noise store; of a run, how its models tell noise from data is shown without."
        )
    if model and not model.is_dir():
        raise EbmcalError(f"The model folder {model} is not there.")
    if model and not data:
        raise EbmcalError("Give the predictions on real texts as well: --data RUN/predictions/CELL/test.parquet")
    if run.metrics.exists():
        _show_run(console, run, n)
        return
    if not store.is_dir():
        what = "a file" if store.exists() else "not there"
        raise EbmcalError(f"{store} is {what}; give a run folder or a noise store.")
    opened = NoiseStore.open(store)
    kept = kept_share(opened.rows(KEPT_FROM))
    facts = {"texts": len(opened), "identical to their source": f"{opened.identical_share:.1%}"}
    facts |= {"kept words": "none to keep" if kept is None else f"{kept:.0%}"}
    _facts(console, {**opened.identity, **facts, "thrown away": opened.thrown_away() or "none"})
    for row in opened.rows(n * 8):
        if row["sample"] == 0 and n > 0:
            _example(console, row["masked"], row["hidden"], row["text"], row["text_pair"])
            n -= 1
    if model and data:
        console.print(_told_apart(opened, model, data), highlight=False)


def _show_run(console: "Console", run: "RunFolder", n: int) -> None:
    from ebmcal.storage.atomic import read_json
    from ebmcal.tables import hardness_table, select_columns, to_rich

    document = read_json(run.metrics)
    table = hardness_table(document)
    if not table.rows and not document.get("noise"):
        raise EbmcalError(f"The run {run.root} used no noise: none of its methods has an energy that is trained.")
    if not table.rows:
        version = (document.get("versions") or {}).get("ebmcal", "an earlier version")
        console.print(f"{run.root} was made by ebmcal {version}, which did not measure how hard its noise was.")
    told = ("source", "method", "probe", "training", "held_out", "used")
    texts = select_columns(table, lambda key: key == "source" or key not in told)
    for part in (replace(texts, notes=()), select_columns(table, told.__contains__)):  # both fit a terminal
        if part.rows:
            console.print(to_rich(part))
    examples = read_json(run.noise_examples) if run.noise_examples.exists() else []
    for row in _in_turns(examples, len(document.get("noise") or {}))[:n]:
        _example(console, row["masked"], row["hidden"], row["noise"], row["noise_pair"])


def _in_turns(examples: list[dict[str, Any]], n_sources: int) -> list[dict[str, Any]]:
    """One of each source, then the next of each; a run folder has them source by source, as many of each."""
    size = -(-len(examples) // max(1, n_sources))
    return [row for i in range(size) for row in examples[i::size]]


def _facts(console: "Console", facts: dict[str, object]) -> None:
    for key, value in facts.items():
        console.print(f"{key}: {value}", markup=False, highlight=False)


def _example(console: "Console", masked: str, hidden: list[str], text: str, pair: str | None) -> None:
    """A noise text; of one that a language model wrote also what it read, of another only its source."""
    written = text if pair is None else f"{text} <SEP> {pair}"
    read = (("\nmasked ", masked), ("hidden ", " | ".join(hidden))) if hidden else (("\nsource ", masked),)
    for title, line in (*read, ("written", written)):
        console.print(f"{title}  {line}", markup=False, highlight=False)


def _told_apart(store: "NoiseStore", model: Path, data: Path) -> str:
    """The AUROC of the model's energy between noise and real texts."""
    from ebmcal.errors import require_extra
    from ebmcal.metrics import ood_detection
    from ebmcal.predictions import Predictions

    require_extra("train", "torch", "transformers")
    from ebmcal.model import load

    rows = [row["text"] if row["text_pair"] is None else (row["text"], row["text_pair"]) for row in store.rows(500)]
    figures = ood_detection(-Predictions.read(data).require_energies(), -load(model).energy(rows))
    return f"\nThe energy of {model} tells noise from data {figures['auroc']:.1%} of the time (AUROC)."
