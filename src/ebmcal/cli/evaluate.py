"""`ebmcal evaluate`: prediction files of any model. `ebmcal report`: a run directory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebmcal.cli.options import JsonFile, Normalize, ReportFile, check_outputs, split_names, write_results
from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation


def evaluate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Predictions, FILE or NAME=FILE: .parquet, .csv, .tsv, .jsonl, .json, .npz, - (standard input), or a "
            "run directory: its test predictions.",
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
    normalize: Normalize = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show intervals.")] = False,
    format: Annotated[
        Literal["table", "markdown", "latex", "json"], typer.Option("--format", "-f", help="Output format.")
    ] = "table",
    json_file: JsonFile = None,
    report: ReportFile = None,
) -> None:
    """Evaluate prediction files: accuracy, calibration and ranking with intervals, tests and a verdict."""
    from ebmcal.evaluation import evaluate
    from ebmcal.evaluation.inputs import split_name

    files = [source for given in files for source in _sources(given)]
    inputs = [str(split_name(source)[1]) for source in (*files, *(fit or ()), *(ood or ()))]
    check_outputs({"--json": json_file, "--report": report}, inputs)
    found = evaluate(
        files, metrics=split_names(metrics), n_bins=n_bins, n_resamples=resamples, seed=seed, reference=reference,
        paired=not unpaired, ensemble=ensemble, fit=fit or None, calibrator=calibrator, ood=ood or None,
        normalize=normalize, multilabel=multilabel, progress=None,
    )  # fmt: skip
    numbers = json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    if format == "json":
        typer.echo(numbers)
    else:
        _print(found, format, verbose)
    write_results(found, numbers, json_file, report)


def _sources(given: str) -> list[str]:
    """The test predictions of all trials of a run directory; any other source as it is."""
    from ebmcal.run_dir import RunDir

    run = RunDir(Path(given))
    if not run.config.is_file():
        return [given]
    paths = {trial.name: run.predictions(trial, "test") for trial in run.trials()}
    found = [f"{name}={path}" for name, path in paths.items() if path.is_file()]
    if not found:
        raise EbmcalError(f"The run {given} has no test predictions yet. Finish it first.")
    return found


def _print(found: "Evaluation", format: str, verbose: bool) -> None:
    from ebmcal.reports.tables import comparison_table, detection_table

    tables = [t for t in (found.table(verbose=verbose), comparison_table(found), detection_table(found)) if len(t)]
    if format != "table":
        typer.echo("\n\n".join(table.to_markdown() if format == "markdown" else table.to_latex() for table in tables))
        return
    for table in tables:
        table.print()
    for sentence in found.verdicts():
        typer.echo(sentence)


def report(
    run: Annotated[Path, typer.Argument(help="Run directory of `ebmcal run`, finished or not.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. [default: RUN/report.html; text is printed]")
    ] = None,
    format: Annotated[
        Literal["html", "markdown", "latex", "json"], typer.Option("--format", "-f", help="Output format.")
    ] = "html",
) -> None:
    """Write the report of a run: recommendation, results, errors, plots; or its tables as text."""
    from ebmcal.reports import report_text, write_report
    from ebmcal.storage import write_text

    check_outputs({"--output": output})
    if format == "html":
        typer.echo(f"Wrote {write_report(run, output)}")
        return
    text = report_text(run, format)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"Wrote {output}")
