"""`ebmcal evaluate`: judge prediction files of any model, compare them, mend them with a calibrator.

Reads the files and the options; the work is in `ebmcal.evaluation`.
"""

import warnings
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from ebmcal.calibrators import Calibrator
    from ebmcal.evaluation import Evaluation, Resampling
    from ebmcal.predictions import Predictions

Named = dict[str, "Predictions"]


class Format(str, Enum):
    """How the result is printed."""

    table = "table"
    markdown = "markdown"
    latex = "latex"
    json = "json"


def evaluate(
    files: Annotated[list[Path], typer.Argument(help="Predictions: .parquet, .csv, .jsonl or .npz.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with pictures.")] = None,
    metrics: Annotated[str | None, typer.Option(help="Which metrics, separated by commas.")] = None,
    n_bins: Annotated[int, typer.Option(min=1, help="Bins of the binned calibration errors.")] = 20,
    resamples: Annotated[int, typer.Option(min=0, help="Resamples for intervals and tests; 0 for none.")] = 1000,
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
    unpaired: Annotated[bool, typer.Option("--unpaired", help="The files are of different rows: no tests.")] = False,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.table,
) -> None:
    """Judge prediction files: accuracy, calibration, ranking; with intervals, tests and calibrated rows."""
    from ebmcal.cli.notices import as_notices
    from ebmcal.evaluation import SHOWN, Resampling, same_rows

    chosen, calibrators = _metric_names(metrics), _calibrators(calibrator, fit)
    _keep_inputs([*files, *(fit or []), *(ood or [])], {"--json": json_file, "--report": report})
    with as_notices():
        named = _read_all(files)
        named = named if unpaired else same_rows(named)
        outside = _partners(named, ood, "--ood")
        fitting = _partners(named, fit, "--fit")
        _check_classes(named, fitting, fit)
        judged = _with_calibrated(named, fitting, calibrators)
        how = Resampling(n_bins, resamples, seed)
        result = _evaluation(judged, outside, chosen, how, paired=resamples > 0 and not unpaired)
    _print(result, output, chosen or list(SHOWN))
    _write(result, judged, json_file, report)


def _keep_inputs(read: list[Path], written: dict[str, Path | None]) -> None:
    """Refuse to write over a file of predictions."""
    inputs = {path.resolve() for path in read}
    for option, path in written.items():
        if path is not None and path.resolve() in inputs:
            raise EbmcalError(f"{option} {path} would write over the predictions in it. Choose another file.")


def _metric_names(text: str | None) -> list[str] | None:
    """The metrics asked for, all names checked before any work."""
    from ebmcal.metrics.registry import metric

    if text is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise EbmcalError("--metrics names no metric. Separate them by commas, as in accuracy,ece_classwise.")
    for name in names:
        metric(name)
    return names


def _read_all(files: list[Path]) -> Named:
    names = [str(path) for path in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EbmcalError(f"{twice} was given twice. Give each file once.")
    first = _read(files[0])
    return {names[0]: first, **{str(path): _read(path, like=first) for path in files[1:]}}


def _read(path: Path, like: "Predictions | None" = None) -> "Predictions":
    """A file, its classes in the order of `like` where they are the same."""
    from ebmcal.predictions import Predictions

    rows = Predictions.read(path)
    if rows.n_classes < 2:
        raise EbmcalError(
            f"{path} has one class only ({rows.label_names[0]}). A column for each class is needed, also for two."
        )
    if like is None or sorted(rows.label_names) != sorted(like.label_names):
        return rows
    return Predictions.read(path, label_names=like.label_names)


def _partners(named: Named, paths: list[Path] | None, option: str) -> Named:
    """Which file of an option goes with which judged file."""
    if not paths:
        return {}
    if len(paths) not in (1, len(named)):
        raise EbmcalError(
            f"{option} was given {len(paths)} times for {len(named)} files. Give it once, or once for each."
        )
    if len(paths) < len(named):
        warnings.warn(f"One {option} for {len(named)} files is right only if they are all of one model.", stacklevel=1)
        paths = paths * len(named)
    return {name: _read(path, like=rows) for (name, rows), path in zip(named.items(), paths, strict=True)}


def _check_classes(named: Named, fitting: Named, paths: list[Path] | None) -> None:
    for i, (name, rows) in enumerate(fitting.items()):
        wanted = named[name].label_names
        if rows.label_names != wanted:
            raise EbmcalError(
                f"--fit {paths[i % len(paths)]} has the classes {', '.join(rows.label_names)}; {name} has "
                f"{', '.join(wanted)}. Give predictions of the same model."
            )


def _calibrators(specs: list[str] | None, fit: list[Path] | None) -> dict[str, "Calibrator"]:
    from ebmcal.calibrators import make_calibrator

    if specs and not fit:
        raise EbmcalError("--calibrator needs --fit: a file of predictions to fit it on, of rows that are not judged.")
    return {spec: make_calibrator(spec) for spec in specs or ["temperature"]}


def _with_calibrated(named: Named, fitting: Named, calibrators: dict[str, "Calibrator"]) -> Named:
    """Each file, and below it the same for each calibrator, under "file + calibrator"."""
    from ebmcal.evaluation import about

    found = {}
    for name, rows in named.items():
        found[name] = rows
        for spec, calibrator in calibrators.items() if name in fitting else ():
            with about(f"{spec} for {name}"):
                found[f"{name} + {spec}"] = calibrator.fit_predictions(fitting[name]).apply(rows)
    return found


def _evaluation(
    judged: Named, outside: Named, metrics: list[str] | None, how: "Resampling", paired: bool
) -> "Evaluation":
    from dataclasses import replace

    from ebmcal.evaluation import SHOWN, compare, detect, judge
    from ebmcal.metrics import DEFAULT_METRICS

    tests = compare(judged, metrics or SHOWN, how) if paired and len(judged) > 1 else {}
    result = judge(judged, metrics or DEFAULT_METRICS, how)
    return replace(result, paired=tests, ood={name: detect(judged[name], rows) for name, rows in outside.items()})


def _print(result: "Evaluation", output: Format, metrics: list[str]) -> None:
    import json

    from ebmcal import tables
    from ebmcal.evaluation import figure_table, ood_table, paired_table, to_json

    if output is Format.json:
        typer.echo(json.dumps(to_json(result), indent=2, ensure_ascii=False, allow_nan=False))
        return
    parts = [figure_table(result, metrics)]
    parts += [paired_table(result)] if result.paired else []
    parts += [ood_table(result)] if result.ood else []
    if output is Format.table:
        _print_rich([tables.to_rich(part) for part in parts])
    else:
        write = tables.to_markdown if output is Format.markdown else tables.to_latex
        typer.echo("\n\n".join(write(part) for part in parts))


def _print_rich(drawn: list) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a pipe has no width of its own; wrapped cells would be hard to search
    for table in drawn:
        console.print(table)


def _write(result: "Evaluation", judged: Named, json_file: Path | None, report: Path | None) -> None:
    from ebmcal.evaluation import to_document, to_json
    from ebmcal.storage.atomic import write_json

    if json_file is not None:
        write_json(json_file, to_json(result))
        typer.echo(f"Figures written to {json_file}.", err=True)
    if report is not None:
        from ebmcal.report import write_evaluation_report

        write_evaluation_report(report, judged, to_document(result))
        typer.echo(f"Report written to {report}.", err=True)
