"""Figures of a watched log, window by window: accuracy to expect, energy, confidence, shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.plots.style import MUTED, add_legend, label_text, looks, on_axes, say_empty, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = 8  # names of windows along the axis, at most


@dataclass(frozen=True)
class WindowLine:
    """One figure of every window, with the ends of its interval; NaN where a window lacks it."""

    name: str
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class WindowFigures:
    """Lines over windows, and the level of the calibration texts."""

    windows: tuple[str, ...]
    lines: tuple[WindowLine, ...]
    level: float | None = None


def prepare_windows(document: Mapping[str, Any], figure: str) -> WindowFigures:
    """What `figure` ("accuracy", "energy", "confidence", "shares") shows of a watched log; no lines without data."""
    windows, known = document["windows"], document["reference"]
    if figure == "accuracy":
        values = {"to expect": [w["expected"]["confidence"] for w in windows]}
        values["of labelled rows"] = [(w["labelled"] or {}).get("accuracy") for w in windows]
    elif figure == "shares":
        values = {name: [w[name] for w in windows] for name in ("unusual", "abstained")}
    else:
        values = {figure: [w[figure] for w in windows]}
    lines = [_line(name, points) for name, points in values.items() if any(p is not None for p in points)]
    return WindowFigures(tuple(w["name"] for w in windows), tuple(lines), known.get(figure))


def _line(name: str, points: Sequence[Any]) -> WindowLine:
    whole = [p if isinstance(p, Mapping) else {"value": p, "low": None, "high": None} for p in points]
    return WindowLine(name, *(np.array([p[end] for p in whole], dtype=float) for end in ("value", "low", "high")))


def draw_windows(data: WindowFigures, ax: "Axes | None" = None, *, y: str = "") -> "Axes":
    """A line for each figure, bars for intervals, the level of the calibration texts dashed."""
    ax = on_axes(ax)
    if not data.lines:
        return say_empty(ax, "Nothing was measured.")
    tidy(ax, y=y)
    styles = looks(line.name for line in data.lines)
    places = np.arange(len(data.windows))
    for shift, line in enumerate(data.lines):
        look = styles[line.name]
        reach = np.nan_to_num(np.clip([line.y - line.low, line.high - line.y], 0, None))
        ax.errorbar(
            places + 0.08 * shift, line.y, yerr=reach, color=look.color, linestyle=look.line, marker=look.marker,
            markersize=4, capsize=2, linewidth=1.2, elinewidth=0.8, label=label_text(line.name),
        )  # fmt: skip
    if data.level is not None:
        ax.axhline(data.level, color=MUTED, linestyle="--", linewidth=1)
    if y == "shares":
        ax.set_ylim(bottom=0)
    shown = places[:: max(1, -(-len(places) // TICKS))]
    ax.set_xticks(shown, [label_text(data.windows[i], 18) for i in shown], rotation=30, ha="right")
    if len(data.lines) > 1:
        add_legend(ax, fontsize=7)
    return ax
