"""A `Table` as LaTeX (needs booktabs), in the layout of the paper: groups over columns, no leading zeros."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebmcal.reports.tables.table import Cell, Table

_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "→": r"$\rightarrow$", "±": r"$\pm$",
}  # fmt: skip


def to_latex(table: "Table") -> str:
    """A `table*` environment with a rule between sections and the title and notes as its caption."""
    import pandas as pd

    cells = [[_cell(cell) for cell in row] for row in table.cells()]
    names = [escape_latex(c) if isinstance(c, str) else tuple(map(escape_latex, c)) for c in table.columns]
    if any(isinstance(name, tuple) for name in names):
        columns = pd.MultiIndex.from_tuples([name if isinstance(name, tuple) else ("", name) for name in names])
    else:
        columns = pd.Index(names)
    layout = "l" + "r" * (len(names) - 1)
    body = pd.DataFrame(cells, columns=columns).to_latex(
        index=False, escape=False, column_format=layout, multicolumn_format="c"
    )
    caption = " ".join(part.rstrip(".") + "." for part in (table.title, *table.notes) if part)
    lines = [r"\begin{table*}[t]", r"\centering", r"\small", *_with_rules(body, table)]
    return "\n".join([*lines, rf"\caption{{{escape_latex(caption)}}}", r"\end{table*}"])


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(escape_latex("50% of $x_1"))
    50\\% of \\$x\\_1
    """
    return "".join(_ESCAPES.get(character, character) for character in text)


def _with_rules(body: str, table: "Table") -> list[str]:
    lines = body.splitlines()
    first = lines.index(r"\midrule") + 1 if r"\midrule" in lines else len(lines)
    for row in reversed(range(len(table))):
        if table.ends_section(row):
            lines.insert(first + row + 1, r"\midrule")
    return lines


def _cell(cell: "Cell") -> str:
    text = " ".join(cell.full.split())
    if cell.number is not None:
        text = re.sub(r"(?<![\d.])0\.(?=\d)", ".", text)
    return rf"\textbf{{{escape_latex(text)}}}" if cell.is_best else escape_latex(text)
