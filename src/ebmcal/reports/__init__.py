"""Reports: tables and plots of an `Evaluation`, the HTML report of a run, model cards.

table          `Table`: terminal, Markdown, LaTeX, JSON, HTML
tables         tables of an evaluation: models × metrics, paired tests, OOD detection, the paper's table
examples       tables of labels and texts: errors, label issues, energies, noise
plots          reliability, energies, curves; matplotlib to SVG (figures: their style)
html           the report of a run or of an evaluation, a `page` made of sections and blocks
run_data       what a report shows of a run directory
model_card     README.md of a model directory
"""

import json
from dataclasses import replace

from ebmcal.errors import unknown_name
from ebmcal.reports.examples import noise_examples
from ebmcal.reports.html import write_evaluation_report, write_report
from ebmcal.reports.model_card import write_model_card
from ebmcal.reports.run_data import read_run
from ebmcal.reports.table import Table
from ebmcal.reports.tables import comparison_table, detection_table, list_test_sets, paper_table, summary_table
from ebmcal.storage import PathLike

__all__ = ["Table", "report_text", "write_evaluation_report", "write_model_card", "write_report"]


def report_text(run_dir: PathLike, format: str) -> str:
    """The tables of a run directory: "markdown" to paste, "latex" in the layout of the paper, "json" for scripts."""
    if format not in ("markdown", "latex", "json"):
        raise unknown_name("report format", format, ("markdown", "latex", "json"))
    data = read_run(run_dir)
    if format == "latex":
        return paper_table([data.evaluation]).to_latex() + "\n"
    if format == "json":
        content = {"missing": list(data.missing), **data.evaluation.to_json()}
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    tables = [summary_table(data.evaluation, verbose=True, test_set=name) for name in list_test_sets(data.evaluation)]
    tables += [comparison_table(data.evaluation), detection_table(data.evaluation)]
    for subject in data.subjects:
        table = data.energy_examples(subject, n=3)
        tables.append(replace(table, title=f"{subject.name}: lowest and highest energy"))
    tables.append(noise_examples(data.noise_examples, n=5))
    missing = ["Not finished:\n\n" + "\n".join(f"- {line}" for line in data.missing)] if data.missing else []
    return "\n\n".join([f"# {data.title}", *missing, *(table.to_markdown() for table in tables if len(table))]) + "\n"
