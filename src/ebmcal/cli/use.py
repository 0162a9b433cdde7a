"""Commands that use a model: `ebmcal predict` on files, `serve` over HTTP, `export` to ONNX, `push` to the hub."""

import inspect
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ebmcal.cli import options as shared
from ebmcal.cli.options import argument, flag, option
from ebmcal.errors import EbmcalError, plural
from ebmcal.serving import Limits

if TYPE_CHECKING:
    from ebmcal.bulk_prediction import Summary
    from ebmcal.model import Ensemble


def predict(
    models: list[str] = argument(
        "Model or run directory (several are averaged), then CSV, TSV, JSON(L), Parquet, .txt or - (stdin).",
        metavar="MODEL... [FILE|-]",
    ),
    output: Path | None = option("CSV, JSONL or Parquet file. [default: standard output]", None, "--output", "-o"),
    text_column: str | None = shared.TEXT_COLUMN,
    text_pair_column: str | None = shared.TEXT_PAIR_COLUMN,
    label_column: str | None = option("Label column, if there is one."),
    id_column: str | None = option("Column with ids. [default: that of the run, id, or the row number]"),
    raw: bool = flag("Write logits; no calibrator, no abstention.", "--raw"),
    rule: Path | None = option("Abstention rule (from `ebmcal abstain --output`)."),
    no_rule: bool = flag("Ignore the abstention rule of the model.", "--no-rule"),
    strict: bool = flag("Stop at the first bad row.", "--strict"),
    overwrite: bool = shared.OVERWRITE,
    escape_formulas: bool = flag("Put ' before CSV cells that start with =, +, - or @.", "--escape-formulas"),
    mc_dropout: int = option("Average this many passes with dropout.", 0, min=0),
    precision: str = option("fp32, bf16 (slightly different probabilities) or auto (the faster).", "fp32"),
    input_format: str | None = option("csv, tsv, jsonl, json, parquet or lines. [default: by suffix; stdin: lines]"),
    encoding: str | None = option("Encoding of the input. [default: UTF-8]"),
    output_format: str | None = option("Standard output: csv or jsonl.", None, "--format"),
    engine: str = option("local or ray.", "local"),
    workers: int | None = shared.WORKERS,
    ray_address: str | None = shared.RAY_ADDRESS,
) -> None:
    """Predict label, probabilities, confidence, energy and abstention for every row; your columns are kept.

    An interrupted command continues when it is run again. Exit codes: 0 done (bad rows are kept with their error), 1
    error, 2 wrong usage, 130 interrupted.
    """
    from ebmcal.bulk_prediction import check_paths, predict_file
    from ebmcal.selective import AbstentionRule

    directories, source = _models_and_source(models)
    check_paths(source, output, overwrite, input_format, encoding, output_format, engine)
    chosen = AbstentionRule.read(rule) if rule else None
    done = predict_file(
        _load(directories, mc_dropout, precision, warn=not (raw or no_rule or rule)), source, output,
        text_column=text_column, text_pair_column=text_pair_column, label_column=label_column, id_column=id_column,
        calibrated=not raw,
        rule=chosen or (None if raw or no_rule else "model"), strict=strict, overwrite=overwrite,
        escape_formulas=escape_formulas, input_format=input_format, encoding=encoding, output_format=output_format,
        engine=engine, workers=workers, ray_address=ray_address,  # type: ignore[arg-type]
    )  # fmt: skip
    typer.echo(f"{'standard output' if output is None else output}: {_summary_text(done)}", err=output is None)


def _models_and_source(given: list[str]) -> tuple[list[str], str]:
    """Model directories and the input: the last argument unless it is a directory, else standard input."""
    *directories, last = given
    if len(given) == 1 or (last != "-" and os.path.isdir(last)):
        directories, last = given, "-"
    elif last != "-" and not os.path.exists(last) and (" " in last or not Path(last).suffix):
        shown = last if len(last) <= 60 else "a text"
        raise EbmcalError(
            f"{last[:60]!r} is neither a file nor a directory. To predict a text, pipe it: "
            f"echo {shlex.quote(shown)} | ebmcal predict {' '.join(directories)} -"
        )
    if last == "-" and sys.stdin.isatty():
        raise EbmcalError(f"No texts. Name a file, or pipe texts: echo 'a text' | ebmcal predict {given[0]} -")
    return directories, last


