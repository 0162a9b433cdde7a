"""`ebmcal watch`: a log of predictions against what the model knows. A thin call of `ebmcal.watch`; needs no torch."""

from pathlib import Path
from typing import Annotated

import typer

#: For cron: 0 is quiet, 1 an error, 2 wrong usage.
ALARM = 3


def watch(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    log: Annotated[list[Path], typer.Argument(help="Its predictions in use: .parquet, .csv, .jsonl or .npz.")],
    reference: Annotated[
        Path | None, typer.Option(help="Labelled predictions for texts as it knows them; else of its run.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels that have come: a file of id and label.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Column of the time; `time` where there is one.")] = None,
    every: Annotated[str | None, typer.Option(help="Windows of time: 6h, 1d, 1w; a day where there are times.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Windows of rows; 500 where there are no times.")] = None,
    false_alarms: Annotated[float, typer.Option(help="Chance of any drift alarm if nothing has changed.")] = 0.05,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Over this many windows, if more will come; else over those of the log.")
    ] = None,
    least_accuracy: Annotated[float | None, typer.Option(help="Alarm when accuracy lies below it for sure.")] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide rounded probabilities by the sums of their rows.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with pictures.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure as JSON.")] = None,
) -> None:
    """Accuracy to expect, drift, unusual and abstained texts, window by window; the exit code is 3 on an alarm."""
    from ebmcal.cli.evaluate import keep_inputs, print_rich
    from ebmcal.cli.notices import as_notices
    from ebmcal.storage.atomic import write_text
    from ebmcal.watching.watch import watch

    inputs = [path for path in (*log, reference, labels) if path is not None]
    keep_inputs(inputs, {"--report": report, "--json": json_file})
    with as_notices():
        seen = watch(
            model, log, reference=reference, labels=labels, time_column=time_column, every=every, n_rows=rows,
            false_alarms=false_alarms, n_windows=windows, least_accuracy=least_accuracy, normalize=normalize,
        )  # fmt: skip
    print_rich(seen.table())
    for line in seen.alarms:
        typer.secho(f"Alarm: {line}", fg=typer.colors.RED, err=True)
    if json_file is not None:
        write_text(json_file, seen.to_json() + "\n")
    if report is not None:
        typer.echo(f"Report written to {seen.report(report)}.", err=True)
    if seen.alarms:
        raise typer.Exit(ALARM)
