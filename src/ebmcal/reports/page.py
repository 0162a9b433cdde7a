"""Self-contained HTML pages made of sections and blocks; the reports of runs, benchmarks and other commands use them.

A `Page` has `Section`s, a section has blocks: a paragraph (str), a `Note`, a `Table`, `Pictures`, `Facts`, `Bullets`,
`Commands` or `Code`. The template adds style and script; the page needs no network and no other file.
"""

import base64
import functools
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.reports.plots.svg import to_svg
from ebmcal.reports.tables.table import Table
from ebmcal.storage import PathLike, write_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes

#: Texts longer than this many characters are folded.
FOLD_AFTER = 220

# Layout of a figure in inches: size of a panel, margins around its axes, panels per row.
PANEL = (4.4, 3.2)
LEFT, RIGHT, BOTTOM, TITLED, UNTITLED = 0.74, 0.16, 0.46, 0.32, 0.08
PER_ROW = 3


@dataclass(frozen=True)
class Picture:
    """An SVG with a heading and a line on how to read it; `panels` axes stand side by side."""

    title: str
    svg: str
    caption: str = ""
    panels: int = 1


@dataclass(frozen=True)
class Pictures:
    items: tuple[Picture, ...]


@dataclass(frozen=True)
class Fact:
    """A number in large print: its name, its value and what it means."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Facts:
    items: tuple[Fact, ...]


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]
    title: str = ""
    is_warning: bool = False


@dataclass(frozen=True)
class Commands:
    """Commands to copy, each with what it does."""

    items: tuple[tuple[str, str], ...]  # purpose, command
    title: str = ""


@dataclass(frozen=True)
class Note:
    """A paragraph in small print."""

    text: str


@dataclass(frozen=True)
class Code:
    text: str
    title: str = ""


Block = str | Note | Table | Pictures | Bullets | Commands | Facts | Code


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; a `collapsed` section is closed until the reader opens it."""

    title: str
    blocks: Sequence[Block]
    collapsed: bool = False

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A title, a sentence below it, sections, and links to other pages: (name, address)."""

    title: str
    lead: str = ""
    sections: Sequence[Section] = field(default=())
    links: Sequence[tuple[str, str]] = field(default=())


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

    style, script = _file("page.css"), _file("page.js")
    html = _environment().get_template("page.html.j2").render(
        page=page, style=Markup(style), script=Markup(script), policy=_policy(script), version=_version()
    )  # fmt: skip
    return html.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written as UTF-8


def render_table(table: Table) -> str:
    """The HTML of a table alone, for notebooks."""
    blocks: Any = _environment().get_template("blocks.html.j2").module
    return str(blocks.table(table))


def draw(
    key: str,
    title: str,
    caption: str,
    *panels: Callable[["Axes"], Any],
    size: tuple[float, float] = PANEL,
    below: float = 0.0,
    left: float = LEFT,
) -> Picture:
    """A picture with one axes per panel, three to a row. A panel is a function that draws on the axes it gets.

    `key` is unique on a page; `below` and `left` are extra or other room around the axes, in inches.
    """
    from matplotlib.figure import Figure

    across, down = min(len(panels), PER_ROW), math.ceil(len(panels) / PER_ROW)
    figure = Figure(figsize=(size[0] * across, size[1] * down))
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for panel, ax in zip_longest(panels, axes):
        panel(ax) if panel else ax.set_axis_off()
    top = TITLED if any(ax.get_title(loc="left") for ax in axes) else UNTITLED
    width, height = size[0] * across, size[1] * down
    for index, ax in enumerate(axes):  # a layout engine would draw every figure twice
        row, column = divmod(index, across)
        x, y = size[0] * column + left, size[1] * (down - 1 - row) + BOTTOM + below
        inner = size[0] - left - RIGHT, size[1] - BOTTOM - below - top
        ax.set_position((x / width, y / height, inner[0] / width, inner[1] / height))
    return Picture(title, to_svg(figure, key, title), caption, across)


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ebmcal.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(fold_after=FOLD_AFTER, kind_of=lambda block: type(block).__name__.lower())
    return environment


def _policy(script: str) -> str:
    """Content security policy: the page may show itself and run its own script, nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def _file(name: str) -> str:
    return resources.files("ebmcal.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _version() -> str:
    from ebmcal import __version__

    return __version__
