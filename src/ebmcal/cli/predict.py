"""`ebmcal predict`: one or several models on a file or on standard input."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebmcal.cli.options import Overwrite

if TYPE_CHECKING:
    from ebmcal.bulk_prediction import Summary
    from ebmcal.model import Ensemble


def predict(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [FILE|-]",
            help="Model or run directory (several are averaged), then CSV, TSV, JSON(L), Parquet, .txt or - (stdin).",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV, JSONL or Parquet file. [default: standard output]")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Text column. [default: the model's, or text]")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="Second text column.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Label column, if there is one.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Column with ids. [default: id, or the row number]")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write logits; no calibrator, no abstention.")] = False,
    rule: Annotated[Path | None, typer.Option(help="Abstention rule (from `ebmcal abstain --output`).")] = None,
    no_rule: Annotated[bool, typer.Option("--no-rule", help="Ignore the abstention rule of the model.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    overwrite: Overwrite = False,
    escape_formulas: Annotated[
        bool, typer.Option("--escape-formulas", help="Put ' before CSV cells that start with =, +, - or @.")
    ] = False,
    mc_dropout: Annotated[int, typer.Option(min=0, help="Average this many passes with dropout.")] = 0,
    input_format: Annotated[
        str | None, typer.Option(help="csv, tsv, jsonl, json, parquet or lines. [default: by suffix; stdin: lines]")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the input. [default: UTF-8]")] = None,
    output_format: Annotated[str | None, typer.Option("--format", help="Standard output: csv or jsonl.")] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Ray: number of one-thread workers.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Ray: HOST:PORT of a cluster, or auto.")] = None,
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
        _load(directories, mc_dropout, warn=not (raw or no_rule or rule)), source, output, text_column=text_column,
        text_pair_column=text_pair_column, label_column=label_column, id_column=id_column, calibrated=not raw,
        rule=chosen or (None if raw or no_rule else "model"), strict=strict, overwrite=overwrite,
        escape_formulas=escape_formulas, input_format=input_format, encoding=encoding, output_format=output_format,
        engine=engine, workers=workers, ray_address=ray_address,  # type: ignore[arg-type]
    )  # fmt: skip
    typer.echo(f"{'standard output' if output is None else output}: {_summary_text(done)}", err=output is None)


def _models_and_source(given: list[str]) -> tuple[list[str], str]:
    """Model directories and the input: the last argument unless it is a directory, else standard input."""
    from ebmcal.errors import EbmcalError

    *directories, last = given
    if len(given) == 1 or (last != "-" and Path(last).is_dir()):
        directories, last = given, "-"
    if last == "-" and sys.stdin.isatty():
        raise EbmcalError(f"No texts. Name a file, or pipe texts: echo 'a text' | ebmcal predict {given[0]} -")
    return directories, last


def _load(directories: list[str], mc_dropout: int, warn: bool = False) -> "Any | Ensemble":
    """The model, or an ensemble; an ensemble has no abstention rule, which is worth a warning."""
    from ebmcal.model import Ensemble, load
    from ebmcal.run_dir import read_card

    members = [load(directory) for directory in directories]
    if len(members) == 1 and not mc_dropout:
        return members[0]
    ruled = [str(member.folder) for member in members if "abstention" in read_card(member.folder)]
    if warn and ruled:
        names = " and ".join(ruled)
        warnings.warn(f"the abstention rule of {names} does not hold for the average and is not applied.", stacklevel=2)
    return Ensemble(members, mc_dropout)


def _summary_text(done: "Summary") -> str:
    from ebmcal.errors import plural

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
