"""How figures look: the Okabe–Ito colours, a marker, dash and hatch for each method, safe labels, axes without pyplot.

Colour never carries meaning alone: every series also has its own marker, line style or hatch, so that figures read the
same in grey and to the colour-blind.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1b1f24"
MUTED = "#6a737d"
GRID = "#d5d9de"
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
)


@dataclass(frozen=True)
class Look:
    """Colour, line style, marker and hatch of one series."""

    color: str
    line: str | tuple[Any, ...]
    marker: str
    hatch: str


LOOKS = (
    Look(INK, "-", "o", ""),
    Look(BLUE, "--", "s", "///"),
    Look(ORANGE, "-.", "^", "\\\\\\"),
    Look(GREEN, ":", "D", "---"),
    Look(VERMILLION, (0, (5, 1)), "v", "|||"),
    Look(PURPLE, (0, (3, 1, 1, 1)), "P", "xx"),
    Look(SKY, (0, (1, 1)), "X", "++"),
)
_FIXED = {"baseline": 0, "sharp-hidden": 1, "poscal": 2, "hidden": 3, "scalar": 4, "poscal-kl": 5}


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name: known methods always keep theirs, other names take what is left.

    >>> looks(["hidden"])["hidden"] == looks(["baseline", "hidden"])["hidden"]
    True
    """
    names = list(dict.fromkeys(names))
    taken = {name: _FIXED[name] for name in names if name in _FIXED}
    free = [i for i in range(len(LOOKS)) if i not in taken.values()] or list(range(len(LOOKS)))
    others = [name for name in names if name not in taken]
    taken |= {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: LOOKS[taken[name]] for name in names}


def label_text(text: str, longest: int = 28) -> str:
    """A name as matplotlib shall print it: one line, not too long, dollars as dollars, never hidden from a legend.

    >>> label_text("a $b$ c"), label_text("_x"), len(label_text("long " * 20))
    ('a \\\\$b\\\\$ c', ' _x', 28)
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    # matplotlib leaves out of a legend what starts with an underscore.
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def on_axes(ax: "Axes | None", size: tuple[float, float] = (4.2, 3.4)) -> "Axes":
    """The axes given, or new ones on a figure of their own that pyplot knows nothing of."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").subplots()


def tidy(ax: "Axes", *, title: str = "", x: str = "", y: str = "") -> "Axes":
    """Titles, a quiet grid behind, two spines, and one ink for all text."""
    # A given height spares matplotlib measuring every tick to find one.
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
    """A small legend without a frame, if there is anything to tell apart."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(**{"fontsize": 8, "frameon": False, "labelcolor": INK, "handlelength": 2.6, **options})


def say_empty(ax: "Axes", what: str) -> "Axes":
    """Axes that say why there is no picture."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, what, ha="center", va="center", fontsize=9, color=MUTED, transform=ax.transAxes, wrap=True)
    return ax
