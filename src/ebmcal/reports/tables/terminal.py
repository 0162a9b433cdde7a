"""A `Table` as text for the terminal, drawn by rich within a given width."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import rich.table

    from ebmcal.reports.tables.table import Cell, Column, Table


def render(table: "Table", width: int) -> Iterator[Any]:
    """Title, table (in several parts if its groups do not fit) and notes.

    The best values are bold and starred (a star survives a pipe); the recommended row starts with an arrow.
    """
    from rich.text import Text

    if table.title:
        yield Text(table.title, style="bold")
    for part in split_wide(table, width):
        yield _draw(part)
    for note in table.notes:
        yield Text(note, style="dim")


def split_wide(table: "Table", width: int) -> list["Table"]:
    """The table as several that fit into `width`: the first column and some groups of columns each."""
    first, *others = table.columns
    parts: list[list[Column]] = [[]]
    for group in dict.fromkeys(_group(column) for column in others):
        columns = [column for column in others if _group(column) == group]
        if parts[-1] and group and _needed(table, [first, *parts[-1], *columns]) > width:
            parts.append([])
        parts[-1] += columns
    return [table.select([first, *part]) for part in parts] if len(parts) > 1 else [table]


def _draw(table: "Table") -> "rich.table.Table":
    import rich.box
    import rich.table
    from rich.text import Text

    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    cells = table.cells()
    for index, column in enumerate(table.columns):
        heading, numeric = _heading(column), table.is_numeric(index)
        words = [*heading.split(), *(part for row in cells for part in _text(row[index], False).split("\n"))]
        # Headings of numbers wrap at words, and numbers never: names give way.
        width = max(map(len, words)) if numeric else None
        justify: Literal["left", "right"] = "right" if numeric else "left"
        drawn.add_column(Text(heading), justify=justify, overflow="fold", min_width=width, max_width=width)
    for number, row in enumerate(cells):
        chosen = number == table.recommended
        texts = [Text(_text(c, chosen and not i), style="bold" if c.is_best else "") for i, c in enumerate(row)]
        style = "bold green" if chosen else ""
        drawn.add_row(*texts, style=style, end_section=table.ends_section(number))
    return drawn


def _text(cell: "Cell", is_recommended: bool) -> str:
    """The value with its mark; an interval stands below it."""
    text = f"{'→ ' if is_recommended else ''}{cell.text}{' *' if cell.is_best else ''}"
    return f"{text}\n{cell.extra}" if cell.extra else text


def _heading(column: "Column") -> str:
    return column if isinstance(column, str) else "\n".join(filter(None, column))


def _group(column: "Column") -> str:
    return "" if isinstance(column, str) else column[0]


def _needed(table: "Table", columns: list["Column"]) -> int:
    """Characters that some columns take on the terminal, with the gaps between them."""
    part, total = table.select(columns), 0
    for heading, *cells in zip(map(_heading, columns), *part.cells(), strict=True):
        lines = [line for text in (heading, *(_text(cell, False) for cell in cells)) for line in text.split("\n")]
        total += max(map(len, lines)) + 2
    return total
