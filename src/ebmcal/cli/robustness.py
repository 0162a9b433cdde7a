"""`ebmcal robustness`: a model on perturbed texts and test suites."""

from pathlib import Path
from typing import Annotated

import typer


def robustness(
    model: Annotated[Path, typer.Argument(help="Model directory.")],
    data: Annotated[Path, typer.Option("--data", help="Labelled texts: CSV, TSV, JSONL or Parquet.")],
    baseline: Annotated[Path | None, typer.Option(help="Another model, evaluated on the same texts.")] = None,
    perturbations: Annotated[
        str | None, typer.Option(help="Names of perturbations, separated by commas. [default: all]")
    ] = None,
    suite: Annotated[list[Path] | None, typer.Option(help="YAML file with your own tests; may be repeated.")] = None,
    builtin: Annotated[bool, typer.Option("--builtin/--no-builtin", help="Run the built-in suites.")] = True,
    text_column: Annotated[str | None, typer.Option(help="Text column. [default: the model's, or text]")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="Second text column.")] = None,
    label_column: Annotated[str, typer.Option(help="Label column.")] = "label",
    max_rows: Annotated[int, typer.Option(min=1, help="Maximum number of texts; a sample is drawn.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and of the perturbations.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with plots and examples.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers as JSON.")] = None,
) -> None:
    """Evaluate accuracy, calibration, energy and OOD detection on perturbed texts, and run CheckList-like tests."""
    from ebmcal.robustness import evaluate_robustness
    from ebmcal.storage import check_writable, write_text

    for option, path in (("--report", report), ("--json", json_file)):
        if path is not None:
            check_writable(path, option)
    names = None if perturbations is None else [name.strip() for name in perturbations.split(",") if name.strip()]
    found = evaluate_robustness(
        model, data, baseline=baseline, perturbations=names, suites=suite or (), use_builtin_suites=builtin,
        text_column=text_column, text_pair_column=text_pair_column, label_column=label_column, max_rows=max_rows,
        seed=seed,
    )  # fmt: skip
    typer.echo(str(found))
    if json_file is not None:
        write_text(json_file, found.to_json() + "\n")
        typer.echo(f"Numbers written to {json_file}.", err=True)
    if report is not None:
        typer.echo(f"Report written to {found.report(report)}.", err=True)
