"""A figure as a small inline SVG: deterministic, with selectable text and colours that follow the page's colour scheme.

One pass over matplotlib's output replaces each colour of `style` by a CSS variable (with the colour as fallback), so a
page can redefine it for dark mode.
"""

import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING

from ebmcal.reports.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour → name of its CSS variable (`--fig-<name>`).
VARIABLES = {
    style.PAPER: "paper", style.INK: "ink", style.MUTED: "muted", style.GRID: "grid", style.BLUE: "blue",
    style.ORANGE: "orange", style.GREEN: "green", style.VERMILLION: "vermillion", style.PURPLE: "purple",
    style.SKY: "sky",
}  # fmt: skip
_UNUSED_ID = re.compile(
    r' id="(?:figure|axes|patch|text|line2d|matplotlib\.axis|[xy]tick|legend|[A-Za-z]+Collection|Quad\w*)_\d+"'
)


def to_svg(figure: "Figure", key: str, description: str = "") -> str:
    """The `<svg>` element of a figure. `key` must be unique on a page: ids are derived from it."""
    import matplotlib

    buffer = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": f"ebmcal {key}"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # the browser's fonts have it
        no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    return compact_svg(buffer.getvalue(), description)


def compact_svg(svg: str, description: str = "") -> str:
    """Map colours to CSS variables and drop the prologue, unused ids and excess digits; add a description.

    >>> compact_svg('<svg><path style="fill: #0072b2"/></svg>')
    '<svg font-family="sans-serif"><path style="fill: var(--fig-blue,#0072b2)"/></svg>'
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.S)
    svg = re.sub(r"(?:<use [^<>]*/>\s*){2,}", _share_style, re.sub(r"<[^<>]*>", _compact_tag, svg))
    label = f' role="img" aria-label="{escape(description, quote=True)}"' if description else ""
    svg = svg.replace("<svg", f'<svg{label} font-family="sans-serif"', 1)
    return re.sub(r">\s*\n\s*<", "><", svg).strip()


def _compact_tag(match: re.Match[str]) -> str:
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", _UNUSED_ID.sub("", match.group()))
    tag = re.sub(r" font-family: [^;\"]*;| transform=\"rotate\(-0 [^\"]*\"", "", tag)
    tag = re.sub(r"\s*\n\s*", " ", tag)
    tag = re.sub(r' fill="(#[0-9a-f]{6})"', r' style="fill: \1"', tag)  # an attribute cannot hold a variable
    return re.sub(r"(?<=: )#[0-9a-f]{6}", _variable, tag)


def _share_style(match: re.Match[str]) -> str:
    """Put the common style of a series of markers on a group around them."""
    found = set(re.findall(r' style="([^"]*)"', match.group()))
    if len(found) != 1:
        return match.group()
    (common,) = found
    return f'<g style="{common}">{match.group().replace(f" style={chr(34)}{common}{chr(34)}", "")}</g>'


def _variable(match: re.Match[str]) -> str:
    name = VARIABLES.get(match.group())
    return f"var(--fig-{name},{match.group()})" if name else match.group()
