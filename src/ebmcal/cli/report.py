"""`ebmcal report`: a run folder as a self-contained HTML page, or its tables as text."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class ReportFormat(str, Enum):
    """What can be written."""

    html = "html"
    markdown = "markdown"
    latex = "latex"
    json = "json"


def report(
    run: Annotated[Path, typer.Argument(help="The output folder of an `ebmcal run`, finished or not.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write; HTML goes to RUN/report.html, other formats to the terminal."
        ),
    ] = None,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="What to write.")] = ReportFormat.html,
) -> None:
    """Write the report of a run: summary, every figure, examples, settings; or its tables as text."""
    from ebmcal.report import report_text, write_report
    from ebmcal.storage.atomic import check_target, write_text

    if output is not None:
        check_target(output, "--output")
    if format is ReportFormat.html:
        typer.echo(f"Wrote {write_report(run, output)}")
        return
    text = report_text(run, format.value)
    if output is None:
        typer.echo(text, nl=False)
        return
    write_text(output, text)
    typer.echo(f"Wrote {output}")
