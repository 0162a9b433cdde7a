"""`ebmcal export` and `ebmcal push`: a model as verified ONNX, and on the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[Path, typer.Argument(help="Model directory, or a run: its recommended model.")],
    onnx: Annotated[
        Path,
        typer.Option(
            "--onnx", metavar="DIR", help="Directory to create; model.onnx, tokenizer.json and config.json go into it."
        ),
    ],
    energy: Annotated[bool, typer.Option("--energy", help="Add the energy as a second output.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Add model_int8.onnx and measure its cost.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Texts for the verification: CSV, TSV, JSONL, Parquet. [default: test split]")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Text column of --data.")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="Second text column of --data.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Label column of --data.")] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Maximum number of texts for the verification.")] = 500,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write a model as ONNX with its temperature; it is kept only if it agrees with PyTorch to 1e-4."""
    from ebmcal.export import export_onnx

    done = export_onnx(
        model, onnx, energy=energy, int8=int8, data=data, text_column=text_column,
        text_pair_column=text_pair_column, label_column=label_column, max_rows=max_rows, overwrite=overwrite,
    )  # fmt: skip
    typer.echo(str(done))


def push(
    model: Annotated[Path, typer.Argument(help="Model directory, or a run: its recommended model.")],
    name: Annotated[str, typer.Argument(help="USER/NAME on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="Visible to everybody; private by default.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be sent.")] = False,
) -> None:
    """Push a model with its calibrator, abstention rule and model card to the Hugging Face hub."""
    from ebmcal.export.hub import CARD, check_name, files_to_push, push_to_hub

    check_name(name)
    files = files_to_push(model)
    for path in files:
        typer.echo(f"{path.stat().st_size / 1e6:10.2f} MB  {path.name}")
    if not any(path.name == CARD for path in files):
        typer.echo(f"{'':10}     {CARD} (model card, written first)")
    if dry_run:
        typer.echo(f"{name}: nothing was sent (--dry-run).")
        return
    typer.echo(f"Pushed to {push_to_hub(model, name, private=not public)}")