def _load(directories: list[str], mc_dropout: int, precision: str = "fp32", warn: bool = False) -> "Any | Ensemble":
    """The model, or an ensemble; an ensemble has no abstention rule, which is worth a warning."""
    from ebmcal.model import Ensemble, load
    from ebmcal.run_dir import read_card

    members = [load(directory, precision=precision) for directory in directories]
    if len(members) == 1 and not mc_dropout:
        return members[0]
    ruled = [str(member.folder) for member in members if "abstention" in read_card(member.folder)]
    if warn and ruled:
        names = " and ".join(ruled)
        warnings.warn(f"the abstention rule of {names} does not hold for the average and is not applied.", stacklevel=2)
    return Ensemble(members, mc_dropout)


def _summary_text(done: "Summary") -> str:
    calibrator, folded = done.meta.get("calibrator"), done.meta.get("folded_temperature")
    state = "averaged" if "ensemble" in done.meta else "not calibrated"
    state = f"calibrated by {calibrator['name']}" if calibrator else state
    parts = [
        plural(done.n_rows, "row"),
        f"temperature {folded:.4g} in the weights" if folded and not calibrator else state,
    ]
    counts = {"abstained": done.n_abstained, "OOD": done.n_ood, "already done": done.n_reused}
    parts += [f"{count:,} {name}" for name, count in counts.items() if count]
    parts += [f"{done.n_errors:,} with errors, the first: {done.first_error}"] if done.n_errors else []
    return ", ".join(parts)


def _with_limits(function: Callable[..., None]) -> Callable[..., None]:
    """The command with every field of `Limits` as an option."""
    *own, last = inspect.signature(function).parameters.values()
    limits = [
        last.replace(name=limit.name, kind=last.KEYWORD_ONLY, annotation=type(limit.default), default=declared)
        for limit in fields(Limits)
        for declared in [option(limit.metadata["help"], limit.default)]
    ]
    function.__signature__ = inspect.Signature([*own, *limits])  # type: ignore[attr-defined]  # read by typer
    return function


@_with_limits
def serve(
    model: Path = shared.MODEL,
    ui: bool = flag("Add a web page at / to try the model.", "--ui"),
    baseline: Path | None = option("Another model, shown next to it in the web UI."),
    host: str = option("Address to listen on; 0.0.0.0 for all.", "127.0.0.1"),
    port: int = option("Port; 0 for a free one.", 8000),
    log: Path | None = option("Append all answers, without texts, to this .jsonl file (see ebmcal monitor)."),
    log_texts: bool = flag("Also write texts to the logs.", "--log-texts"),
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
    model: Path = shared.MODEL,
    onnx: Path = option(
        "Directory to create; model.onnx, tokenizer.json and config.json go into it.", ..., metavar="DIR"
    ),
    energy: bool = flag("Add the energy as a second output.", "--energy"),
    int8: bool = flag("Add model_int8.onnx and measure its cost.", "--int8"),
    data: Path | None = option("Texts for the verification: CSV, TSV, JSONL, Parquet. [default: test split]"),
    text_column: str | None = option("Text column of --data."),
    text_pair_column: str | None = option("Second text column of --data."),
    label_column: str | None = option("Label column of --data."),
    max_rows: int = option("Maximum number of texts for the verification.", 500, min=1),
    overwrite: bool = flag("Replace an earlier export.", "--overwrite"),
) -> None:
    """Write a model as ONNX with its temperature; it is kept only if it agrees with PyTorch to 1e-4."""
    from ebmcal.export import export_onnx

    done = export_onnx(
        model, onnx, energy=energy, int8=int8, data=data, text_column=text_column,
        text_pair_column=text_pair_column, label_column=label_column, max_rows=max_rows, overwrite=overwrite,
    )  # fmt: skip
    typer.echo(str(done))


def push(
    model: Path = shared.MODEL,
    name: str = argument("USER/NAME on the hub."),
    public: bool = flag("Visible to everybody; private by default.", "--public"),
    dry_run: bool = flag("List what would be sent.", "--dry-run"),
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
