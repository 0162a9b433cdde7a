"""`ebmcal evaluate`: prediction files of any model. `ebmcal report`: a run directory. `ebmcal monitor`: a log of
predictions. `ebmcal robustness`: a model on perturbed texts.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebmcal.cli.options import (
    JsonFile,
    Model,
    Normalize,
    Overwrite,
    ReportFile,
    TextColumn,
    TextPairColumn,
    check_outputs,
    split_names,
    write_results,
)
from ebmcal.errors import EbmcalError
from ebmcal.run_dir import RunDir
from ebmcal.storage import read_json

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation, Source

#: Exit code of `monitor` for cron jobs: 0 no alarm, 1 error, 2 wrong usage.
ALARM = 3


def evaluate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Predictions, FILE or NAME=FILE: .parquet, .csv, .tsv, .jsonl, .json, - (standard input), or a "
            "run directory: its models on the test rows.",
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
    overwrite: Overwrite = False,
) -> None:
    """Evaluate prediction files: accuracy, calibration and ranking with intervals, tests and a verdict."""
    from ebmcal.evaluation import evaluate, split_name

    check_outputs(
        {"--json": json_file, "--report": report},
        [str(split_name(source)[1]) for source in (*files, *(fit or ()), *(ood or ()))],
        overwrite=overwrite,
    )
    found = evaluate(
        _sources(files), metrics=split_names(metrics), n_bins=n_bins, n_resamples=resamples, seed=seed,
        reference=reference,
        paired=not unpaired, ensemble=ensemble, fit=fit or None, calibrator=calibrator, ood=ood or None,
        normalize=normalize, multilabel=multilabel, progress=None,
    )  # fmt: skip
    numbers = json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    if format == "json":
        typer.echo(numbers)
    else:
        _print(found, format, verbose)
    write_results(found, numbers, json_file, report)


def _sources(files: list[str]) -> "list[Source] | dict[str, Source]":
    """The files; a run directory stands for its recommended model, calibrated, and all trials as they were trained."""
    if not any(RunDir(Path(given)).config.is_file() for given in files):
        return list(files)
    from ebmcal.evaluation import split_name

    named: dict[str, Source] = {}
    for given in files:
        run = RunDir(Path(given))
        found = _run_sources(run) if run.config.is_file() else dict([split_name(given)])
        named |= found
    return named


def _run_sources(run: RunDir) -> "dict[str, Source]":
    from ebmcal.calibration import read_calibrator
    from ebmcal.predictions import Predictions

    paths = {trial: run.predictions(trial, "test") for trial in run.trials()}
    found: dict[str, Source] = {trial.name: path for trial, path in paths.items() if path.is_file()}
    if not found:
        raise EbmcalError(f"The run {run.root} has no test predictions yet. Finish it first.")
    recommended = (read_json(run.results).get("recommended") if run.results.is_file() else None) or {}
    trial = next((trial for trial in paths if trial.name == recommended.get("trial")), None)
    calibrator = read_calibrator(run.model(trial)) if trial else None
    if trial is None or calibrator is None:
        return found
    name = f"{trial.name} + {recommended['calibrator']}"
    return {name: calibrator.apply(Predictions.read(paths[trial])), **found}


def _print(found: "Evaluation", format: str, verbose: bool) -> None:
    from ebmcal.advice import shorten
    from ebmcal.reports.tables import comparison_table, detection_table

    tables = [t for t in (found.table(verbose=verbose), comparison_table(found), detection_table(found)) if len(t)]
    if format != "table":
        typer.echo("\n\n".join(table.to_markdown() if format == "markdown" else table.to_latex() for table in tables))
        return
    for table in tables:
        table.print()
    for sentence in shorten(found.verdicts()):
        typer.echo(sentence)


def report(
    run: Annotated[Path, typer.Argument(help="Run directory of a finished `ebmcal run`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. [default: RUN/report.html; text is printed]")
    ] = None,
    format: Annotated[
        Literal["html", "markdown", "latex", "json"], typer.Option("--format", "-f", help="Output format.")
    ] = "html",
    overwrite: Overwrite = False,
) -> None:
    """Write the report of a run: recommendation, results, errors, plots; or its tables as text."""
    from ebmcal.reports import report_text, write_report
    from ebmcal.reports.run_data import read_run
    from ebmcal.storage import write_text

    check_outputs({"--output": output}, overwrite=overwrite)
    if format == "html":
        typer.echo(f"Wrote {write_report(run, output)}")
        return
    if format == "latex":
        from ebmcal.benchmark import paper_table

        text = paper_table([read_run(run).evaluation]).to_latex() + "\n"
    else:
        text = report_text(run, format)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"Wrote {output}")


def monitor(
    model: Model,
    log: Annotated[list[Path], typer.Argument(help="Its predictions in use: .parquet, .csv or .jsonl files.")],
    reference: Annotated[
        Path | None, typer.Option(help="Labelled predictions for typical texts. [default: those of the model's run]")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Known labels: a file with the columns id and label.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Column with times. [default: time, if it exists]")] = None,
    every: Annotated[str | None, typer.Option(help="Windows of time, such as 6h, 1d or 1w. [default: 1d]")] = None,
    rows: Annotated[int | None, typer.Option(help="Windows of rows. [default: 500, without times]")] = None,
    false_alarm_rate: Annotated[
        float, typer.Option(help="Probability of any drift alarm if nothing has changed.")
    ] = 0.05,
    planned_windows: Annotated[
        int | None, typer.Option(help="Bound it over this many windows. [default: those of the log]")
    ] = None,
    min_accuracy: Annotated[
        float | None, typer.Option(help="Alarm if the accuracy is significantly lower than this.")
    ] = None,
    normalize: Normalize = False,
    report: ReportFile = None,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Estimate accuracy and detect drift and OOD texts, window by window.

    Exit codes: 0 no alarm, 1 error, 2 wrong usage, 3 alarm.
    """
    from ebmcal.monitoring import monitor

    check_outputs({"--report": report, "--json": json_file}, [*log, reference, labels], overwrite=overwrite)
    found = monitor(
        model, log, reference=reference, labels=labels, time_column=time_column, every=every, window_rows=rows,
        false_alarm_rate=false_alarm_rate, planned_windows=planned_windows, min_accuracy=min_accuracy,
        normalize=normalize,
    )  # fmt: skip
    found.table().print()
    for line in found.alarms:
        typer.secho(f"Alarm: {line}", fg=typer.colors.RED, err=True)
    write_results(found, found.to_json(), json_file, report)
    if found.alarms:
        raise typer.Exit(ALARM)


