"""A `Table` as Markdown, LaTeX, JSON or a rich table for the terminal. The best entries are bold everywhere."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebmcal.tables.table import EMPTY, Column, Entry, Table, groups

if TYPE_CHECKING:
    import rich.table

#: Characters of a line where there is no terminal: a pipe has no width, and wrapped cells would be hard to search.
WIDTH = 200
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
}


@dataclass(frozen=True, repr=False)
class Sheet:
    """Tables one below the other that print themselves: on a terminal, in a notebook, as Markdown or LaTeX.

    >>> from ebmcal.tables.table import TableRow
    >>> print(Sheet((Table("", (Column("m", "Method"),), (TableRow((Entry("x"),)),)),)).markdown())
    | Method |
    |---|
    | x |
    """

    tables: tuple[Table, ...]

    def markdown(self) -> str:
        return "\n\n".join(map(to_markdown, self.tables))

    def latex(self) -> str:
        return "\n\n".join(map(to_latex, self.tables))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield from map(to_rich, self.tables)

    def __repr__(self) -> str:
        from rich.console import Console

        console = Console(width=WIDTH)
        with console.capture() as captured:
            console.print(self)
        return captured.get()

    def _repr_markdown_(self) -> str:
        return self.markdown()


def to_markdown(table: Table) -> str:
    """GitHub-flavoured Markdown: title, table, notes.

    >>> from ebmcal.tables.table import TableRow
    >>> rows = (TableRow((Entry("x"), Entry(0.5))),)
    >>> print(to_markdown(Table("", (Column("m", "Method"), Column("a", "acc")), rows)))
    | Method | acc |
    |---|---:|
    | x | 0.500 |
    """
    heads = [_markdown(_full_title(column)) for column in table.columns]
    lines = [f"**{_markdown(table.title)}**", ""] if table.title else []
    lines += [_pipe(heads), "|" + "|".join(_alignment(table, i) for i in range(len(heads))) + "|"]
    lines += [
        _pipe([_markdown_entry(e, c) for e, c in zip(row.entries, table.columns, strict=True)]) for row in table.rows
    ]
    for note in table.notes:
        lines += ["", _markdown(note)]
    return "\n".join(lines)


def to_latex(table: Table) -> str:
    """LaTeX in the layout of the paper: ruled, groups over pairs of columns, no leading zeros, best in bold.

    Needs no package beyond the LaTeX kernel.
    """
    runs = list(groups(table.columns))
    spec = "|".join("c" * length for _, length in runs) if table.has_groups else "c|" + "c" * (len(table.columns) - 1)
    lines = [r"\begin{table*}[t]", r"\centering", r"\small", r"\addtolength{\tabcolsep}{-3pt}"]
    lines += [
        rf"\begin{{tabular}}{{|{spec}|}}",
        r"\hline",
        *_latex_heads(table, runs),
        *_latex_rows(table),
        r"\end{tabular}",
    ]
    caption = " ".join(part.rstrip(".") + "." for part in (table.title, *table.notes) if part)
    if caption:
        lines.append(rf"\caption{{{escape_latex(caption)}}}")
    return "\n".join([*lines, r"\end{table*}"])


def to_rich(table: Table, *, narrow: bool = False) -> "rich.table.Table":
    """A rich table: best entries bold and starred (a star survives a pipe and a terminal without colours).

    In a `narrow` one headings of figures wrap at words, so that names keep the room.
    """
    import rich.box
    import rich.table
    from rich.text import Text

    drawn = rich.table.Table(
        title=Text(table.title) if table.title else None, box=rich.box.SIMPLE_HEAD, title_justify="left"
    )
    for index, column in enumerate(table.columns):
        numeric, title = _is_numeric(table, index), _full_title(column)
        words = [*title.split(), *_terminal_column(table, index)]
        width = max(map(len, words)) if narrow and numeric else None
        drawn.add_column(Text(title), justify="right" if numeric else "left", overflow="fold", max_width=width)
    for row, ends in zip(table.rows, _section_ends(table), strict=True):
        texts = [_terminal_entry(e, c) for e, c in zip(row.entries, table.columns, strict=True)]
        drawn.add_row(
            *(Text(t, style="bold" if e.best else "") for t, e in zip(texts, row.entries, strict=True)),
            end_section=ends,
        )
    if table.notes:
        drawn.caption, drawn.caption_justify = Text("\n".join(table.notes)), "left"
    return drawn


def to_json(table: Table) -> str:
    """JSON: a row has a key for each column; a figure is an object with "value", "best" and what else is known."""
    return json.dumps(to_data(table), indent=2, ensure_ascii=False, allow_nan=False)


def to_data(table: Table) -> dict[str, Any]:
    """What `to_json` writes, as plain dictionaries and lists."""
    columns = [{"key": c.key, "title": c.title, "group": c.group, "better": c.better} for c in table.columns]
    rows = [{c.key: _entry_data(e) for c, e in zip(table.columns, row.entries, strict=True)} for row in table.rows]
    return {"title": table.title, "columns": columns, "rows": rows, "notes": list(table.notes)}


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(escape_latex("50% of $x_1"))
    50\\% of \\$x\\_1
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _entry_data(entry: Entry) -> Any:
    if entry.number is None:
        return entry.value if isinstance(entry.value, str) else None
    parts = {"value": entry.value, "spread": entry.spread, "low": entry.low, "high": entry.high}
    parts |= {"noise_floor": entry.floor}
    return {**{k: v for k, v in parts.items() if v is not None}, "best": entry.best}


def _full_title(column: Column) -> str:
    return f"{column.group} {column.title}" if column.group else column.title


def _is_numeric(table: Table, index: int) -> bool:
    return any(row.entries[index].number is not None for row in table.rows)


def _section_ends(table: Table) -> list[bool]:
    following = [row.section for row in table.rows[1:]]
    return [row.section != after for row, after in zip(table.rows, following, strict=False)] + [True] * bool(table.rows)


def _terminal_entry(entry: Entry, column: Column) -> str:
    return entry.text(column.digits) + (" *" if entry.best else "")


def _terminal_column(table: Table, index: int) -> list[str]:
    return [_terminal_entry(row.entries[index], table.columns[index]) for row in table.rows]


def _pipe(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _alignment(table: Table, index: int) -> str:
    return "---:" if _is_numeric(table, index) else "---"


def _markdown(text: str) -> str:
    """One line, with the characters that would end a cell or start a tag made harmless."""
    text = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    for character in "<*_`[$":
        text = text.replace(character, "\\" + character)
    return text


def _markdown_entry(entry: Entry, column: Column) -> str:
    text = entry.text(column.digits)
    shown = text if entry.number is not None else _markdown(text)
    return f"**{shown}**" if entry.best else shown


def _latex_heads(table: Table, runs: list[tuple[str, int]]) -> list[str]:
    titles = " & ".join(rf"\textbf{{{escape_latex(column.title)}}}" for column in table.columns) + r" \\ \hline"
    if not table.has_groups:
        return [titles]
    over = [
        rf"\multicolumn{{{n}}}{{{'|' if i == 0 else ''}c|}}{{\textbf{{{escape_latex(name)}}}}}"
        for i, (name, n) in enumerate(runs)
    ]
    return [" & ".join(over) + r" \\", titles]


def _latex_rows(table: Table) -> list[str]:
    lines = []
    for row, ends in zip(table.rows, _section_ends(table), strict=True):
        cells = [
            _latex_entry(e, c, first=i == 0) for i, (e, c) in enumerate(zip(row.entries, table.columns, strict=True))
        ]
        lines.append(" & ".join(cells) + (r" \\ \hline" if ends else r" \\"))
    return lines


def _latex_entry(entry: Entry, column: Column, first: bool) -> str:
    text = escape_latex(_without_zeros(entry, column))
    return rf"\textbf{{{text}}}" if first or entry.best else text


def _without_zeros(entry: Entry, column: Column) -> str:
    """The paper leaves out leading zeros to save space: .942."""
    text = entry.text(column.digits)
    if entry.number is None or text == EMPTY:
        return text
    return re.sub(r"(?<![\d.])0\.(?=\d)", ".", text)
