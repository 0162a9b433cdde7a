"""Tables as views of an `Evaluation`: printed on the terminal, as Markdown, LaTeX, JSON or HTML."""

from ebmcal.reports.tables.paper import paper_table
from ebmcal.reports.tables.published import PUBLISHED, published_set
from ebmcal.reports.tables.results import list_test_sets
from ebmcal.reports.tables.summary import (
    comparison_rows_table,
    comparison_table,
    detection_table,
    seed_table,
    summary_table,
)
from ebmcal.reports.tables.table import Cell, Column, Table, format_value

__all__ = [
    "PUBLISHED",
    "Cell",
    "Column",
    "Table",
    "comparison_rows_table",
    "comparison_table",
    "detection_table",
    "format_value",
    "list_test_sets",
    "paper_table",
    "published_set",
    "seed_table",
    "summary_table",
]
