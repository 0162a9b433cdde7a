"""A figure as a small inline SVG: repeatable, selectable text, colours that follow the page's light or dark scheme."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING

from ebmcal.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours that the page may redefine, as CSS variables; the figure's own colour stays as fallback.
VARIABLES = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    style.BLUE: "blue",
    style.ORANGE: "orange",
    style.GREEN: "green",
    style.VERMILLION: "vermillion",
    style.PURPLE: "purple",
    style.SKY: "sky",
}
_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}
_NAMED_GROUPS = re.compile(
    r' id="(?:figure|axes|patch|text|line2d|matplotlib\.axis|[xy]tick|legend|[A-Za-z]+Collection|Quad\w*)_\d+"'
)


def to_svg(figure: "Figure", key: str, description: str = "") -> str:
    """The `<svg>` element. `key` must differ between figures of one page: ids are made from it.

    For example:

        Path("mine.svg").write_text(to_svg(ax.figure, "mine", "What the picture shows, in words."))
    """
    buffer = io.StringIO()
    with _settings(key):
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NOTHING)
    return shrink(buffer.getvalue(), description)


def shrink(svg: str, description: str = "") -> str:
    """Without prologue, page-wide style, idle ids and needless digits; described for screen readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.S)
    svg = re.sub(r"(?:<use [^<>]*/>\s*){2,}", _together, re.sub(r"<[^<>]*>", _tag, svg))
    label = f' role="img" aria-label="{escape(description, quote=True)}"' if description else ""
    label += ' font-family="sans-serif"'
    return re.sub(r">\s*\n\s*<", "><", svg.replace("<svg", f"<svg{label}", 1)).strip()


def _tag(match: re.Match[str]) -> str:
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", _NAMED_GROUPS.sub("", match.group()))
    tag = re.sub(r" font-family: [^;\"]*;| transform=\"rotate\(-0 [^\"]*\"", "", tag)
    tag = re.sub(r"\s*\n\s*", " ", tag)
    # A presentation attribute cannot hold a variable, a style can.
    tag = re.sub(r' fill="(#[0-9a-f]{6})"', r' style="fill: \1"', tag)
    return re.sub(r"(?<=: )#[0-9a-f]{6}", _colour, tag)


def _together(match: re.Match[str]) -> str:
    """Markers of one series: their common style once around them, not on each."""
    styles = set(re.findall(r' style="([^"]*)"', match.group()))
    if len(styles) != 1:
        return match.group()
    (common,) = styles
    bare = match.group().replace(f' style="{common}"', "")
    return f'<g style="{common}">{bare}</g>'


def _colour(match: re.Match[str]) -> str:
    name = VARIABLES.get(match.group())
    return f"var(--fig-{name},{match.group()})" if name else match.group()


@contextmanager
def _settings(key: str) -> Iterator[None]:
    """Text stays text, ids depend on `key` alone; a glyph the measuring font lacks is the browser's to find."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"ebmcal {key}"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield
