"""A `Table` as GitHub-flavoured Markdown."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebmcal.reports.tables.table import Cell, Table


def to_markdown(table: "Table") -> str:
    """Title, table and notes; every name is escaped."""
    import pandas as pd

    cells = [[_cell(cell) for cell in row] for row in table.cells()]
    frame = pd.DataFrame(cells, columns=[escape_markdown(heading) for heading in table.headings])
    align = ["right" if table.is_numeric(i) else "left" for i in range(len(table.columns))]
    parts = [f"**{escape_markdown(table.title)}**"] if table.title else []
    parts.append(frame.to_markdown(index=False, disable_numparse=True, colalign=align))
    return "\n\n".join([*parts, *map(escape_markdown, table.notes)])


def escape_markdown(text: str) -> str:
    """One line in which no character ends a cell, starts a tag or starts markup.

    >>> print(escape_markdown("a|b <i> *c*"))
    a\\|b \\<i> \\*c\\*
    """
    text = " ".join(text.split()).replace("\\", "\\\\")
    for character in "|<*_`[$":
        text = text.replace(character, "\\" + character)
    return text


def _cell(cell: "Cell") -> str:
    text = cell.full if cell.number is not None else escape_markdown(cell.full)
    return f"**{text}**" if cell.is_best else text


def code_span(text: object) -> str:
    """A name as Markdown code, in which nothing is interpreted.

    >>> code_span("<b> `x`")
    "`<b> 'x'`"
    """
    shown = " ".join(str(text).replace("`", "'").split())
    return f"`{shown}`" if shown else "–"
