"""A figure on its way into the page: an inline SVG, a heading, and a line on how to read it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ebmcal.plots.svg import to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = Callable[["Axes"], Any]
PANEL = (4.4, 3.2)  # all lengths are inches
LEFT, RIGHT, BOTTOM, TITLED, UNTITLED = 0.74, 0.16, 0.46, 0.32, 0.08
PER_ROW = 3


@dataclass(frozen=True)
class Picture:
    """`panels` is how many axes stand side by side: the page gives it as much room."""

    title: str
    svg: str
    reading: str
    panels: int = 1


def draw(
    key: str, title: str, reading: str, *panels: Panel, size: tuple[float, float] = PANEL, under: float = 0.0
) -> Picture:
    """One figure with an axes for each of the `panels`, functions that draw on the axes they are given; three to a row.

    `key` names the figure within its page; `under` is room below the axes, in inches, for what a panel adds there.
    """
    from matplotlib.figure import Figure

    across, down = min(len(panels), PER_ROW), math.ceil(len(panels) / PER_ROW)
    figure = Figure(figsize=(size[0] * across, size[1] * down))
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for panel, ax in zip_longest(panels, axes):
        panel(ax) if panel else ax.set_axis_off()
    top = TITLED if any(ax.get_title(loc="left") for ax in axes) else UNTITLED
    for index, ax in enumerate(axes):
        ax.set_position(_place(divmod(index, across), (down, across), size, (LEFT, BOTTOM + under, RIGHT, top)))
    return Picture(title, to_svg(figure, key, title), reading, across)


def _place(
    cell: tuple[int, int], grid: tuple[int, int], size: tuple[float, float], margins: tuple[float, ...]
) -> tuple[float, float, float, float]:
    """Left, bottom, width, height as shares of the figure. A layout engine would draw every figure twice."""
    left, bottom, right, top = margins
    width, height = size[0] * grid[1], size[1] * grid[0]
    x, y = size[0] * cell[1] + left, size[1] * (grid[0] - 1 - cell[0]) + bottom
    return x / width, y / height, (size[0] - left - right) / width, (size[1] - bottom - top) / height
