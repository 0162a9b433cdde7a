"""`ebmcal demo`: the whole method on real text with real pretrained weights, in minutes on two cores."""

from pathlib import Path
from typing import Annotated

import typer

#: Film-review sentences, the MiniLM encoder, noise spliced from the same sentences; the methods of every run.
SETTINGS = {
    "task": "rotten-tomatoes",
    "max_train_rows": 1000,
    "max_eval_rows": 500,
    "encoder": "minilm",
    "max_length": 64,
}


def demo(
    output: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of both models.")] = 1,
) -> None:
    """Finetune MiniLM on film-review sentences, plainly and with an energy-based model, and compare."""
    from ebmcal.cli.run import run_config
    from ebmcal.config import load_config

    run_config(load_config(None, SETTINGS | {"output": output, "seeds": [seed]}))
