"""Reports: the HTML report of a run or of an evaluation, its tables and plots, and model cards.

page           `Table` (terminal, Markdown, LaTeX, HTML) and pages made of sections and blocks
tables         tables of an evaluation (models × metrics, paired tests, OOD detection) and of texts (errors, noise)
plots          reliability, energies, curves: matplotlib to SVG
run_data       what a report is about: models with their predictions, read from a run directory
report         what the report of a run shows, in which order
model_card     README.md of a model directory
"""

from ebmcal.reports.model_card import write_model_card
from ebmcal.reports.page import Table
from ebmcal.reports.report import report_text, write_evaluation_report, write_report

__all__ = ["Table", "report_text", "write_evaluation_report", "write_model_card", "write_report"]
