"""`ebmcal predict`: models on a file or a pipe of texts, with the calibrator and the rule that are kept with them.

A thin call of `ebmcal.streaming.predict_file`.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def predict(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [FILE|-]",
            help="A model folder (several are averaged), then CSV, TSV, JSONL, Parquet, lines (.txt), or - for a pipe.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV, JSONL, Parquet or NPZ; without it, standard output.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column of the text. [default: the model's, or text]")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="Column of the second text.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label, if there is one.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Logits, without the calibrator and rule of the model.")] = False,
    rule: Annotated[Path | None, typer.Option(help="Decide by this rule (of `ebmcal decide --output`).")] = None,
    no_rule: Annotated[bool, typer.Option("--no-rule", help="Leave out the rule that is kept with the model.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a bad row instead of an error row.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over an output that is there.")] = False,
    mc_dropout: Annotated[int, typer.Option(help="Average so many passes with dropout on, for comparison.")] = 0,
    input_format: Annotated[
        str | None, typer.Option(help="csv, tsv, jsonl, parquet or lines. [default: by the ending; lines from a pipe]")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the input, as latin-1. [default: UTF-8]")] = None,
    output_format: Annotated[str | None, typer.Option("--format", help="Of standard output: csv or jsonl.")] = None,
) -> None:
    """Label, probabilities, confidence, energy and decision of every row, beside the user's own columns."""
    from ebmcal.cli.notices import as_notices
    from ebmcal.model import load
    from ebmcal.progress import Console
    from ebmcal.streaming import predict_file

    folders, source = _models_and_source(models)
    columns: Any = {"text_column": text_column, "text_pair_column": text_pair_column, "label_column": label_column}
    with as_notices():
        members = [load(folder, progress=True) for folder in folders]
        if output is not None and output.suffix.lower() == ".npz":
            members[0].predict(source, calibrated=not raw, progress=True, **columns).write(output)
            return
        model, decided_by = _predictor(members, rule, mc_dropout, no_rule or raw)
        done = predict_file(
            model, source, output, calibrated=not raw, rule=decided_by, strict=strict, overwrite=overwrite,
            input_format=input_format, encoding=encoding, output_format=output_format, reporter=Console(), **columns,
        )  # fmt: skip
    where = "standard output" if output is None else str(output)
    typer.echo(f"{where}: {_told(done, decided_by)}", err=output is None)


def _models_and_source(given: list[str]) -> tuple[list[str], str]:
    """Model folders and the input: the last one if it is no folder, else standard input."""
    from ebmcal.errors import EbmcalError

    *folders, last = given
    if len(given) == 1 or (last != "-" and Path(last).is_dir()):
        folders, last = given, "-"
    if last == "-" and sys.stdin.isatty():
        raise EbmcalError(f"No texts came. Name a file, or send texts: echo 'a text' | ebmcal predict {given[0]} -")
    return folders, last


def _predictor(members: list[Any], rule_file: Path | None, mc_dropout: int, no_rule: bool) -> tuple[Any, Any]:
    """What predicts and the rule it is decided by: one that was named, or the one in the folder of a single model."""
    from ebmcal.decisions import Rule
    from ebmcal.decisions.in_model import require_bound
    from ebmcal.ensemble import Ensemble

    is_single = len(members) == 1 and not mc_dropout
    model = members[0] if is_single else Ensemble(members, mc_dropout)
    rule = Rule.read(rule_file) if rule_file is not None else None
    if rule is not None and rule.model is not None:
        require_bound(rule, members[0].folder, members[0].calibrator, rule_file)
    if rule is None and is_single and not no_rule:
        rule = members[0].rule
    return model, rule


def _told(done: Any, rule: Any) -> str:
    by, folded = done.meta.get("calibrator"), done.meta.get("folded_temperature")
    state = f"calibrated by {by['name']}" if by else "averaged" if "ensemble" in done.meta else "not calibrated"
    state = f"T = {folded:.4g} is in the weights" if folded and not by else state
    parts = [f"{done.n_rows:,} rows", state]
    parts += [f"{done.n_abstained:,} abstained from"] if rule and rule.abstention else []
    parts += [f"{done.n_unusual:,} unusual"] if rule and rule.unusual else []
    parts += [f"{done.n_before:,} were there already"] if done.n_before else []
    parts += [f"{done.n_errors:,} error rows, the first: {done.first_error}"] if done.n_errors else []
    return ", ".join(parts)
