"""`Table`: a DataFrame with a title, notes and formatting, printed as terminal text, Markdown, LaTeX, JSON or HTML.

A table knows nothing about metrics: `better` names the columns in which the best value is marked, and in which
direction. Columns are strings, or (group, name) pairs for a heading over several columns.
"""

import json
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ebmcal.reports.tables.latex import to_latex
from ebmcal.reports.tables.markdown import to_markdown

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions

#: Columns of a terminal that a table never exceeds.
WIDTH = 100
EMPTY = "–"
Column = str | tuple[str, str]


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
        """The same table with some of its columns.

        >>> import pandas as pd
        >>> Table(pd.DataFrame({"a": [1], "b": [2]})).select(["b"]).columns
        ['b']
        """
        return replace(self, frame=self.frame[list(columns)])

    def named(self, title: str) -> "Table":
        """The same table with another title."""
        return replace(self, title=title)

    def to_markdown(self) -> str:
        """GitHub-flavoured Markdown: title, table, notes."""
        return to_markdown(self)

    def to_latex(self) -> str:
        """LaTeX with booktabs, in the layout of the paper: no leading zeros, the best value in bold."""
        return to_latex(self)

    def to_json(self) -> str:
        """JSON with the title, the rows as objects, and the notes."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as plain objects."""
        keys = self.headings
        rows = [dict(zip(keys, map(_plain, row), strict=True)) for row in self.frame.itertuples(index=False)]
        return {"title": self.title, "columns": keys, "rows": rows, "notes": list(self.notes)}

    def print(self, console: "Console | None" = None) -> None:
        """Print within 100 columns, or within the terminal if it is narrower."""
        from rich.console import Console

        console = console or Console()
        console.print(self, width=min(WIDTH, console.width) if console.is_terminal else WIDTH, soft_wrap=False)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator[Any]:
        from ebmcal.reports.tables.terminal import render

        yield from render(self, options.max_width)

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
        column = self.columns[index]
        values = list(self.frame.iloc[:, index])
        digits = self.digits.get(column, 3)
        texts = [format_value(value, digits) for value in values]
        best = self._best(column, [None if i in self.unranked else _number(v) for i, v in enumerate(values)], digits)
        extras = [""] * len(values)
        if self.extra is not None and column in self.extra.columns:
            extras = [value or "" for value in self.extra[column]]
        return [
            Cell(text, extra, _number(value), row in best)
            for row, (text, extra, value) in enumerate(zip(texts, extras, values, strict=True))
        ]

    def _best(self, column: Column, values: Sequence[float | None], digits: int | None) -> set[int]:
        """Rows that read best after rounding; none if all read the same."""
        shown = {i: float(format_value(v, digits).replace(",", "")) for i, v in enumerate(values) if v is not None}
        if column not in self.better or len(set(shown.values())) < 2:
            return set()
        best = max(shown.values(), key=lambda value: value * self.better[column])
        return {i for i, value in shown.items() if value == best}


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
