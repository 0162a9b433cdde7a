"""Tables as data, then as text: terminal, Markdown, LaTeX, JSON. With the published numbers to set beside ours."""

from ebmcal.tables.detection import detection_table
from ebmcal.tables.paper import paper_table
from ebmcal.tables.published import PUBLISHED, published_set
from ebmcal.tables.render import to_data, to_json, to_latex, to_markdown, to_rich
from ebmcal.tables.results import check_document, list_test_sets
from ebmcal.tables.summary import paired_table, seed_table, summary_table
from ebmcal.tables.table import Column, Entry, Row, Table, compact, mark_best

__all__ = [
    "PUBLISHED",
    "Column",
    "Entry",
    "Row",
    "Table",
    "check_document",
    "compact",
    "detection_table",
    "list_test_sets",
    "mark_best",
    "paired_table",
    "paper_table",
    "published_set",
    "seed_table",
    "summary_table",
    "to_data",
    "to_json",
    "to_latex",
    "to_markdown",
    "to_rich",
]
