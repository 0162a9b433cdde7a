"""`ebmcal evaluate`: prediction files of any model. `ebmcal report`: a run directory. `ebmcal monitor`: a log of
predictions. `ebmcal robustness`: a model on perturbed texts.
"""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ebmcal.cli import options as shared
from ebmcal.cli.options import argument, check_outputs, flag, option, split_names, write_results
from ebmcal.errors import EbmcalError
from ebmcal.run_dir import RunDir
from ebmcal.storage import read_json

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation, Source

#: Exit code of `monitor` for cron jobs: 0 no alarm, 1 error, 2 wrong usage.
ALARM = 3


def evaluate(
    files: list[str] = argument(
        "Predictions, FILE or NAME=FILE: .parquet, .csv, .tsv, .jsonl, .json, - (standard input), or a "
        "run directory: its models on the test rows.",
        metavar="FILE",
    ),
    fit: list[str] | None = option("Predictions to fit calibrators on: one for all files, or one for each."),
    calibrator: list[str] | None = option("Calibrator to fit; settings may follow: scaling-binning:n_bins=15."),
    ood: list[str] | None = option("Predictions for other texts: one for all files, or one for each."),
    reference: str | None = option("Name of the file to compare the others with. [default: the first]"),
    unpaired: bool = flag("The files have different rows: no tests.", "--unpaired"),
    ensemble: bool = flag("Also evaluate the mean of all files.", "--ensemble"),
    multilabel: bool = flag("A text may have several labels (a list; a|b in CSV).", "--multilabel"),
    metrics: str | None = option("Metrics, separated by commas."),
    n_bins: int = option("Bins of the binned calibration errors.", 20, min=1),
    resamples: int = option("Resamples for intervals and tests; 0 for none.", 1000, min=0, max=100000),
    seed: int = option("Seed of the resampling.", 0, min=0),
    normalize: bool = shared.NORMALIZE,
    verbose: bool = flag("Show intervals.", "--verbose", "-v"),
    format: Literal["table", "markdown", "latex", "json"] = option("Output format.", "table", "--format", "-f"),
    json_file: Path | None = shared.JSON_FILE,
    report: Path | None = shared.REPORT,
    overwrite: bool = shared.OVERWRITE,
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
    from ebmcal.calibration import folded_temperature, read_calibrator
    from ebmcal.predictions import Predictions

    paths = {trial: run.predictions(trial, "test") for trial in run.trials()}
    found: dict[str, Source] = {trial.name: path for trial, path in paths.items() if path.is_file()}
    if not found:
        raise EbmcalError(f"The run {run.root} has no test predictions yet. Finish it first.")
    if not run.results.is_file():
        warnings.warn(
            f"The run {run.root} is unfinished: it has test predictions of {', '.join(found)} so far.",
            stacklevel=2,
        )
    recommended = (read_json(run.results).get("recommended") if run.results.is_file() else None) or {}
    trial = next((trial for trial in paths if trial.name == recommended.get("trial")), None)
    if trial is None:
        return found
    calibrator, folded = read_calibrator(run.model(trial)), folded_temperature(run.model(trial))
    if calibrator is not None:
        name = f"{trial.name} + {calibrator.name} ({calibrator.note})"
        return {name: calibrator.apply(Predictions.read(paths[trial])), **found}
    test = Predictions.read(paths[trial])
    if folded is None or test.logits is None or test.meta.get("folded_temperature") == folded:
        return found
    return {
        f"{trial.name} + temperature (T = {folded:.4g}, in the weights)": test.replace(logits=test.logits / folded),
        **found,
    }


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
    run: Path = argument("Run directory of a finished `ebmcal run`."),
    output: Path | None = option("Output file. [default: RUN/report.html; text is printed]", None, "--output", "-o"),
    format: Literal["html", "markdown", "latex", "json"] = option("Output format.", "html", "--format", "-f"),
    overwrite: bool = shared.OVERWRITE,
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
    model: Path = shared.MODEL,
    log: list[Path] = argument("Its predictions in use: .parquet, .csv or .jsonl files."),
    reference: Path | None = option("Labelled predictions for typical texts. [default: those of the model's run]"),
    labels: Path | None = option("Known labels: a file with the columns id and label."),
    time_column: str | None = option("Column with times. [default: time, if it exists]"),
    every: str | None = option("Windows of time, such as 6h, 1d or 1w. [default: 1d]"),
    rows: int | None = option("Windows of rows. [default: 500, without times]"),
    false_alarm_rate: float = option("Probability of any drift alarm if nothing has changed.", 0.05),
    planned_windows: int | None = option("Bound it over this many windows. [default: those of the log]"),
    min_accuracy: float | None = option("Alarm if the accuracy is significantly lower than this."),
    normalize: bool = shared.NORMALIZE,
    report: Path | None = shared.REPORT,
    json_file: Path | None = shared.JSON_FILE,
    overwrite: bool = shared.OVERWRITE,
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
    model: Path = shared.MODEL,
    data: Path = option("Labelled texts: CSV, TSV, JSONL or Parquet.", ...),
    baseline: Path | None = option("Another model, evaluated on the same texts."),
    perturbations: str | None = option("Names of perturbations, separated by commas. [default: all]"),
    suite: list[Path] | None = option("YAML file with your own tests; may be repeated."),
    builtin: bool = option("Run the built-in suites.", True, "--builtin/--no-builtin"),
    text_column: str | None = shared.TEXT_COLUMN,
    text_pair_column: str | None = shared.TEXT_PAIR_COLUMN,
    label_column: str | None = shared.LABEL_COLUMN,
    max_rows: int = option("Maximum number of texts; a sample is drawn.", 500, min=1),
    seed: int = option("Seed of the sample and of the perturbations.", 0, min=0),
    report: Path | None = shared.REPORT,
    json_file: Path | None = shared.JSON_FILE,
    overwrite: bool = shared.OVERWRITE,
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
