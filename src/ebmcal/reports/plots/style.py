"""Colours, line styles and axes shared by all plots. No pyplot and no global state.

Colour never carries meaning alone: every series also has its own marker, dash and hatch (Okabe–Ito colours).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, MUTED, GRID = "#ffffff", "#1b1f24", "#6a737d", "#d5d9de"
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"


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


def format_axes(ax: "Axes", *, title: str = "", x: str = "", y: str = "") -> "Axes":
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
    return ax


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
