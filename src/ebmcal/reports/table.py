"""`Table`: a DataFrame with a title, notes and formatting, printed as terminal text, Markdown, LaTeX, JSON or HTML.

A table knows nothing about metrics: `better` names the columns in which the best value is marked, and in which
direction. Columns are strings, or (group, name) pairs for a heading over several columns.
"""

import json
import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import rich.table
    from rich.console import Console, ConsoleOptions

#: Columns of a terminal that a table never exceeds.
WIDTH = 100
EMPTY = "–"
Column = str | tuple[str, str]

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "→": r"$\rightarrow$", "±": r"$\pm$",
})  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A formatted entry: its text, what follows it (an interval), its number for sorting, and how it is marked."""

    text: str
    extra: str = ""
    number: float | None = None
    is_best: bool = False

    @property
    def full(self) -> str:
        return f"{self.text} {self.extra}".rstrip()


@dataclass(frozen=True, repr=False)
class Table:
    """A DataFrame with formatting; `print` shows it within 100 columns.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"Model": ["baseline", "hidden"], "Accuracy": [0.91, 0.9213]})
    >>> print(Table(frame, better={"Accuracy": 1}).to_markdown())
    | Model    |   Accuracy |
    |:---------|-----------:|
    | baseline |      0.910 |
    | hidden   |  **0.921** |
    """

    frame: "pd.DataFrame"  # numbers, texts, None
    title: str = ""
    notes: tuple[str, ...] = ()
    better: Mapping[Any, int] = field(default_factory=dict)  # column → +1 or −1
    digits: Mapping[Any, int | None] = field(default_factory=dict)  # column → 3 unless stated; None: 4 significant
    extra: "pd.DataFrame | None" = None  # texts after the values, in columns of the same name
    sections: Sequence[str] = ()  # one per row; a rule separates rows of different sections
    recommended: int | None = None  # position of the highlighted row
    unranked: frozenset[int] = frozenset()  # rows that are never marked best

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def columns(self) -> list[Column]:
        return list(self.frame.columns)

    @property
    def headings(self) -> list[str]:
        """One line per column: the group, if any, and the name."""
        return [column if isinstance(column, str) else " ".join(filter(None, column)) for column in self.columns]

    def cells(self) -> list[list[Cell]]:
        """Every row as formatted cells."""
        columns = [self._column(index) for index in range(len(self.columns))]
        return [list(row) for row in zip(*columns, strict=True)] if len(self) else []

    def is_numeric(self, index: int) -> bool:
        return any(_number(value) is not None for value in self.frame.iloc[:, index])

    def ends_section(self, row: int) -> bool:
        """Whether a rule follows this row."""
        return bool(self.sections) and row + 1 < len(self) and self.sections[row] != self.sections[row + 1]

    def select(self, columns: Sequence[Column]) -> "Table":
        """The same table with some of its columns."""
        return replace(self, frame=self.frame[list(columns)])

    def to_markdown(self) -> str:
        """GitHub-flavoured Markdown: title, table, notes; every name is escaped."""
        import pandas as pd

        texts = [[c.full if c.number is not None else escape_markdown(c.full) for c in row] for row in self.cells()]
        for shown, row in zip(texts, self.cells(), strict=True):
            shown[:] = [f"**{text}**" if cell.is_best else text for text, cell in zip(shown, row, strict=True)]
        frame = pd.DataFrame(texts, columns=[escape_markdown(heading) for heading in self.headings])
        align = ["right" if self.is_numeric(i) else "left" for i in range(len(self.columns))]
        parts = [f"**{escape_markdown(self.title)}**"] if self.title else []
        parts.append(frame.to_markdown(index=False, disable_numparse=True, colalign=align))
        return "\n\n".join([*parts, *map(escape_markdown, self.notes)])

    def to_latex(self) -> str:
        """LaTeX with booktabs, in the layout of the paper: no leading zeros, the best value in bold."""
        import pandas as pd

        def shown(cell: Cell) -> str:
            text = " ".join(cell.full.split())
            text = re.sub(r"(?<![\d.])0\.(?=\d)", ".", text) if cell.number is not None else text
            return rf"\textbf{{{text.translate(_LATEX)}}}" if cell.is_best else text.translate(_LATEX)

        pairs = [("", c) if isinstance(c, str) else c for c in self.columns]
        pairs = [(group.translate(_LATEX), name.translate(_LATEX)) for group, name in pairs]
        has_groups = any(group for group, _ in pairs)
        columns = pd.MultiIndex.from_tuples(pairs) if has_groups else pd.Index([name for _, name in pairs])
        lines = pd.DataFrame([[shown(cell) for cell in row] for row in self.cells()], columns=columns).to_latex(
            index=False, escape=False, column_format="l" + "r" * (len(pairs) - 1), multicolumn_format="c"
        ).splitlines()  # fmt: skip
        first = lines.index(r"\midrule") + 1 if r"\midrule" in lines else len(lines)
        for row in reversed(range(len(self))):
            if self.ends_section(row):
                lines.insert(first + row + 1, r"\midrule")
        caption = " ".join(part.rstrip(".") + "." for part in (self.title, *self.notes) if part).translate(_LATEX)
        lines = [r"\begin{table*}[t]", r"\centering", r"\small", *lines, rf"\caption{{{caption}}}", r"\end{table*}"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The title, the rows as objects, and the notes, as JSON values."""
        keys = self.headings
        rows = [dict(zip(keys, map(_plain, row), strict=True)) for row in self.frame.itertuples(index=False)]
        return {"title": self.title, "columns": keys, "rows": rows, "notes": list(self.notes)}

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def print(self) -> None:
        """Print within 100 columns, or within the terminal if it is narrower."""
        from rich.console import Console

        console = Console()
        console.width = min(WIDTH, console.width) if console.is_terminal else WIDTH
        console.print(self)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator[Any]:
        from rich.text import Text

        if self.title:
            yield Text(self.title, style="bold")
        for part in self._parts(console, options):
            yield part._draw()
        for note in self.notes:
            yield Text(note, style="dim")

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=WIDTH, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from ebmcal.reports.page import render_table

        return render_table(self)

    def _column(self, index: int) -> list[Cell]:
        column, values = self.columns[index], list(self.frame.iloc[:, index])
        texts = [format_value(value, self.digits.get(column, 3)) for value in values]
        # Rows are compared as they read; none is best if all read the same.
        shown = {
            i: float(texts[i].replace(",", ""))
            for i, value in enumerate(values)
            if column in self.better and i not in self.unranked and _number(value) is not None
        }
        best = None
        if len(set(shown.values())) > 1:
            best = max(shown.values(), key=lambda value: value * self.better[column])
        has_extra = self.extra is not None and column in self.extra.columns
        extras = list(self.extra[column]) if self.extra is not None and has_extra else [""] * len(values)
        return [
            Cell(text, extra or "", _number(value), best is not None and shown.get(i) == best)
            for i, (text, extra, value) in enumerate(zip(texts, extras, values, strict=True))
        ]

    def _parts(self, console: "Console", options: "ConsoleOptions") -> "list[Table]":
        """Several tables if this one is too wide: the first column and as many groups of columns as fit."""
        first, *others = self.columns
        parts: list[list[Column]] = [[]]
        for group in dict.fromkeys("" if isinstance(column, str) else column[0] for column in others):
            columns = [column for column in others if group == ("" if isinstance(column, str) else column[0])]
            drawn = self.select([first, *parts[-1], *columns])._draw()
            is_wide = drawn.__rich_measure__(console, options.update(width=10_000)).maximum > options.max_width
            if parts[-1] and group and is_wide:
                parts.append([])
            parts[-1] += columns
        return [self.select([first, *part]) for part in parts] if len(parts) > 1 else [self]

    def _draw(self) -> "rich.table.Table":
        """The best values are bold and starred (a star survives a pipe); the recommended row starts with an arrow."""
        import rich.box
        import rich.table
        from rich.text import Text

        drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
        rows = [
            [f"{c.text}{' *' if c.is_best else ''}" + (f"\n{c.extra}" if c.extra else "") for c in row]
            for row in self.cells()
        ]
        for index, column in enumerate(self.columns):
            heading = column if isinstance(column, str) else "\n".join(filter(None, column))
            words = [*heading.split(), *(line for row in rows for line in row[index].split("\n"))]
            # Headings of numbers wrap at words, and numbers never: names give way.
            width = max(map(len, words)) if self.is_numeric(index) else None
            drawn.add_column(
                Text(heading), justify="left" if width is None else "right", overflow="fold", min_width=width,
                max_width=width,
            )  # fmt: skip
        for number, (row, cells) in enumerate(zip(rows, self.cells(), strict=True)):
            is_chosen = number == self.recommended
            row[0] = f"→ {row[0]}" if is_chosen else row[0]
            texts = [Text(text, style="bold" if c.is_best else "") for text, c in zip(row, cells, strict=True)]
            drawn.add_row(*texts, style="bold green" if is_chosen else "", end_section=self.ends_section(number))
        return drawn


def format_value(value: Any, digits: int | None = 3) -> str:
    """A number with fixed digits (None: four significant ones), a count with separators, a text as it is.

    >>> [format_value(v) for v in (-0.0001, 1200, float("nan"), "a", None)], format_value(0.00012, None)
    (['0.000', '1,200', '–', 'a', '–'], '0.00012')
    """
    if isinstance(value, str):
        return value or EMPTY
    number = _number(value)
    if number is None:
        return EMPTY
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    shown = f"{number:.4g}" if digits is None else f"{number:,.{digits}f}"
    return shown.removeprefix("-") if not any(c in "123456789" for c in shown) else shown


def escape_markdown(text: str) -> str:
    """One line in which no character ends a cell, starts a tag or starts markup.

    >>> print(escape_markdown("a|b <i> *c*"))
    a\\|b \\<i> \\*c\\*
    """
    return re.sub(r"([\\|<*_`\[$])", r"\\\1", " ".join(text.split()))


def _number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        return None
    return float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    number = _number(value)
    return int(value) if number is not None and isinstance(value, numbers.Integral) else number
