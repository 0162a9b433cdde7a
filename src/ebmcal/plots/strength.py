"""A figure against the strength of a change of the texts: a line for each model, with intervals where there are any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.plots.style import add_legend, label_text, looks, on_axes, say_empty, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Strengths:
    """One model: a figure at each strength, with the ends of its interval (NaN where there is none)."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def prepare_strength(conditions: Sequence[Mapping[str, Any]], change: str, figure: str) -> list[Strengths]:
    """The figure of each model over the strengths of a change, from the texts as they are (strength 0) on.

    Energies are shown above those of the texts as they are: those of two models need not share a zero.
    """
    found = []
    for name in dict.fromkeys(c["model"] for c in conditions):
        own = [c for c in conditions if c["model"] == name and c["change"] in ("", change)]
        points = [(c["strength"], *_point(c, figure)) for c in sorted(own, key=lambda c: c["strength"])]
        if any(point[1] is None for point in points):
            continue
        values = np.array(points, dtype=float).T  # [4, strengths]; None is NaN
        if figure == "energy":
            values[1] -= values[1, 0]
        found.append(Strengths(name, *values))
    return found


def _point(condition: Mapping[str, Any], figure: str) -> tuple[float | None, float | None, float | None]:
    if figure in condition["metrics"]:
        entry = condition["metrics"][figure]
        return entry["value"], entry["low"], entry["high"]
    return condition[figure], None, None


def draw_strength(data: Sequence[Strengths], ax: "Axes | None" = None, *, x: str = "strength", y: str = "") -> "Axes":
    """A line a model, bars for intervals."""
    ax = on_axes(ax)
    if not data:
        return say_empty(ax, "Nothing was measured.")
    tidy(ax, x=x, y=y)
    styles = looks(line.name.rpartition("-seed")[0] or line.name for line in data)
    for line in data:
        look = styles[line.name.rpartition("-seed")[0] or line.name]
        reach = np.nan_to_num(np.clip([line.y - line.low, line.high - line.y], 0, None))
        ax.errorbar(
            line.x, line.y, yerr=reach, color=look.color, linestyle=look.line, marker=look.marker, markersize=4,
            capsize=2, linewidth=1.3, elinewidth=0.8, label=label_text(line.name),
        )  # fmt: skip
    add_legend(ax, fontsize=7)
    return ax
