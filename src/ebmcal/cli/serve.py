"""`ebmcal serve`: a model over HTTP. `ebmcal export`: as verified ONNX. `ebmcal push`: on the Hugging Face hub."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ebmcal.cli.options import Model
from ebmcal.serving import Limits


def _with_limits(function: Callable[..., None]) -> Callable[..., None]:
    """The command with every field of `Limits` as an option."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    limits = [
        inspect.Parameter(
            limit.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=limit.default,
            annotation=Annotated[type(limit.default), typer.Option(help=limit.metadata["help"])],
        )
        for limit in fields(Limits)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *limits])  # type: ignore[attr-defined]
    return function


@_with_limits
def serve(
    model: Model,
    ui: Annotated[bool, typer.Option("--ui", help="Add a web page at / to try the model.")] = False,
    baseline: Annotated[Path | None, typer.Option(help="Another model, shown next to it in the web UI.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.")] = 8000,
    log: Annotated[
        Path | None, typer.Option(help="Append all answers, without texts, to this .jsonl file (see ebmcal monitor).")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Also write texts to the logs.")] = False,
    **limits: Any,
) -> None:
    """Serve a model over HTTP: POST /v1/classify. Set EBMCAL_API_KEY in the environment to require an API key."""
    checked = Limits(**limits)
    from ebmcal.serving import server

    server.serve(
        model, ui=ui, baseline=baseline, host=host, port=port, limits=checked, log_texts=log_texts, log_file=log,
        report=lambda text: typer.echo(text, err=True),
    )  # fmt: skip


def export(
    model: Model,
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
    model: Model,
    name: Annotated[str, typer.Argument(help="USER/NAME on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="Visible to everybody; private by default.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be sent.")] = False,
) -> None:
    """Push a model with its calibrator, abstention rule and model card to the Hugging Face hub."""
    from ebmcal.export import MODEL_CARD, check_name, files_to_push, push_to_hub

    check_name(name)
    files = files_to_push(model)
    for path in files:
        typer.echo(f"{path.stat().st_size / 1e6:10.2f} MB  {path.name}")
    if not any(path.name == MODEL_CARD for path in files):
        typer.echo(f"{'':10}     {MODEL_CARD} (model card, written first)")
    if dry_run:
        typer.echo(f"{name}: nothing was sent (--dry-run).")
        return
    typer.echo(f"Pushed to {push_to_hub(model, name, private=not public)}")
