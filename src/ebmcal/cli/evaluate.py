"""`ebmcal evaluate`: metrics of prediction files of any model, compared, calibrated and explained."""

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation


class OutputFormat(str, Enum):
    """Formats of the printed result."""

    table = "table"
    markdown = "markdown"
    latex = "latex"
    json = "json"


def evaluate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Predictions, FILE or NAME=FILE: .parquet, .csv, .tsv, .jsonl, .json, .npz, or - for standard input.",
        ),
    ],
    fit: Annotated[
        list[str] | None, typer.Option(help="Predictions to fit calibrators on: one for all files, or one for each.")
    ] = None,
    calibrator: Annotated[
        list[str] | None, typer.Option(help="Calibrator to fit; settings may follow: scaling-binning:n_bins=15.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="Predictions for other texts: one for all files, or one for each.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Name of the file to compare the others with. [default: the first]")
    ] = None,
    unpaired: Annotated[bool, typer.Option("--unpaired", help="The files have different rows: no tests.")] = False,
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Also evaluate the mean of all files.")] = False,
    multilabel: Annotated[
        bool, typer.Option("--multilabel", help="A text may have several labels (a list; a|b in CSV).")
    ] = False,
    metrics: Annotated[str | None, typer.Option(help="Metrics, separated by commas.")] = None,
    n_bins: Annotated[int, typer.Option(min=1, help="Bins of the binned calibration errors.")] = 20,
    resamples: Annotated[
        int, typer.Option(min=0, max=100_000, help="Resamples for intervals and tests; 0 for none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide rounded probabilities by the sums of their rows.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show intervals.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", "-f", help="Output format.")] = OutputFormat.table,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
) -> None:
    """Evaluate prediction files: accuracy, calibration and ranking with intervals, tests and a verdict."""
    from ebmcal.evaluation import evaluate
    from ebmcal.storage import write_text

    _check_outputs([*files, *(fit or []), *(ood or [])], {"--json": json_file, "--report": report})
    names = None if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()]
    found = evaluate(
        files, metrics=names, n_bins=n_bins, n_resamples=resamples, seed=seed, reference=reference,
        paired=not unpaired, ensemble=ensemble, fit=fit or None, calibrator=calibrator, ood=ood or None,
        normalize=normalize, multilabel=multilabel, progress=None,
    )  # fmt: skip
    _print(found, format, verbose)
    if json_file is not None:
        write_text(json_file, _to_text(found))
        typer.echo(f"Results written to {json_file}.", err=True)
    if report is not None:
        typer.echo(f"Report written to {found.report(report)}.", err=True)


def _check_outputs(inputs: list[str], outputs: dict[str, Path | None]) -> None:
    """Raise before any work if an output would overwrite an input or cannot be written."""
    from ebmcal.evaluation.inputs import split_name
    from ebmcal.storage import check_writable

    read = {Path(str(split_name(source)[1])).resolve() for source in inputs}
    for option, path in outputs.items():
        if path is not None:
            check_writable(path, option)
            if path.resolve() in read:
                raise EbmcalError(f"{option} {path} would overwrite the predictions in it. Choose another file.")


def _print(found: "Evaluation", format: OutputFormat, verbose: bool) -> None:
    from rich.console import Console

    from ebmcal.reports.tables import comparison_table, detection_table
    from ebmcal.reports.tables.table import WIDTH

    if format is OutputFormat.json:
        typer.echo(_to_text(found), nl=False)
        return
    tables = [t for t in (found.table(verbose=verbose), comparison_table(found), detection_table(found)) if len(t)]
    if format is OutputFormat.table:
        console = Console()
        for table in tables:
            table.print(console if console.is_terminal else Console(width=WIDTH))
        for sentence in found.verdicts():
            typer.echo(sentence)
        return
    texts = [table.to_markdown() if format is OutputFormat.markdown else table.to_latex() for table in tables]
    typer.echo("\n\n".join(texts))


def _to_text(found: "Evaluation") -> str:
    return json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
