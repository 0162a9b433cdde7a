"""Several runs in the layout of the paper's main table: methods down, test sets across, performance and ECE for each.

Post-hoc steps on the baseline stand under their own name; those fitted on the calibration split ("dev") come last and
take no part in the contest for bold, as in the paper.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ebmcal.tables.document import (
    Document,
    Key,
    heading,
    list_test_sets,
    mean_figure,
    method_rank,
    posthoc_rank,
    rows_by_method,
)
from ebmcal.tables.published import PUBLISHED, PUBLISHED_NOTE, TEST_SETS, published_set
from ebmcal.tables.table import Column, Entry, Table, TableRow, mark_best

SHORT = {
    "accuracy": "acc.",
    "matthews": "mcc.",
    "macro_f1": "F1",
    "ece_classwise": "ECE class-wise",
    "ece_top_label": "ECE top-label",
}
DEV = "fitted on the calibration split"


def paper_table(documents: Sequence[Document], *, ece: str = "ece_classwise", published: bool = True) -> Table:
    """Methods × test sets of one document a task; `ece` is the metric under the ECE heading.

    With more than one test set an average follows, over the sets where the method has a figure in all. `published` adds
    the paper's rows for the same sets.

    >>> rows = [{"method": "baseline", "metrics": {"accuracy": 0.7, "ece_classwise": 0.3}}]
    >>> [row.entries[0].value for row in paper_table([{"task": "rte", "rows": rows}]).rows][:2]
    ['baseline', 'baseline, published']
    """
    blocks = [_Block(document, name, ece) for document in documents for name in list_test_sets(document)]
    keys = _ordered({key for block in blocks for key in block.found})
    rows = [_row(_name(key), [block.pair(key) for block in blocks], _section(key)) for key in keys]
    notes = ["Mean ± sample standard deviation over seeds where there are several."] if blocks else []
    if published and (theirs := _published_rows(blocks)):
        rows += theirs
        notes.append(PUBLISHED_NOTE)
    return mark_best(Table("Test-set performance and calibration error", _columns(blocks), tuple(rows), tuple(notes)))


class _Block:
    """The two columns of one test set."""

    def __init__(self, document: Document, test_set: str, ece: str) -> None:
        self.metrics = (document.get("task_metric") or "accuracy", ece)
        self.found = rows_by_method(document, test_set)
        self.published = published_set(document.get("task"), test_set)
        task = str(document.get("task") or "results")
        self.title = TEST_SETS.get(self.published or "", task if test_set == "test" else f"{task} {test_set}")

    def pair(self, key: Key) -> tuple[Entry, ...]:
        found = (mean_figure(self.found.get(key, []), metric) for metric in self.metrics)
        return tuple(replace(entry, low=None, high=None, floor=None) for entry in found)  # no room for intervals

    def columns(self) -> list[Column]:
        return [_column(f"{self.title}:{metric}", metric, self.title) for metric in self.metrics]


def _column(key: str, metric: str, group: str) -> Column:
    known = heading(metric)
    return Column(key, SHORT.get(metric, known.title), known.better, group)


def _columns(blocks: Sequence[_Block]) -> tuple[Column, ...]:
    columns = [Column("method", "Method"), *(column for block in blocks for column in block.columns())]
    if len(blocks) > 1:
        ece = blocks[0].metrics[1]
        columns += [Column("average:performance", "perf.", 1, "Average"), _column(f"average:{ece}", ece, "Average")]
    return tuple(columns)


def _row(name: str, pairs: Sequence[tuple[Entry, ...]], section: str) -> TableRow:
    entries = [Entry(name), *(entry for pair in pairs for entry in pair)]
    if len(pairs) > 1:
        entries += [_average([pair[i] for pair in pairs]) for i in range(2)]
    return TableRow(tuple(entries), section=section, contest=section == "")


def _average(entries: Sequence[Entry]) -> Entry:
    """Of all sets or of none: an average over fewer sets would not be comparable."""
    numbers = [entry.number for entry in entries if entry.number is not None]
    return Entry(statistics.fmean(numbers)) if len(numbers) == len(entries) else Entry()


def _ordered(keys: Iterable[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: (bool(_section(key)), method_rank(key[0]), posthoc_rank(key[1])))


def _section(key: Key) -> str:
    return DEV if key[1] and "(dev)" in key[1] else ""


def _name(key: Key) -> str:
    method, posthoc = key
    if not posthoc:
        return method
    return posthoc if method == "baseline" else f"{method} + {posthoc}"


def _published_rows(blocks: Sequence[_Block]) -> list[TableRow]:
    if not any(block.published for block in blocks):
        return []
    return [
        _row(f"{method}, published", [_published_pair(block, theirs) for block in blocks], "published")
        for method, theirs in PUBLISHED.items()
    ]


def _published_pair(block: _Block, theirs: dict[str, tuple[float, float]]) -> tuple[Entry, ...]:
    return tuple(Entry(value) for value in theirs.get(block.published or "", (None, None)))
