"""`ebmcal monitor`: a log of predictions (needs no torch). `ebmcal robustness`: a model on perturbed texts."""

from pathlib import Path
from typing import Annotated

import typer

from ebmcal.cli.options import (
    JsonFile,
    Model,
    Normalize,
    ReportFile,
    TextColumn,
    TextPairColumn,
    check_outputs,
    split_names,
    write_results,
)

#: Exit code for cron jobs: 0 no alarm, 1 error, 2 wrong usage.
ALARM = 3


def monitor(
    model: Model,
    log: Annotated[list[Path], typer.Argument(help="Its predictions in use: .parquet, .csv, .jsonl or .npz files.")],
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
) -> None:
    """Estimate accuracy and detect drift and OOD texts, window by window.

    Exit codes: 0 no alarm, 1 error, 2 wrong usage, 3 alarm.
    """
    from ebmcal.monitoring import monitor

    check_outputs({"--report": report, "--json": json_file}, [*log, reference, labels])
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
) -> None:
    """Evaluate accuracy, calibration, energy and OOD detection on perturbed texts, and run CheckList-like tests."""
    from ebmcal.robustness import evaluate_robustness

    check_outputs({"--report": report, "--json": json_file}, [data])
    found = evaluate_robustness(
        model, data, baseline=baseline, perturbations=split_names(perturbations), suites=suite or (),
        use_builtin_suites=builtin, text_column=text_column, text_pair_column=text_pair_column,
        label_column=label_column, max_rows=max_rows, seed=seed,
    )  # fmt: skip
    typer.echo(str(found))
    write_results(found, found.to_json(), json_file, report)
