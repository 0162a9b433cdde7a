"""Reports: tables and plots of an `Evaluation`, the HTML report of a run, model cards.

    tables/        `Table` and the tables of an evaluation
    plots/         reliability, energies, curves; matplotlib to SVG
    page           self-contained HTML pages made of sections and blocks
    html           the report of a run or of an evaluation
    model_card     README.md of a model directory
    histograms     compact energy histograms, stored with a model

The names below are loaded on first use: `ebmcal.evaluation` imports `reports.tables`, and `reports.html` imports it.
"""

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {
    "Table": "ebmcal.reports.tables",
    "report_text": "ebmcal.reports.text",
    "write_evaluation_report": "ebmcal.reports.html",
    "write_model_card": "ebmcal.reports.model_card",
    "write_report": "ebmcal.reports.html",
}
__all__ = ["Table", "report_text", "write_evaluation_report", "write_model_card", "write_report"]

if TYPE_CHECKING:
    from ebmcal.reports.html import write_evaluation_report as write_evaluation_report
    from ebmcal.reports.html import write_report as write_report
    from ebmcal.reports.model_card import write_model_card as write_model_card
    from ebmcal.reports.tables import Table as Table
    from ebmcal.reports.text import report_text as report_text
else:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(importlib.import_module(_MODULES[name]), name)
        if name in ("plots", "tables"):
            return importlib.import_module(f"ebmcal.reports.{name}")
        raise AttributeError(f"module 'ebmcal.reports' has no attribute {name!r}")
