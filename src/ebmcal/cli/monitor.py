"""`ebmcal monitor`: a log of predictions compared with what the model was calibrated on. Needs no torch."""

from pathlib import Path
from typing import Annotated

import typer

#: Exit code for cron jobs: 0 no alarm, 1 error, 2 wrong usage.
ALARM = 3


def monitor(
    model: Annotated[Path, typer.Argument(help="Model directory.")],
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
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide rounded probabilities by the sum of their row.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with plots.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers as JSON.")] = None,
) -> None:
    """Estimate accuracy and detect drift and OOD texts, window by window. The exit code is 3 if there is an alarm."""
    from ebmcal.errors import EbmcalError
    from ebmcal.monitoring import monitor
    from ebmcal.storage import check_writable, write_text

    inputs = {path.resolve() for path in (*log, reference, labels) if path is not None}
    for option, path in (("--report", report), ("--json", json_file)):
        if path is not None:
            check_writable(path, option)
            if path.resolve() in inputs:
                raise EbmcalError(f"{option} {path} is also an input. Choose another file.")
    found = monitor(
        model, log, reference=reference, labels=labels, time_column=time_column, every=every, window_rows=rows,
        false_alarm_rate=false_alarm_rate, planned_windows=planned_windows, min_accuracy=min_accuracy,
        normalize=normalize,
    )  # fmt: skip
    found.table().print()
    for line in found.alarms:
        typer.secho(f"Alarm: {line}", fg=typer.colors.RED, err=True)
    if json_file is not None:
        write_text(json_file, found.to_json() + "\n")
    if report is not None:
        typer.echo(f"Report written to {found.report(report)}.", err=True)
    if found.alarms:
        raise typer.Exit(ALARM)
