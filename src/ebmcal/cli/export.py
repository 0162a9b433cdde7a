"""`ebmcal export`: a model as an ONNX file that runs without torch. A thin call of `ebmcal.export`."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[Path, typer.Argument(help="A model folder: of a run, or any sequence classifier.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The folder to write: model.onnx, tokenizer.json, config.json.")],
    energy: Annotated[bool, typer.Option("--energy", help="The energy as a second output.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Also model_int8.onnx, and what it costs.")] = False,
    on: Annotated[
        Path | None, typer.Option(help="Texts to check it on (CSV, TSV, JSONL, Parquet); else the run's test rows.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column of the text, with --on.")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="Column of the second text, with --on.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label, with --on.")] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Texts that it is checked on, at most.")] = 500,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that is there.")] = False,
) -> None:
    """Write ONNX with the temperature in it; it is there only if it says what PyTorch says, to 1e-4."""
    from ebmcal.cli.notices import as_notices
    from ebmcal.sharing.export import export

    with as_notices():
        done = export(
            model, onnx, energy=energy, int8=int8, on=on, text_column=text_column, text_pair_column=text_pair_column,
            label_column=label_column, max_rows=max_rows, overwrite=overwrite, progress=True,
        )  # fmt: skip
    typer.echo(str(done))
