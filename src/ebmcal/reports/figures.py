"""What all plots share: colours, line styles, axes, and SVG whose colours follow the page. No pyplot, no global state.

Colour never carries meaning alone: every series also has its own marker, dash and hatch (Okabe–Ito colours).
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER, INK, MUTED, GRID = "#ffffff", "#1b1f24", "#6a737d", "#d5d9de"
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"

#: Colour → name of its CSS variable (`--fig-<name>`), which a page redefines for dark mode.
VARIABLES = {
    PAPER: "paper", INK: "ink", MUTED: "muted", GRID: "grid", BLUE: "blue", ORANGE: "orange", GREEN: "green",
    VERMILLION: "vermillion", PURPLE: "purple", SKY: "sky",
}  # fmt: skip

# Layout of a figure in inches: size of a panel, margins around its axes, panels per row.
PANEL = (4.4, 3.2)
LEFT, RIGHT, BOTTOM, TITLED, UNTITLED = 0.74, 0.16, 0.46, 0.32, 0.08
PER_ROW = 3


@dataclass(frozen=True)
class Style:
    """Colour, dash, marker and hatch of one series."""

    color: str
    dash: str | tuple[Any, ...]
    marker: str
    hatch: str


STYLES = (
    Style(INK, "-", "o", ""),
    Style(BLUE, "--", "s", "///"),
    Style(ORANGE, "-.", "^", "\\\\\\"),
    Style(GREEN, ":", "D", "---"),
    Style(VERMILLION, (0, (5, 1)), "v", "|||"),
    Style(PURPLE, (0, (3, 1, 1, 1)), "P", "xx"),
    Style(SKY, (0, (1, 1)), "X", "++"),
)
_FIXED = {"baseline": 0, "sharp-hidden": 1, "poscal": 2, "hidden": 3, "scalar": 4}


def styles_for(names: Iterable[str]) -> dict[str, Style]:
    """A style per name: methods of the paper always have the same one, other names get the remaining ones.

    >>> styles_for(["hidden"])["hidden"] == styles_for(["baseline", "hidden"])["hidden"]
    True
    """
    names = list(dict.fromkeys(names))
    taken = {name: _FIXED[name] for name in names if name in _FIXED}
    free = [i for i in range(len(STYLES)) if i not in taken.values()] or list(range(len(STYLES)))
    others = [name for name in names if name not in taken]
    taken |= {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: STYLES[taken[name]] for name in names}


def safe_label(text: str, longest: int = 28) -> str:
    """A name on one line, at most `longest` characters, that matplotlib does not interpret.

    >>> safe_label("a $b$ c"), safe_label("_x"), len(safe_label("long " * 20))
    ('a \\\\$b\\\\$ c', ' _x', 28)
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    # matplotlib omits labels that start with an underscore from legends.
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def get_axes(ax: "Axes | None", size: tuple[float, float] = (4.2, 3.4)) -> "Axes":
    """The given axes, or those of a new figure that pyplot does not manage."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").subplots()


def format_axes(ax: "Axes", *, title: str = "", x: str = "", y: str = "") -> None:
    """Titles, a light grid in the background, two spines, one text colour."""
    # A fixed height of the title saves matplotlib from measuring every tick.
    ax.set_title(title, fontsize=10, color=INK, loc="left", y=1.0, pad=6)
    ax.set_xlabel(x, fontsize=9, color=INK)
    ax.set_ylabel(y, fontsize=9, color=INK)
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.locator_params(nbins=6)
    ax.tick_params(labelsize=8, colors=MUTED, labelcolor=INK)
    ax.set_facecolor("none")
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)


def add_legend(ax: "Axes", **options: object) -> None:
    """A small legend on the colour of the page, if any series has a name."""
    if ax.get_legend_handles_labels()[1]:
        frame = {"facecolor": PAPER, "edgecolor": "none", "framealpha": 0.8, "borderpad": 0.3}
        ax.legend(**{"fontsize": 8, "labelcolor": INK, "handlelength": 2.6, **frame, **options})


def show_message(ax: "Axes", message: str) -> "Axes":
    """Empty axes with the reason why nothing is drawn."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, message, ha="center", va="center", fontsize=9, color=MUTED, transform=ax.transAxes, wrap=True)
    return ax


@dataclass(frozen=True)
class Picture:
    """An SVG with a heading and a line on how to read it; `panels` axes stand side by side."""

    title: str
    svg: str
    caption: str = ""
    panels: int = 1


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
    width, height = size[0] * across, size[1] * down
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for panel, ax in zip_longest(panels, axes):
        panel(ax) if panel else ax.set_axis_off()
    top = TITLED if any(ax.get_title(loc="left") for ax in axes) else UNTITLED
    for index, ax in enumerate(axes):  # a layout engine would draw every figure twice
        row, column = divmod(index, across)
        x, y = size[0] * column + left, size[1] * (down - 1 - row) + BOTTOM + below
        inner = size[0] - left - RIGHT, size[1] - BOTTOM - below - top
        ax.set_position((x / width, y / height, inner[0] / width, inner[1] / height))
    return Picture(title, to_svg(figure, key, title), caption, across)


def to_svg(figure: "Figure", key: str, description: str = "") -> str:
    """The `<svg>` element of a figure, deterministic, with selectable text. Ids are derived from `key`."""
    import matplotlib

    buffer = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": f"ebmcal {key}"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # the browser's fonts have it
        no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    return compact_svg(buffer.getvalue(), description)


def compact_svg(svg: str, description: str = "") -> str:
    """Map colours to CSS variables and drop the prologue, fonts and excess digits; add a description.

    >>> compact_svg('<svg><path style="fill: #0072b2"/></svg>')
    '<svg font-family="sans-serif"><path style="fill: var(--fig-blue,#0072b2)"/></svg>'
    """
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r"<[^<>]*>", _compact_tag, svg)
    label = f' role="img" aria-label="{escape(description, quote=True)}"' if description else ""
    svg = svg.replace("<svg", f'<svg{label} font-family="sans-serif"', 1)
    return re.sub(r">\s*\n\s*<", "><", svg).strip()


def _compact_tag(match: re.Match[str]) -> str:
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", match.group())
    tag = re.sub(r' id="[A-Za-z2.]+_\d+"| font-family: [^;"]*;| transform="rotate\(-0 [^"]*"', "", tag)
    tag = re.sub(r' fill="(#[0-9a-f]{6})"', r' style="fill: \1"', " ".join(tag.split()))
    for color, name in VARIABLES.items():  # in a style: an attribute cannot hold a variable
        tag = tag.replace(f": {color}", f": var(--fig-{name},{color})")
    return tag
