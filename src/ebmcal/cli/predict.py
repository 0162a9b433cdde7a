"""`ebmcal predict`: a model on a file of texts, with the calibrator that is kept in its folder."""

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[Path, typer.Argument(help="A model folder: of a run, or any sequence classifier.")],
    texts: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Parquet, CSV, JSONL or NPZ.")],
    text_column: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    text_pair_column: Annotated[str | None, typer.Option(help="Column of the second text.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label, if there is one.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Logits, without the calibrator kept with the model.")] = False,
) -> None:
    """Write label, logits or calibrated probabilities, energy and text of every row."""
    from ebmcal.cli.notices import as_notices
    from ebmcal.model import load

    with as_notices():
        predictions = load(model).predict(
            texts, text_column=text_column, text_pair_column=text_pair_column, label_column=label_column,
            calibrated=not raw, progress=True,
        )  # fmt: skip
        predictions.write(output)
    by, folded = predictions.meta.get("calibrator"), predictions.meta.get("folded_temperature")
    state = f"calibrated by {by['name']}" if by else "not calibrated"
    state = f"T = {folded:.4g} is in the weights" if folded and not by else state
    typer.echo(f"{output}: {predictions.n_rows} rows, {state}")
