"""`ebmcal report`: a run directory as a self-contained HTML page, or its tables as text."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class ReportFormat(str, Enum):
    """Formats of a report."""

    html = "html"
    markdown = "markdown"
    latex = "latex"
    json = "json"


def report(
    run: Annotated[Path, typer.Argument(help="Run directory of `ebmcal run`, finished or not.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. Default: RUN/report.html; text is printed.")
    ] = None,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Output format.")] = ReportFormat.html,
) -> None:
    """Write the report of a run: recommendation, results, errors, plots; or its tables as text."""
    from ebmcal.reports import report_text, write_report
    from ebmcal.storage import check_writable, write_text

    if output is not None:
        check_writable(output, "--output")
    if format is ReportFormat.html:
        typer.echo(f"Wrote {write_report(run, output)}")
        return
    text = report_text(run, format.value)
    if output is None:
        typer.echo(text, nl=False)
        return
    write_text(output, text)
    typer.echo(f"Wrote {output}")
