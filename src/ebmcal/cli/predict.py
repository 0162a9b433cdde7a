"""`ebmcal predict`: models on a file or a pipe of texts, with the calibrator and the rule that are kept with them.

A thin call of `ebmcal.streaming.predict_file`.
"""

import sys
import warnings
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
    from ebmcal.progress import Console
    from ebmcal.streaming.job import check_places, predict_file

    folders, source = _models_and_source(models)
    columns: Any = {"text_column": text_column, "text_pair_column": text_pair_column, "label_column": label_column}
    reading: Any = {"input_format": input_format, "encoding": encoding, "output_format": output_format}
    to_npz = output is not None and output.suffix.lower() == ".npz"
    with as_notices():
        if to_npz:
            _check_npz(
                source, output, overwrite, rule=rule, strict=strict, input_format=input_format, encoding=encoding
            )
        else:
            check_places(source, output, overwrite, **reading)
        decided_by = None if to_npz else _rule(folders, rule, mc_dropout, no_rule or raw)
        model = _predictor(folders, mc_dropout, decided_by)
        if len(folders) == 1 and not (to_npz or mc_dropout or Path(folders[0]).expanduser().is_dir()):  # of the hub
            decided_by = _rule_of_hub(model, decided_by, rule, no_rule or raw)
        if to_npz:
            found = model.predict(source, calibrated=not raw, progress=True, **columns)
            found.write(output)
            typer.echo(f"{output}: {found.n_rows:,} rows")
            return
        done = predict_file(
            model, source, output, calibrated=not raw, rule=decided_by, strict=strict, overwrite=overwrite,
            reporter=Console(), **reading, **columns,
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


def _check_npz(source: str, output: Any, overwrite: bool, **unused: Any) -> None:
    """Refuse, before a model is loaded, what the arrays of an NPZ have no place for, and a file that is there."""
    from ebmcal.data.parts import check_file
    from ebmcal.errors import EbmcalError
    from ebmcal.streaming.writing import check_output

    given = [f"--{name.replace('_', '-')}" for name, value in unused.items() if value]
    if given or source == "-":
        what = given[0] if given else "a pipe"
        raise EbmcalError(
            f"{output}: an NPZ holds predictions of a whole file, and {what} is not for it. Write Parquet."
        )
    check_output(output, source, overwrite)
    check_file(Path(source))


def _rule(folders: list[str], rule_file: Path | None, mc_dropout: int, no_rule: bool) -> Any:
    """The rule to decide by, before a model is loaded: one that was named, or the one that a single model keeps."""
    from ebmcal.calibrators import attached
    from ebmcal.decisions import RULE_FILE, Rule, attached_rule
    from ebmcal.decisions.in_model import require_bound
    from ebmcal.errors import EbmcalError

    first, is_single = Path(folders[0]).expanduser(), len(folders) == 1 and not mc_dropout
    if rule_file is not None:
        rule = Rule.read(rule_file)
        if rule.model is not None and not is_single:
            raise EbmcalError(
                f"{rule_file} was fitted for one model, and its promise is not for an average. Fit one on predictions "
                "of the average: ebmcal decide --on averaged.parquet --output rule.json"
            )
        if rule.model is not None and first.is_dir():
            require_bound(rule, first, attached(first), rule_file)
        return rule
    if no_rule:
        return None
    if is_single:
        return attached_rule(first) if first.is_dir() else None
    ruled = [folder for folder in folders if (Path(folder).expanduser() / RULE_FILE).exists()]
    if ruled:
        warnings.warn(
            f"The rule of {' and '.join(ruled)} is for that model alone and not for the average, so nothing is "
            "decided. Fit one on predictions of the average: ebmcal decide --on averaged.parquet --output rule.json",
            stacklevel=2,
        )
    return None


def _rule_of_hub(model: Any, given: Any, rule_file: Path | None, no_rule: bool) -> Any:
    """The rule to decide by where the model had to come from the hub first: that in its folder, or the one named."""
    from ebmcal.decisions.in_model import require_bound

    if given is not None and given.model is not None:
        require_bound(given, model.folder, model.calibrator, rule_file)
    return given if given is not None or no_rule else model.rule


def _predictor(folders: list[str], mc_dropout: int, rule: Any) -> Any:
    """What predicts: a model, which measures what the rule asks for, or several as one."""
    from dataclasses import replace

    from ebmcal.errors import EbmcalError

    places = [Path(folder).expanduser().resolve() for folder in folders]
    twice = next((folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise EbmcalError(f"{twice} was given twice: it would count twice in the average. Give each model once.")
    from ebmcal.ensemble import Ensemble
    from ebmcal.model import load

    members = [load(folder, progress=True) for folder in folders]
    if len(members) == 1 and not mc_dropout:
        return replace(members[0], fitted_rule=rule) if rule is not None else members[0]
    return Ensemble(members, mc_dropout)


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