def robustness(
    model: Model,
    data: Annotated[Path, typer.Option("--data", help="Labelled texts: CSV, TSV, JSONL or Parquet.")],
    baseline: Annotated[Path | None, typer.Option(help="Another model, evaluated on the same texts.")] = None,
    perturbations: Annotated[
        str | None, typer.Option(help="Names of perturbations, separated by commas. [default: all]")
    ] = None,
    suite: Annotated[list[Path] | None, typer.Option(help="YAML file with your own tests; may be repeated.")] = None,
    builtin: Annotated[bool, typer.Option("--builtin/--no-builtin", help="Run the built-in suites.")] = True,
    text_column: TextColumn = None,
    text_pair_column: TextPairColumn = None,
    label_column: Annotated[str, typer.Option(help="Label column.")] = "label",
    max_rows: Annotated[int, typer.Option(min=1, help="Maximum number of texts; a sample is drawn.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and of the perturbations.")] = 0,
    report: ReportFile = None,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Evaluate accuracy, calibration, energy and OOD detection on perturbed texts, and run CheckList-like tests."""
    from ebmcal.robustness import evaluate_robustness

    check_outputs({"--report": report, "--json": json_file}, [data], overwrite=overwrite)
    found = evaluate_robustness(
        model, data, baseline=baseline, perturbations=split_names(perturbations), suites=suite or (),
        use_builtin_suites=builtin, text_column=text_column, text_pair_column=text_pair_column,
        label_column=label_column, max_rows=max_rows, seed=seed,
    )  # fmt: skip
    typer.echo(str(found))
    write_results(found, found.to_json(), json_file, report)
