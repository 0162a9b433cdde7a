"""Tables as data, then as text: terminal, Markdown, LaTeX, JSON. With the published numbers to set beside ours."""

from ebmcal.tables.comparison import detection_table, seed_table, summary_table
from ebmcal.tables.differences import difference_table, paired_table
from ebmcal.tables.document import check_document, list_test_sets
from ebmcal.tables.hardness import hardness_table
from ebmcal.tables.paper import paper_table
from ebmcal.tables.published import PUBLISHED, published_set
from ebmcal.tables.render import Sheet, to_data, to_json, to_latex, to_markdown, to_rich
from ebmcal.tables.table import Column, Entry, Table, TableRow, compact, mark_best, select_columns, split_wide

__all__ = [
    "PUBLISHED",
    "Column",
    "Entry",
    "Sheet",
    "Table",
    "TableRow",
    "check_document",
    "compact",
    "detection_table",
    "difference_table",
    "hardness_table",
    "list_test_sets",
    "mark_best",
    "paired_table",
    "paper_table",
    "published_set",
    "seed_table",
    "select_columns",
    "split_wide",
    "summary_table",
    "to_data",
    "to_json",
    "to_latex",
    "to_markdown",
    "to_rich",
]
