"""`ebmcal stress`: a model on texts that are changed in many ways. A thin call of `ebmcal.stress_test`."""

from pathlib import Path
from typing import Annotated

import typer


def stress(
    model: Annotated[Path, typer.Argument(help="A model folder: of a run, or any sequence classifier.")],
    on: Annotated[Path, typer.Option("--on", help="Labelled texts: CSV, TSV, JSONL or Parquet.")],
    beside: Annotated[Path | None, typer.Option(help="Another model on the same changed texts: the baseline.")] = None,
    changes: Annotated[
        str | None, typer.Option(help="Which changes, separated by commas; all of them by default.")
    ] = None,
    suite: Annotated[list[Path] | None, typer.Option(help="A YAML file of your own tests; may be repeated.")] = None,
    shipped: Annotated[bool, typer.Option("--shipped/--no-shipped", help="The tests that come with ebmcal.")] = True,
    text_column: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="Column of the second text.")] = None,
    label_column: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    max_rows: Annotated[int, typer.Option(min=1, help="Texts that are drawn, at most.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn texts and of the changes.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with pictures and texts.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure as JSON.")] = None,
) -> None:
    """Accuracy, calibration, energy and share unusual against the strength of changes; tests that must not fail."""
    from ebmcal.cli.evaluate import keep_inputs, print_rich
    from ebmcal.cli.notices import as_notices
    from ebmcal.storage.atomic import write_text
    from ebmcal.stress.testing import stress_test

    keep_inputs([on, *(suite or [])], {"--report": report, "--json": json_file})
    names = None if changes is None else [name.strip() for name in changes.split(",") if name.strip()]
    with as_notices():
        found = stress_test(
            model, on, beside=beside, changes=names, suites=suite or (), shipped=shipped, text_column=text_column,
            text_pair_column=text_pair_column, label_column=label_column, max_rows=max_rows, seed=seed, progress=True,
        )  # fmt: skip
    print_rich(found.table())
    if json_file is not None:
        write_text(json_file, found.to_json() + "\n")
        typer.echo(f"Figures written to {json_file}.", err=True)
    if report is not None:
        typer.echo(f"Report written to {found.report(report)}.", err=True)
