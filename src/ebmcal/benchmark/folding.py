"""Wide tables for narrow terminals: the test sets of the paper's table, a few at a time."""

from dataclasses import replace

from ebmcal.benchmark.paper import select
from ebmcal.tables import Column, Table


def fold(table: Table, width: int) -> list[Table]:
    """The same table as several that fit into `width` characters: the first column and some groups of columns each.

    >>> wide = Table("t", (Column("m", "Method"), *(Column(str(i), "ECE", group=f"set {i}") for i in range(4))))
    >>> [[column.title for column in part.columns] for part in fold(wide, 32)]
    [['Method', 'set 0\\nECE', 'set 1\\nECE'], ['Method', 'set 2\\nECE', 'set 3\\nECE']]
    """
    parts: list[list[Column]] = [[]]
    for group in dict.fromkeys(column.group for column in table.columns[1:]):
        columns = [column for column in table.columns[1:] if column.group == group]
        if parts[-1] and _width(table, [table.columns[0], *parts[-1], *columns]) > width:
            parts.append([])
        parts[-1] += columns
    made = [_stacked(select(table, {column.key for column in part}.__contains__)) for part in parts]
    return [replace(part, notes=()) for part in made[:-1]] + made[-1:]


def _stacked(table: Table) -> Table:
    """Headings under each other: a test set's name would else stand beside that of the metric and widen the column."""
    columns = (replace(c, group="", title=f"{c.group}\n{c.title}" if c.group else c.title) for c in table.columns)
    return replace(table, columns=tuple(columns))


def _width(table: Table, columns: list[Column]) -> int:
    """Characters on the terminal: the longest figure of each column with its star, or its heading, and the gap."""
    total = 0
    for column in columns:
        figures = [len(entry.text(column.digits)) + 2 * entry.best for entry in table.column(column.key)]
        total += max([*figures, len(column.group), len(column.title)]) + 3
    return total
