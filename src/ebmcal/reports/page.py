"""What reports are made of: `Table` (terminal, Markdown, LaTeX, HTML) and self-contained HTML pages.

A `Page` has `Section`s, a section has paragraphs (str), `Table`s and other `Block`s. The template adds style and
script; the page needs no network and no other file.
"""

import base64
import functools
import hashlib
import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pandas as pd

from ebmcal.storage import PathLike, write_text

if TYPE_CHECKING:
    import rich.table
    from jinja2 import Environment
    from markupsafe import Markup
    from rich.console import Console, ConsoleOptions

#: Columns of a terminal that a table never exceeds.
WIDTH = 100
EMPTY = "–"
#: Texts longer than this many characters are folded in HTML.
FOLD_AFTER = 220

#: A name, or a group and a name.
Column = str | tuple[str, str]

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "→": r"$\rightarrow$", "±": r"$\pm$",
})  # fmt: skip


class Cell(NamedTuple):
    """A formatted entry: its text, what follows it (an interval), its number for sorting, and whether it is best."""

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

    >>> frame = pd.DataFrame({"Model": ["baseline", "hidden"], "Accuracy": [0.91, 0.9213]})
    >>> print(Table(frame, better={"Accuracy": 1}).to_markdown())
    | Model    |   Accuracy |
    |:---------|-----------:|
    | baseline |      0.910 |
    | hidden   |  **0.921** |
    """

    frame: pd.DataFrame  # numbers, texts, None
    title: str = ""
    notes: tuple[str, ...] = ()
    better: Mapping[Any, int] = field(default_factory=dict)  # columns with a best value: +1 highest, −1 lowest
    digits: Mapping[Any, int | None] = field(default_factory=dict)  # column → 3 unless stated; None: 4 significant
    extra: pd.DataFrame | None = None  # texts after the values, in columns of the same name
    sections: Sequence[str] = ()  # one per row; a rule separates rows of different sections
    recommended: int | None = None  # position of the highlighted row
    unranked: frozenset[int] = frozenset()  # rows that are never marked best
    tied: frozenset[Any] = frozenset()  # columns without a best value
    kind: ClassVar[str] = "table"  # as of a `Block`

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

    def min_width(self, index: int) -> int:
        """Characters of a column of words that stand side by side even on a narrow screen."""
        texts = [str(value) for value in self.frame.iloc[:, index]]
        words = [word for text in texts for word in re.split(r"\s|(?<=[_-])", text)]
        return 30 if max(map(len, texts), default=0) > 60 else min(max(map(len, words), default=0), 16)

    def ends_section(self, row: int) -> bool:
        """Whether a rule follows this row."""
        return bool(self.sections) and row + 1 < len(self) and self.sections[row] != self.sections[row + 1]

    def select(self, columns: Sequence[Column]) -> "Table":
        """The same table with some of its columns."""
        return replace(self, frame=self.frame[list(columns)])

    def to_markdown(self) -> str:
        """GitHub-flavoured Markdown: title, table, notes; every name is escaped."""

        def shown(cell: Cell) -> str:
            text = cell.full if cell.number is not None else escape_markdown(cell.full)
            return f"**{text}**" if cell.is_best else text

        headings = [escape_markdown(heading) for heading in self.headings]
        frame = pd.DataFrame([[shown(cell) for cell in row] for row in self.cells()], columns=headings)
        align = ["right" if self.is_numeric(i) else "left" for i in range(len(self.columns))]
        table = frame.to_markdown(index=False, disable_numparse=True, colalign=align)
        title = [f"**{escape_markdown(self.title)}**"] if self.title else []
        return "\n\n".join([*title, table, *map(escape_markdown, self.notes)])

    def to_latex(self) -> str:
        """LaTeX with booktabs, in the layout of the paper: no leading zeros, the best value in bold."""

        def shown(cell: Cell) -> str:
            text = " ".join(cell.full.split())
            text = re.sub(r"(?<![\d.])0\.(?=\d)", ".", text) if cell.number is not None else text
            return rf"\textbf{{{text.translate(_LATEX)}}}" if cell.is_best else text.translate(_LATEX)

        pairs = [("", c) if isinstance(c, str) else c for c in self.columns]
        pairs = [(group.translate(_LATEX), name.translate(_LATEX)) for group, name in pairs]
        has_groups = any(group for group, _ in pairs)
        columns = pd.MultiIndex.from_tuples(pairs) if has_groups else pd.Index([name for _, name in pairs])
        frame = pd.DataFrame([[shown(cell) for cell in row] for row in self.cells()], columns=columns)
        column_format = "l" + "r" * (len(pairs) - 1)
        text = frame.to_latex(index=False, escape=False, column_format=column_format, multicolumn_format="c")
        lines = text.splitlines()
        first = lines.index(r"\midrule") + 1 if r"\midrule" in lines else len(lines)
        for row in reversed(range(len(self))):
            if self.ends_section(row):
                lines.insert(first + row + 1, r"\midrule")
        caption = " ".join(part.rstrip(".") + "." for part in (self.title, *self.notes) if part).translate(_LATEX)
        lines = [r"\begin{table*}[t]", r"\centering", r"\small", *lines, rf"\caption{{{caption}}}", r"\end{table*}"]
        return "\n".join(lines)

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
        has_best = any(cell.is_best for row in self.cells() for cell in row)
        legend = ["→ recommended"] * (self.recommended is not None) + ["* best of its column"] * has_best
        for note in [", ".join(legend) + "."] * bool(legend) + list(self.notes):
            yield Text(note, style="dim")

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=WIDTH, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        blocks: Any = environment().get_template("blocks.html.j2").module
        return str(blocks.table(self))

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
        if len(set(shown.values())) > 1 and column not in self.tied:
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
            justify: Any = "left" if width is None else "right"
            drawn.add_column(Text(heading), justify=justify, overflow="fold", min_width=width, max_width=width)
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


class Picture(NamedTuple):
    """An SVG with a heading and a line on how to read it; `panels` axes stand side by side."""

    title: str
    svg: str
    caption: str = ""
    panels: int = 1


class Block(NamedTuple):
    """A part of a section: the macro of `blocks.html.j2` that shows it, and what it shows.

    note, code: a text; bullets: texts, or (text, anchor of a section); commands: (purpose, command); facts: (name,
    value, detail); pictures.
    """

    kind: str
    content: Any
    title: str = ""
    style: str = ""  # a CSS class: bullets as a warning, the first of the facts as chosen


#: What a section consists of; a text is a paragraph.
Part = str | Table | Block


class Section(NamedTuple):
    """Blocks under a heading; a `collapsed` section is closed until the reader opens it."""

    title: str
    blocks: Sequence[Part]
    collapsed: bool = False

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


class Page(NamedTuple):
    """A title, a sentence below it, and sections."""

    title: str
    lead: str = ""
    sections: Sequence[Section] = ()


def write_page(path: PathLike, page: Page) -> Path:
    """Write a page as one HTML file; returns its path."""
    write_text(path, render_page(page))
    return Path(path)


def render_page(page: Page) -> str:
    """The HTML of a page. Every text is escaped; only SVG is inserted as it is.

    >>> "<h1>a &lt; b</h1>" in render_page(Page("a < b"))
    True
    """
    from markupsafe import Markup

    style, script = Markup(read_asset("page.css")), Markup(read_asset("page.js"))
    # Content security policy: the page may show itself and run its own script, nothing else.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    template = environment().get_template("page.html.j2")
    html = template.render(page=page, title=page.title, style=style, script=script, policy=policy)
    return html.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written as UTF-8


def read_asset(name: str) -> str:
    """A file next to the templates: the style of all pages, or a script."""
    return resources.files("ebmcal.reports").joinpath("templates", name).read_text(encoding="utf-8")


@functools.cache
def environment() -> "Environment":
    """The templates of pages, of the web UI and of model cards."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from ebmcal import __version__

    found = Environment(
        loader=PackageLoader("ebmcal.reports"), autoescape=lambda name: name is None or ".html" in name,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.globals.update(fold_after=FOLD_AFTER, version=__version__)
    found.filters |= {"code": code_span, "options": unbroken_options}
    return found


def unbroken_options(text: str) -> "Markup":
    """Text as HTML in which lines do not break after the hyphens of an option of the command line.

    >>> print(unbroken_options("a < b, --folds 5"))
    a &lt; b, <span class="option">--folds</span> 5
    """
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<!\S)\(?--[a-z-]+", r'<span class="option">\g<0></span>', str(escape(text))))


def code_span(text: object) -> str:
    """A name as Markdown code, in which nothing is interpreted.

    >>> code_span("<b> `x`")
    "`<b> 'x'`"
    """
    shown = " ".join(str(text).replace("`", "'").split())
    return f"`{shown}`" if shown else "–"
