"""`ebmcal evaluate`: judge prediction files of any model, compare them, mend them with a calibrator.

A thin call of `ebmcal.evaluate`.
"""

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import check_target


class Format(str, Enum):
    """How the result is printed."""

    table = "table"
    markdown = "markdown"
    latex = "latex"
    json = "json"


def evaluate(
    files: Annotated[
        list[Path], typer.Argument(help="Predictions: .parquet, .csv, .tsv, .jsonl, .json, .npz; - is a pipe.")
    ],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with pictures.")] = None,
    metrics: Annotated[str | None, typer.Option(help="Which metrics, separated by commas.")] = None,
    n_bins: Annotated[int, typer.Option(min=1, help="Bins of the binned calibration errors.")] = 20,
    resamples: Annotated[
        int, typer.Option(min=0, max=100_000, help="Resamples for intervals, tests; 0 for none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    fit: Annotated[
        list[Path] | None, typer.Option(help="Predictions to fit a calibrator on: one for all files, or one for each.")
    ] = None,
    calibrator: Annotated[
        list[str] | None, typer.Option(help="With --fit; settings may follow, as in scaling-binning:n_bins=15.")
    ] = None,
    ood: Annotated[
        list[Path] | None, typer.Option(help="Predictions for other text: one for all files, or one for each.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide rounded probabilities by the sums of their rows.")
    ] = False,
    unpaired: Annotated[bool, typer.Option("--unpaired", help="The files are of different rows: no tests.")] = False,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Judge the mean of all files too, as of the seeds of one method.")
    ] = False,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="A text may have several labels (a list, a|b in CSV): each by itself.")
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.table,
) -> None:
    """Judge prediction files: accuracy, calibration, ranking; with intervals, tests and calibrated rows."""
    from ebmcal.cli.notices import as_notices
    from ebmcal.evaluation import evaluate
    from ebmcal.multilabel import evaluate_labels
    from ebmcal.storage.atomic import write_text

    keep_inputs([*files, *(fit or []), *(ood or [])], {"--json": json_file, "--report": report})
    names = None if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()]
    with as_notices():
        options: dict[str, Any] = {"n_bins": n_bins, "n_resamples": resamples, "seed": seed}
        options["progress"] = sys.stderr.isatty()
        if multi_label:
            _refuse_with_labels(
                {"--ood": ood, "--unpaired": unpaired, "--ensemble": ensemble, "--normalize": normalize}
            )
            result = evaluate_labels(files, metrics=names, fit=fit or None, calibrator=calibrator, **options)
        else:
            result = evaluate(
                files, metrics=names, paired=not unpaired, ensemble=ensemble, fit=fit or None, calibrator=calibrator,
                ood=ood or None, normalize=normalize, **options,
            )  # fmt: skip
    if output is Format.table:
        print_rich(result.table())
    else:
        typer.echo(result.to_json() if output is Format.json else getattr(result.table(), output.value)())
    if json_file is not None:
        write_text(json_file, result.to_json() + "\n")
        typer.echo(f"Figures written to {json_file}.", err=True)
    if report is not None:
        typer.echo(f"Report written to {result.report(report)}.", err=True)


def keep_inputs(read: list[Path], written: dict[str, Path | None]) -> None:
    """Refuse to write over a file of predictions, or where nothing can be written: before any work."""
    inputs = {path.resolve() for path in read}
    for option, path in written.items():
        if path is not None and path.resolve() in inputs:
            raise EbmcalError(f"{option} {path} would write over the predictions in it. Choose another file.")
        if path is not None:
            check_target(path, option)


def print_rich(sheet: object) -> None:
    from rich.console import Console

    from ebmcal.tables.render import WIDTH

    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(sheet)


def _refuse_with_labels(given: dict[str, object]) -> None:
    """Refuse what is not defined where a text may have several labels."""
    for option, value in given.items():
        if value:
            raise EbmcalError(f"{option} is not defined with --multi-label: every label is judged by itself.")
