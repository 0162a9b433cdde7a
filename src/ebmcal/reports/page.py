"""Self-contained HTML pages made of sections and blocks; the reports of runs, benchmarks and other commands use them.

A `Page` has `Section`s, a section has blocks: a paragraph (str), a `Note`, a `Table`, `Pictures`, `Facts`, `Bullets`,
`Commands` or `Code`. The template adds style and script; the page needs no network and no other file.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ebmcal.reports.figures import Picture
from ebmcal.reports.table import Table
from ebmcal.storage import PathLike, write_text

if TYPE_CHECKING:
    from jinja2 import Environment

#: Texts longer than this many characters are folded.
FOLD_AFTER = 220


class Fact(NamedTuple):
    """A number in large print: its name, its value and what it means."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Facts:
    """Numbers side by side; `has_choice` highlights the first."""

    items: Sequence[Fact]
    has_choice: bool = False


@dataclass(frozen=True)
class Pictures:
    items: Sequence[Picture]


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]
    title: str = ""
    is_warning: bool = False


@dataclass(frozen=True)
class Commands:
    """Commands to copy: (purpose, command)."""

    items: Sequence[tuple[str, str]]
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
    sections: Sequence[Section] = ()
    links: Sequence[tuple[str, str]] = ()


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

    from ebmcal import __version__

    folder = resources.files("ebmcal.reports").joinpath("templates")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # Content security policy: the page may show itself and run its own script, nothing else.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    html = environment().get_template("page.html.j2").render(
        page=page, style=Markup(style), script=Markup(script), policy=policy, version=__version__
    )  # fmt: skip
    return html.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written as UTF-8


def render_table(table: Table) -> str:
    """The HTML of a table alone, for notebooks."""
    blocks: Any = environment().get_template("blocks.html.j2").module
    return str(blocks.table(table))


@functools.cache
def environment() -> "Environment":
    """The templates of pages and model cards."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("ebmcal.reports"), autoescape=lambda name: name is None or ".html" in name,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.globals.update(fold_after=FOLD_AFTER, kind_of=lambda block: type(block).__name__.lower())
    return found
